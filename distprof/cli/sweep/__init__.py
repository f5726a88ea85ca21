"""Sweeps: the jobs of one command line, one after the other, each in a process group of its own."""
