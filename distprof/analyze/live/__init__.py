"""A job that is still running: its metrics, and whom the report would name now."""
