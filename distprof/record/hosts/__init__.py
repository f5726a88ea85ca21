"""The hosts' clocks, and the links between hosts."""
