"""The cost of recording, in words."""

from __future__ import annotations

from distprof.facts.run import Clock
from distprof.render.units import NOT_MEASURED, format_count, format_ratio
from distprof.report.wait_report import OverheadReport


def describe_overhead(overhead: OverheadReport | None) -> str:
    """The cost with its interval: ``costs 0.4 % of a step (0 % to 1.1 %, 12 shadow steps)``.

    If recording costs nothing, noise makes the measured ratio negative half of the time; that is shown as 0.
    """
    if overhead is None:
        return f"{NOT_MEASURED}: too few shadow steps (profile.shadow_every)"
    steps = f"{format_count(overhead.shadow_steps)} shadow steps"
    steps += ", device clock" if overhead.clock == Clock.DEVICE else ""
    if overhead.high_ratio <= 0:
        return f"costs nothing measurable ({steps})"
    cost, low = (format_ratio(max(value, 0.0)) for value in (overhead.ratio, overhead.low_ratio))
    return f"costs {cost} of a step ({low} to {format_ratio(overhead.high_ratio)}, {steps})"
