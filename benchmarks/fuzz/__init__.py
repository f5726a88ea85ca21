"""Randomly changed inputs that target weak spots: records behind valid checksums, schemas, fields of events."""
