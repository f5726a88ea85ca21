"""Links between hosts: what crosses them, how fast they are, and whether one of them is slow."""
