"""What a trace says of one rank: pure functions from a `Trace` to facts small enough to keep."""
