"""What recording may cost: rank 0 watches it while the job runs, and has every rank stop when it costs too much.

A job that is stopped for nothing is worse than one that is recorded for a while at too high a cost, so the evidence
must be strong, however often it is looked at and whatever else disturbs the steps. It comes from chance that distprof
made itself: any step of a turn could have been its shadow step (see `distprof.profiler.shadow`). If recording costs no
more than is allowed, a shadow step made longer by that much is shorter than the middle of its turn once in two turns at
most, however steps vary, drift or depend on each other. Whoever bets on more than that multiplies his stake beyond 200
with a chance of 1 in 200 at most, in the whole job, at whatever moment he looks (Ville's inequality). That is when
recording stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from distprof.analyze.overhead import StepCosts, compare_steps, read_costs
from distprof.facts.run import COLUMN, FloatArray
from distprof.render.overhead import describe_overhead
from distprof.report.report import OverheadReport

MAX_FALSE_RATIO = 0.005
"""Jobs that are stopped though recording costs no more than is allowed, at most. Of 3,000 simulated jobs of 500 turns
that cost just that, with independent noise of 2, 10 and 30 %, noise of 20 % that lasts for 20 steps, bursts of other
work and steps in a rhythm, 7 were; of as many without a cost 1."""
STAKES = (0.2, 0.4, 0.6, 0.8, 0.95)
"""Shares of the capital that are bet on the next turn, for costs that show in some turns only, and in nearly all."""
MAX_KEPT_STEPS = 4096


class BudgetEvidence:
    """How sure it is that recording costs more than is allowed: the capital of bets that are fair while it does not.

    A cost of 10 % where 3 % are allowed is sure after 11 turns if steps vary by 2 %, and in the middle of 500 simulated
    jobs after 49 if they vary by 10 % (95 % of the jobs: 113), after 36 (83) where other work triples some steps.
    Steps in a rhythm that is larger than the cost hide it: those jobs go on.
    """

    def __init__(self) -> None:
        """Nothing has been seen."""
        self._capital = [0.0] * len(STAKES)
        self._turns = 0

    def add(self, *, quicker: bool) -> None:
        """Takes whether a turn's shadow step, made longer by what is allowed, was quicker than the middle of the turn.

        A part of the first capital enters at every turn, so that a cost that comes late is seen; the parts sum to 1.
        """
        self._turns += 1
        entering = 1 / (self._turns * (self._turns + 1))
        sign = 1 if quicker else -1
        pairs = zip(self._capital, STAKES, strict=True)
        self._capital = [(capital + entering) * (1 + sign * stake) for capital, stake in pairs]

    @property
    def sure(self) -> bool:
        """Whether chance alone would get as far in `MAX_FALSE_RATIO` of the jobs only."""
        return sum(self._capital) / len(STAKES) >= 1 / MAX_FALSE_RATIO


class Budget:
    """The latest steps of the job, and whether recording them was sure to cost too much. Bounded in memory."""

    def __init__(self, limit_ratio: float, every: int, exceeded: Callable[[OverheadReport], None]) -> None:
        """Watches from the first step on.

        Args:
            limit_ratio: The largest cost allowed, as a share of the step.
            every: Length of a turn that has one shadow step, steps; 0: there are none, and nothing is ever exceeded.
            exceeded: Called once, when it is sure that recording costs more.
        """
        self._limit_ratio, self._every, self._exceeded = limit_ratio, every, exceeded
        self._steps: deque[tuple[float, bool, bool]] = deque(maxlen=MAX_KEPT_STEPS)
        self._turn, self._shadow_ns, self._plain_ns = -1, list[float](), list[float]()
        self._evidence = BudgetEvidence()
        self._over = False

    def add(self, rows: FloatArray) -> None:
        """Takes new whole steps in order, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""
        if self._over or not self._every:
            return
        costs = read_costs(rows)
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
            middle_ns = plain_ns[(len(plain_ns) - 1) // 2]  # of two the shorter, or chance would do it too often
            self._evidence.add(quicker=shadow_ns[0] * (1 + self._limit_ratio) < middle_ns)
            if self._evidence.sure:
                self._over = True
                self._tell()

    def _tell(self) -> None:
        step_ns, shadow, plain = zip(*self._steps, strict=True)
        overhead = compare_steps(StepCosts(step_ns=np.array(step_ns), shadow=np.array(shadow), plain=np.array(plain)))
        if overhead is not None:
            self._exceeded(overhead)


def keep_budget(
    limit_ratio: float | None,
    *,
    every: int,
    stop: Callable[[], None],
    say: Callable[[str], None],
    on_steps: Callable[[FloatArray], None] | None,
) -> Callable[[FloatArray], None] | None:
    """On rank 0: what gets the whole steps of the job, with the budget looking on.

    Args:
        limit_ratio: The largest cost allowed, as a share of the step. None: whatever it costs.
        every: Length of a turn that has one shadow step, steps.
        stop: Has every rank stop recording phases.
        say: Says a line to the user.
        on_steps: Who gets the steps besides.
    """
    if limit_ratio is None:
        return on_steps

    def exceed(overhead: OverheadReport) -> None:
        stop()
        say(f"distprof: recording {describe_overhead(overhead)}: {describe_stop(limit_ratio)}")

    budget = Budget(limit_ratio, every, exceed)

    def take(rows: FloatArray) -> None:
        budget.add(rows)
        if on_steps is not None:
            on_steps(rows)

    return take


def describe_stop(limit_ratio: float | None) -> str:
    """Why the later steps of a run have no phases."""
    return f"more than profile.max_overhead_ratio={limit_ratio}; later steps are timed, and their phases not recorded"
