"""Shows a `distprof.report.report.Report`: on a terminal, as a page, in other programs. Draws no conclusions."""

import random

_state = random.getstate()
import rich.style  # noqa: E402, F401  # draws one of Python's random numbers, and those are the script's

random.setstate(_state)
