"""The API: a profiler around the steps of one's own training loop."""
