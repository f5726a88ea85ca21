"""What recording costs, in words."""

from __future__ import annotations

from distprof.render.units import NOT_MEASURED, format_count, format_ratio
from distprof.report import OverheadReport


def describe_overhead(overhead: OverheadReport | None) -> str:
    """The cost with its interval: ``costs 0.4 % of a step (-0.2 % to 1.1 %, 12 shadow steps)``."""
    if overhead is None:
        return f"{NOT_MEASURED}: too few shadow steps (profile.shadow_every)"
    interval = f"{format_ratio(overhead.low_ratio)} to {format_ratio(overhead.high_ratio)}"
    steps = f"{format_count(overhead.shadow_steps)} shadow steps"
    return f"costs {format_ratio(overhead.ratio)} of a step ({interval}, {steps})"
