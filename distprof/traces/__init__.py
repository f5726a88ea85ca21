"""Reads files that other tools wrote as `Trace` and combines them into one `Run`. Nothing in them is trusted."""
