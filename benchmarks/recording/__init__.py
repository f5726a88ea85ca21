"""What recording costs the host, without a GPU."""
