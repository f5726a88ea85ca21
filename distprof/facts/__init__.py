"""What was measured: the facts of a run, of a trace and of hardware."""
