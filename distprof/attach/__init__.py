"""``python -m distprof.attach``: runs somebody's script as it is, and watches it."""
