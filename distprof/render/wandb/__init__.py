"""Weights & Biases: what is logged while a job runs and at its end, and the workspace."""
