"""Captures of Nsight Systems."""
