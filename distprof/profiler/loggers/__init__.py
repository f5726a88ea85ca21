"""Where live metrics go besides the run folder, a file for each kind of logger: ``profile.loggers``."""
