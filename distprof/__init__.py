"""distprof: where did each rank's time go, which rank held the others up, and what would fixing it buy."""

__version__ = "0.1.0"
