"""What a cause costs: the cycles are replayed without it."""
