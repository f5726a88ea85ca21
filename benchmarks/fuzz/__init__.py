"""Inputs changed by chance where it hurts: records behind valid checksums, schemas, fields of events."""
