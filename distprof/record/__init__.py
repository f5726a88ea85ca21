"""What one rank records about itself, at next to no cost for training."""
