"""Files that other tools wrote, read as `Trace` and put together as one `Run`. Nothing is trusted, nothing unpickled."""
