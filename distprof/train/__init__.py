"""The workload: a transformer, trained as usual, whose loop marks each phase for the profiler."""
