"""The public API: a profiler around the steps of a training loop."""
