"""Run folders and rank streams: how the facts of a run are stored on disk."""
