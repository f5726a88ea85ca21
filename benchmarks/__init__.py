"""Comparisons with other tools, their synthetic inputs, and the fuzzer. Not part of the installed package."""
