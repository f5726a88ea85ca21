"""Reads captures of Nsight Systems."""
