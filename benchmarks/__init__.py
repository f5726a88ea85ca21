"""Simulated jobs, comparisons with the truth and with other tools, and the fuzzer. Not part of the installed
package."""
