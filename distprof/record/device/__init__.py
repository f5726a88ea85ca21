"""A rank's device: its name and peak, and access to its streams and events."""
