"""The workload: a transformer trained by the book, told to the profiler phase by phase."""
