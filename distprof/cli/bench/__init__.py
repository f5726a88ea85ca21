"""Benchmarks that a user can run: what distprof costs on their own machine, beside what other tools cost there."""
