"""Where did a difference go? Parts in whole nanoseconds that sum to it exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from distprof.analyze.compare.measure_figures import EXPOSED, TRANSFERS, WAITS
from distprof.report.comparison_report import RunFigures, WaterfallPart

REST = "in no phase"
"""What the phases of a step do not add up to."""
ROUNDING_RATIO = 1e-8
"""Of the step: baselines have nine digits."""


def make_waterfall(base: Sequence[RunFigures], new: Sequence[RunFigures]) -> list[WaterfallPart]:
    """The parts of the step on both sides, and what each adds to the difference of the mean steps, rounded to ns.

    Waits and transfers stay together where some run does not tell them apart. Empty: the phases of some run are not
    known, or the sides were timed on different clocks.
    """
    runs = [*base, *new]
    parts = [_read_parts(run) for run in runs]
    if not all(parts) or len({run.step.clock for run in runs}) > 1:
        return []
    if any(EXPOSED in each for each in parts):
        parts = [_join_exposed(each) for each in parts]
    names = list(dict.fromkeys(name for each in parts for name in each))
    before, after = parts[: len(base)], parts[len(base) :]
    old = {name: sum(each.get(name, 0.0) for each in before) / len(before) for name in names}
    now = {name: sum(each.get(name, 0.0) for each in after) / len(after) for name in names}
    whole = [sum(run.step.mean.value_ns for run in side) / len(side) for side in (base, new)]
    rest = [whole[0] - sum(old.values()), whole[1] - sum(now.values())]
    if max(map(abs, rest)) >= max(1.0, ROUNDING_RATIO * max(whole)):
        old[REST], now[REST] = rest
    total_ns = round(whole[1]) - round(whole[0])
    shares = allocate([now[name] - old[name] for name in old], total_ns)
    return [
        WaterfallPart(name=name, base_ns=old[name], new_ns=now[name], difference_ns=share)
        for name, share in zip(old, shares, strict=True)
    ]


def allocate(values: Sequence[float], total: int) -> list[int]:
    """Whole numbers that sum to a total, each as near to its value as that allows: what is left after rounding down
    goes to those with the largest remainders."""
    floors = [math.floor(value) for value in values]
    order = sorted(range(len(values)), key=lambda index: (floors[index] - values[index], index))
    left = total - sum(floors)
    every, some = divmod(left, len(values)) if values else (0, 0)
    chosen = set(order[:some])
    return [floor + every + (index in chosen) for index, floor in enumerate(floors)]


def _read_parts(run: RunFigures) -> dict[str, float]:
    return {figure.name: figure.mean.value_ns for figure in run.figures if figure.scope == "part"}


def _join_exposed(parts: Mapping[str, float]) -> dict[str, float]:
    joined = {name: value for name, value in parts.items() if name not in (WAITS, TRANSFERS, EXPOSED)}
    together = sum(parts.get(name, 0.0) for name in (WAITS, TRANSFERS, EXPOSED))
    return {**joined, EXPOSED: together} if together else joined
