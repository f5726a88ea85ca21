"""Programs that know nothing of distprof, each run without it and under ``python -m distprof.attach``."""
