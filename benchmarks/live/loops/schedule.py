"""Which steps a job of the bench ``live`` makes: warm-up, pairs, judged steps, pairs again.

The truth about a delay is measured in the process that is judged, in pairs of steps with and without it, in an order
drawn by chance. Half of the pairs run before the judged steps and half after, so that a machine that becomes slower or
faster at a constant pace cancels; what the two halves differ by bounds the rest (`live_truth.estimate_cost`). The pairs
run under the profiler as the judged steps do, and are marked as warm-up, which every statistic leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from benchmarks.live.live_job import LiveDelay, LiveJob

WARMUP, CALIBRATION = 4, 8


class Turn(Struct, frozen=True, kw_only=True):
    """One step, or several where ranks wait for each other only after so many."""

    number: int
    """Decides on the step's data and on what is done every so many steps; the steps of a pair have the same."""
    part: str
    """"warm-up", "calibration", "judged", or "pair 0" and "pair 1", which are the halves."""
    delayed: bool
    """The delay may act: it does if it acts in steps of this number."""

    @property
    def warmup(self) -> bool:
        """Whether the profiler is told to leave it out."""
        return self.part != "judged"


def plan_turns(job: LiveJob) -> list[Turn]:
    """The steps of a job, the same on every rank."""
    draws = np.random.default_rng(job.seed)
    calm = [Turn(number=number, part="warm-up", delayed=False) for number in range(1, WARMUP + 1)]
    timed = [Turn(number=number, part="calibration", delayed=False) for number in range(1, CALIBRATION + 1)]
    first, delayed = int(draws.integers(1, 100)), job.delay is not None
    acting = _draw_acting(job, draws, first)
    judged = [
        Turn(number=number, part="judged", delayed=delayed and (not job.stalls or number in acting))
        for number in range(first, first + job.steps)
    ]
    # The delay of a judged step may lie after its last collective, where the next step already rules.
    after = Turn(number=first + job.steps, part="warm-up", delayed=delayed and not job.stalls)
    numbers = _draw_numbers(job, draws, acting)
    before = job.pairs // 2
    return [
        *calm, *timed, *_draw_pairs(draws, 0, numbers[:before]), *judged, after,
        *_draw_pairs(draws, 1, numbers[before:]),
    ]  # fmt: skip


def find_acting_ratio(job: LiveJob) -> float:
    """Share of the judged steps in which the delay acts."""
    if job.delay is None:
        return 0.0
    acting = [acts_in(job.delay, turn) for turn in plan_turns(job) if turn.part == "judged"]
    return float(np.mean(acting))


def acts_in(delay: LiveDelay, turn: Turn) -> bool:
    """Whether the delay acts in a step."""
    return turn.delayed and (delay.stalls or turn.number % delay.every == 0)


def _draw_acting(job: LiveJob, draws: np.random.Generator, first: int) -> list[int]:
    """The numbers of judged steps in which the delay acts."""
    every = 1 if job.delay is None else job.delay.every
    count = max(job.steps // every, 1)
    if job.stalls:
        return sorted((first + draws.permutation(job.steps)[:count]).tolist())
    return [-(-first // every) * every + every * index for index in range(count)]


def _draw_numbers(job: LiveJob, draws: np.random.Generator, acting: Sequence[int]) -> list[int]:
    """One per pair, spread over the judged steps in which the delay acts: so a delay that is hidden where a rank has
    little data is hidden as often in the pairs."""
    rounds = -(-job.pairs // len(acting))
    shuffled = [draws.permutation(np.array(acting)) for _ in range(rounds)]
    return [int(number) for number in np.concatenate([np.zeros(0), *shuffled])[: job.pairs]]


def _draw_pairs(draws: np.random.Generator, half: int, numbers: Sequence[int]) -> Iterator[Turn]:
    for number in numbers:
        first = bool(draws.integers(2))
        for delayed in (first, not first):
            yield Turn(number=number, part=f"pair {half}", delayed=delayed)
