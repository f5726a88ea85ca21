"""How the rows of a rank reach its file and rank 0, and how the ranks agree on a window."""
