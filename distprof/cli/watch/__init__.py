"""The verb ``watch``: a job on a terminal while it runs."""
