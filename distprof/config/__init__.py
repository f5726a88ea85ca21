"""The configuration: its schema, and how it is composed, checked and decoded."""
