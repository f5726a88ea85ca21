"""Runs a job under Nsight Systems: without secrets, checked by whether a report exists, exported and shown."""
