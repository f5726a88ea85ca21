"""Benchmarks for users: what distprof costs on their own machine, compared with what other tools cost there."""
