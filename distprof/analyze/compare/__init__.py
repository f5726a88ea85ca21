"""What differs between runs: each is reduced to its mean times, and these are compared."""
