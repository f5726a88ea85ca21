"""One rank's part of a job: the strict profiler, its start, and what rank 0 does besides."""
