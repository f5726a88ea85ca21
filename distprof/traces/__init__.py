"""Files that other tools wrote, read as `Trace` and put together as one `Run`. Nothing of them is trusted."""
