"""What recording may cost: rank 0 watches it while the job runs, and has every rank stop when it costs too much."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from distprof.analyze.overhead import StepCosts, compare_steps, read_costs
from distprof.render.overhead import describe_overhead
from distprof.report import OverheadReport
from distprof.run import FloatArray

MIN_SHADOW_STEPS = 8
"""Fewer do not decide, however clear they look."""
MAX_KEPT_STEPS = 4096
LOOK_AGAIN_RATIO = 1.5
"""How many times as many shadow steps there must be before the next look: each look is a chance to be wrong."""


class Budget:
    """The latest steps of the job, and whether recording them was sure to cost too much. Bounded in memory."""

    def __init__(self, limit_ratio: float, exceeded: Callable[[OverheadReport], None]) -> None:
        """Watches from the first step on.

        Args:
            limit_ratio: The largest cost allowed, as a share of the step.
            exceeded: Called once, when the interval's lower end is above that.
        """
        self._limit_ratio, self._exceeded = limit_ratio, exceeded
        self._steps: deque[tuple[float, bool, bool]] = deque(maxlen=MAX_KEPT_STEPS)
        self._shadows, self._next_look = 0, MIN_SHADOW_STEPS
        self._over = False

    def add(self, rows: FloatArray) -> None:
        """Takes new whole steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""
        costs = read_costs(rows)
        self._steps.extend(zip(costs.step_ns.tolist(), costs.shadow.tolist(), costs.plain.tolist(), strict=True))
        self._shadows += int(costs.shadow.sum())
        if self._over or self._shadows < self._next_look:
            return
        self._next_look = round(self._shadows * LOOK_AGAIN_RATIO)
        step_ns, shadow, plain = zip(*self._steps, strict=True)
        overhead = compare_steps(StepCosts(step_ns=np.array(step_ns), shadow=np.array(shadow), plain=np.array(plain)))
        if overhead is None or overhead.shadow_steps < MIN_SHADOW_STEPS:
            return
        if overhead.low_ratio > self._limit_ratio:
            self._over = True
            self._exceeded(overhead)


def keep_budget(
    limit_ratio: float | None,
    *,
    stop: Callable[[], None],
    say: Callable[[str], None],
    on_steps: Callable[[FloatArray], None] | None,
) -> Callable[[FloatArray], None] | None:
    """On rank 0: what gets the whole steps of the job, with the budget looking on.

    Args:
        limit_ratio: The largest cost allowed, as a share of the step. None: whatever it costs.
        stop: Has every rank stop recording phases.
        say: Says a line to the user.
        on_steps: Who gets the steps besides.
    """
    if limit_ratio is None:
        return on_steps

    def exceed(overhead: OverheadReport) -> None:
        stop()
        say(f"distprof: recording {describe_overhead(overhead)}: {describe_stop(limit_ratio)}")

    budget = Budget(limit_ratio, exceed)

    def take(rows: FloatArray) -> None:
        budget.add(rows)
        if on_steps is not None:
            on_steps(rows)

    return take


def describe_stop(limit_ratio: float | None) -> str:
    """Why the later steps of a run have no phases."""
    return f"more than profile.max_overhead_ratio={limit_ratio}; later steps are timed, and their phases not recorded"
