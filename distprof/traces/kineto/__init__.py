"""Reads traces of the PyTorch profiler."""
