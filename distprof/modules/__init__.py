"""Inside a model: the work, the time and the memory of every module."""
