"""The overhead budget: rank 0 watches what recording costs, and stops it on every rank when it costs too much.

Stopping for no reason is worse than recording for a while at too high a cost, so the evidence must be strong, however
often it is checked and whatever else disturbs the steps. It rests on randomness that distprof creates itself: any step
of a turn could have been its shadow step (see `ShadowPlan`). If recording costs no more than is allowed, a shadow step
lengthened by that much is shorter than the median of its turn in at most half of the turns, however steps vary, drift
or depend on each other. A bet against that multiplies its stake by more than 200 with a probability of at most 1 in
200 over the whole job, whenever one looks (Ville's inequality). Recording stops when it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from distprof.analyze.stats.overhead import StepCosts, compare_steps, read_costs
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, Clock
from distprof.profiler.rank.recorded_steps import describe_stop
from distprof.report.wait_report import OverheadReport

MAX_FALSE_RATIO = 0.005
"""Largest share of jobs that are stopped although recording costs no more than is allowed. Of 3,000 simulated jobs of
500 turns that cost exactly that (independent noise of 2, 10 and 30 %, noise of 20 % that lasts for 20 steps, bursts of
other work, periodic steps), 7 were stopped; of 3,000 without any cost, 1."""
STAKES = (0.2, 0.4, 0.6, 0.8, 0.95)
"""Shares of the capital bet on the next turn: low ones find costs that show in some turns, high ones in nearly all."""
MAX_KEPT_STEPS = 4096


class BudgetEvidence:
    """Evidence that recording costs more than is allowed: the capital of bets that are fair while it does not.

    With 3 % allowed, a cost of 10 % is certain after 11 turns if steps vary by 2 %. If they vary by 10 %, it takes 49
    turns in the median of 500 simulated jobs (113 in 95 % of them); if other work triples some steps, 36 (83).
    Periodic steps whose variation exceeds the cost hide it: those jobs go on.
    """

    def __init__(self) -> None:
        self._capital = [0.0] * len(STAKES)
        self._turns = 0

    def add(self, *, quicker: bool) -> None:
        """Adds whether a turn's shadow step, lengthened by what is allowed, was quicker than the median of the turn.

        Part of the initial capital enters at every turn, so that a late cost is seen too; the parts sum to 1.
        """
        self._turns += 1
        entering = 1 / (self._turns * (self._turns + 1))
        sign = 1 if quicker else -1
        pairs = zip(self._capital, STAKES, strict=True)
        self._capital = [(capital + entering) * (1 + sign * stake) for capital, stake in pairs]

    @property
    def sure(self) -> bool:
        """Whether chance alone would get this far in at most `MAX_FALSE_RATIO` of the jobs."""
        return sum(self._capital) / len(STAKES) >= 1 / MAX_FALSE_RATIO


class Budget:
    """The latest steps of the job, and whether recording them certainly costs too much. Bounded in memory."""

    def __init__(
        self, limit_ratio: float, every: int, exceeded: Callable[[OverheadReport], None], *, clock: Clock = Clock.HOST
    ) -> None:
        """Watches from the first step.

        Args:
            limit_ratio: The largest cost allowed, as a share of the step.
            every: Steps per turn, one of them a shadow step; 0: no shadow steps, and the budget is never exceeded.
            exceeded: Called once, when recording certainly costs more.
            clock: Of the steps; of a job on GPUs the device's.
        """
        self._limit_ratio, self._every, self._exceeded, self._clock = limit_ratio, every, exceeded, clock
        self._steps: deque[tuple[float, bool, bool]] = deque(maxlen=MAX_KEPT_STEPS)
        self._turn, self._shadow_ns, self._plain_ns = -1, list[float](), list[float]()
        self._evidence = BudgetEvidence()
        self._over = False

    def add(self, rows: FloatArray) -> None:
        """Takes new whole steps in order, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""
        if self._over or not self._every:
            return
        costs = read_costs(rows, self._clock)
        steps = zip(costs.step_ns.tolist(), costs.shadow.tolist(), costs.plain.tolist(), strict=True)
        for number, (step_ns, shadow, plain) in zip(rows[0, :, COLUMN["step"]].tolist(), steps, strict=True):
            if number // self._every != self._turn:
                self._close_turn()
                self._turn = number // self._every
            self._steps.append((step_ns, shadow, plain))
            if shadow or plain:
                (self._shadow_ns if shadow else self._plain_ns).append(step_ns)

    def _close_turn(self) -> None:
        shadow_ns, plain_ns = self._shadow_ns, sorted(self._plain_ns)
        self._shadow_ns, self._plain_ns = [], []
        if len(shadow_ns) == 1 and plain_ns and not self._over:
            middle_ns = plain_ns[(len(plain_ns) - 1) // 2]  # the lower median, or chance alone would win too often
            self._evidence.add(quicker=shadow_ns[0] * (1 + self._limit_ratio) < middle_ns)
            if self._evidence.sure:
                self._over = True
                self._report_overhead()

    def _report_overhead(self) -> None:
        step_ns, shadow, plain = zip(*self._steps, strict=True)
        overhead = compare_steps(
            StepCosts(clock=self._clock, step_ns=np.array(step_ns), shadow=np.array(shadow), plain=np.array(plain))
        )
        if overhead is not None:
            self._exceeded(overhead)


def keep_budget(
    limit_ratio: float | None,
    *,
    every: int,
    clock: Clock,
    stop: Callable[[], None],
    print_line: Callable[[str], None],
    on_steps: Callable[[FloatArray], None] | None,
) -> Callable[[FloatArray], None] | None:
    """On rank 0: wraps the receiver of whole steps so that the budget sees them too.

    Args:
        limit_ratio: The largest cost allowed, as a share of the step. None: any cost.
        every: Steps per turn, one of them a shadow step.
        clock: Of the steps; of a job on GPUs the device's.
        stop: Stops the recording of phases on every rank.
        print_line: Says a line to the user.
        on_steps: Another receiver of the steps.
    """
    if limit_ratio is None:
        return on_steps

    def exceed(overhead: OverheadReport) -> None:
        from distprof.render.sections.coverage import describe_overhead  # here, as no job starts by needing it

        stop()
        print_line(f"distprof: recording {describe_overhead(overhead)}: {describe_stop(limit_ratio)}")

    budget = Budget(limit_ratio, every, exceed, clock=clock)

    def take(rows: FloatArray) -> None:
        budget.add(rows)
        if on_steps is not None:
            on_steps(rows)

    return take
