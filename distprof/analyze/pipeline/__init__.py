"""Pipeline-parallel jobs: what each operation waits for, and what the step would take with other durations."""
