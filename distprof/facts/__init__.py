"""What was measured: the facts about a run, a trace and hardware."""
