"""What one rank observes of itself, with no cost on the hot path."""
