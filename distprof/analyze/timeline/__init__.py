"""One step of all ranks, in arrays that are small enough to draw."""
