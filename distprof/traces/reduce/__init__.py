"""Reduces a `Trace` to facts about one rank that are small enough to keep: pure functions."""
