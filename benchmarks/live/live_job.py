"""The jobs of the bench ``live``: six training loops, and one delay in each job, both drawn by chance. No torch
here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from distprof.facts.run import Phase, Stretch
from distprof.report.wait_report import VerdictKind

RARE_EVERY = 7
RARE_RATIO = 0.2
"""Share of the delays that act in few steps only, as the garbage collector does."""
RARE_PLACES = ("forward", "backward", "optimizer")
STALL_EVERY = 10
"""A rank that stalls does so in one judged step of so many, drawn at random ..."""
STALL_RATIO = 0.2
"""... for twice the usual step, which is so much of all steps."""
EVALUATE_EVERY, CHECKPOINT_EVERY = 5, 10
LOCAL_STEPS = 4
"""Of local SGD, from one averaging of parameters to the next."""


class Answer(Struct, frozen=True, kw_only=True):
    """What a report may name; ``rank`` and ``phase`` are None where the kind has none."""

    kind: VerdictKind
    rank: int | None
    phase: str | None


class LoopFacts(Struct, frozen=True, kw_only=True):
    """What is known about one of the loops before it runs."""

    phases: Mapping[str, Phase | Stretch]
    """Where a delay can be put, and what distprof calls the time that is lost there."""
    own: tuple[Answer, ...] = ()
    """What holds this loop up without any delay; to name it is right."""
    steps: int = 1
    """Steps of a turn, at whose end ranks wait for each other. Each gets its share of the delay."""


_STEP: dict[str, Phase | Stretch] = {
    "data": Phase.DATA, "forward": Phase.FORWARD, "module hook": Phase.FORWARD, "backward": Phase.BACKWARD,
    "gradient hook": Phase.BACKWARD, "optimizer": Phase.OPTIMIZER, "between steps": Stretch.BETWEEN,
}  # fmt: skip
_BUCKETS: dict[str, Phase | Stretch] = {
    "hook of the first bucket": Phase.BACKWARD, "hook of the last bucket": Phase.BACKWARD,
    "hook older than the profiler": Phase.BACKWARD,
}  # fmt: skip
_SAVES = Answer(kind=VerdictKind.SLOW_RANK, rank=0, phase=Stretch.CHECKPOINT)
_UNEQUAL = Answer(kind=VerdictKind.UNEQUAL_DATA, rank=None, phase=None)
LOOPS: dict[str, LoopFacts] = {
    "accumulation": LoopFacts(phases=_STEP | _BUCKETS),
    "fsdp": LoopFacts(phases=_STEP | {"gradient norm": Phase.GRAD_NORM}),
    "two_models": LoopFacts(phases=_STEP | _BUCKETS),
    "evaluation": LoopFacts(
        phases=_STEP | {"evaluation": Stretch.EVALUATION, "checkpoint": Stretch.CHECKPOINT}, own=(_SAVES,)
    ),
    "unequal": LoopFacts(phases=_STEP, own=(_UNEQUAL,)),
    "local_sgd": LoopFacts(phases=_STEP, steps=LOCAL_STEPS),
}
"""By name; `benchmarks.live.loops` has a file for each."""
_EVERY = {"evaluation": EVALUATE_EVERY, "checkpoint": CHECKPOINT_EVERY}


class LiveDelay(Struct, frozen=True, kw_only=True):
    """What holds one rank up."""

    rank: int
    place: str
    """A key of ``LoopFacts.phases``."""
    every: int
    """It acts in the steps whose number divides by this ..."""
    spins: bool
    """It computes, as slow code does; otherwise it sleeps, as a loader does that waits for its disk."""
    stalls: bool = False
    """... or in as many judged steps that are drawn at random."""


class LiveJob(Struct, frozen=True, kw_only=True):
    """One job."""

    loop: str
    num_ranks: int
    steps: int
    """Judged steps, or turns of a loop whose turns have several; so are the pairs."""
    pairs: int
    """Pairs of steps with and without the delay that measure its cost. 0 without a delay."""
    seed: int
    size_ratio: float
    """Length of the delay relative to the step, mean over steps; 0: there is none."""
    delay: LiveDelay | None

    @property
    def name(self) -> str:
        """Unique within a bench, and fit for a folder."""
        size = "stalls" if self.stalls else f"{1000 * self.size_ratio:03.0f}"
        return f"{self.loop}-{size}-{self.seed}"

    @property
    def stalls(self) -> bool:
        """Whether its delay acts in steps drawn at random."""
        return self.delay is not None and self.delay.stalls

    @property
    def answers(self) -> tuple[str, ...]:
        """The phases that are right for its delay."""
        return () if self.delay is None else (str(LOOPS[self.loop].phases[self.delay.place]),)


def draw_job(loop: str, size_ratio: float | None, *, num_ranks: int, steps: int, pairs: int, seed: int) -> LiveJob:
    """Draws the rank, the place and the manner of a delay.

    Args:
        loop: A key of `LOOPS`.
        size_ratio: Length of the delay relative to the step; 0: none. None: a rank stalls in steps drawn at random.
        num_ranks: Processes of the job.
        steps: Judged steps.
        pairs: Pairs of steps with and without the delay.
        seed: Of everything that is drawn here and in the job.
    """
    draws = np.random.default_rng(seed)
    stalls = size_ratio is None
    size_ratio = STALL_RATIO if size_ratio is None else size_ratio
    late = _draw_stalls(num_ranks, draws) if stalls else _draw_delay(loop, num_ranks, draws) if size_ratio else None
    return LiveJob(
        loop=loop, num_ranks=num_ranks, steps=steps, pairs=pairs if late else 0, seed=seed, size_ratio=size_ratio,
        delay=late,
    )  # fmt: skip


def _draw_stalls(num_ranks: int, draws: np.random.Generator) -> LiveDelay:
    places = tuple(_STEP)  # in every loop
    return LiveDelay(
        rank=int(draws.integers(num_ranks)), place=places[int(draws.integers(len(places)))], every=STALL_EVERY,
        spins=bool(draws.integers(2)), stalls=True,
    )  # fmt: skip


def _draw_delay(loop: str, num_ranks: int, draws: np.random.Generator) -> LiveDelay:
    rare = draws.random() < RARE_RATIO
    places = RARE_PLACES if rare else tuple(LOOPS[loop].phases)
    place = places[int(draws.integers(len(places)))]
    rank = int(draws.integers(num_ranks))
    return LiveDelay(
        rank=0 if place == "checkpoint" else rank,  # the only one that saves
        place=place, every=RARE_EVERY if rare else _EVERY.get(place, 1), spins=bool(draws.integers(2)),
    )  # fmt: skip
