"""Run folders and rank streams: how the facts of a run lie on disk."""
