"""The jobs of the bench ``parallel``, and what a report may say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

PROGRAMS_FOLDER = Path(__file__).with_name("programs")
RANKS, MICRO_BATCHES = 4, 8
PASS_NS = 12e6
"""Of a micro-batch on a layer, forward and backward, as in the programs."""
PLACES = ("forward", "backward", "data")
NOBODY_KINDS = ("none", "jitter", "communication")


class ParallelProgram(Struct, frozen=True, kw_only=True):
    """One of the programs."""

    script: str
    arguments: Sequence[str] = ()
    stages: int = 1
    """Of a replica; ranks are numbered replica by replica."""
    rounds: float = MICRO_BATCHES
    """How many passes of a micro-batch follow each other in a step."""
    loading: Sequence[int] = tuple(range(RANKS))
    """Ranks that wait for nobody before they have data: a delay there is one of the step."""

    @property
    def step_ns(self) -> float:
        """About how long a step takes."""
        return self.rounds * PASS_NS


def _schedule(name: str, rounds: float) -> ParallelProgram:
    return ParallelProgram(
        script="schedules", arguments=("--schedule", name), stages=RANKS, rounds=rounds, loading=(0,)
    )


PROGRAMS: Mapping[str, ParallelProgram] = {
    "1f1b": _schedule("Schedule1F1B", MICRO_BATCHES + 3),
    "gpipe": _schedule("ScheduleGPipe", MICRO_BATCHES + 3),
    "interleaved": _schedule("ScheduleInterleaved1F1B", 2 * MICRO_BATCHES + 3),
    "zero_bubble": _schedule("ScheduleInterleavedZeroBubble", 2 * MICRO_BATCHES + 3),
    "folded": _schedule("ScheduleZBVZeroBubble", 2 * MICRO_BATCHES + 3),
    "by_hand": ParallelProgram(script="by_hand", stages=RANKS, rounds=MICRO_BATCHES + 3, loading=(0,)),
    "replicas": ParallelProgram(script="replicas", stages=2, rounds=MICRO_BATCHES + 1, loading=(0, 2)),
    "mesh": ParallelProgram(script="mesh"),
    "experts": ParallelProgram(script="experts", rounds=2 * MICRO_BATCHES),
}


class ParallelJob(Struct, frozen=True, kw_only=True):
    """A program with one cause, or none."""

    program: str
    cause: str
    """A place of `PLACES`, "uneven" or "nobody"."""
    size_ratio: float = 0.0
    """Of a delay, over the step."""
    rank: int = 0
    """That is delayed; of an uneven stage, the stage; of uneven experts, the one that gets more tokens."""
    steps: int = 80

    def list_arguments(self) -> list[str]:
        """Those of the program."""
        program = PROGRAMS[self.program]
        found = [str(PROGRAMS_FOLDER / f"{program.script}.py"), *program.arguments, "--steps", str(self.steps)]
        if self.cause in PLACES:
            return [*found, "--delay", f"{self.rank}:{self.cause}:{self.size_ratio * program.step_ns / 1e9:.6f}"]
        if self.cause == "uneven":
            count = program.stages if program.stages > 1 else RANKS
            more = ["2" if each == self.rank else "1" for each in range(count)]
            return [*found, "--layers", ",".join(more)]
        return found


class ParallelOutcome(Struct, frozen=True, kw_only=True):
    """What a report says about a job, and whether that is so."""

    job: ParallelJob
    where: bool
    """The rank is named; of an uneven stage, it; of a single replica, the stage that has more to do or is slow."""
    phase: bool
    false: bool
    """Somebody is named who is not to blame."""
    told: str


def judge(job: ParallelJob, report: Mapping[str, Any]) -> ParallelOutcome:
    """Compares ``report.json`` with what was done."""
    program, verdict = PROGRAMS[job.program], report["verdict"]
    place = verdict.get("pipeline_cause")
    cause = None if place is None else report["pipeline"]["causes"][place]
    named = verdict["kind"] not in NOBODY_KINDS
    stage = None if cause is None else cause["stage"]
    if job.cause == "uneven":
        where = verdict["kind"] == "uneven_stage" and stage == job.rank
        where = where if program.stages > 1 else verdict["kind"] == "unequal_data"
        return _make(job, verdict, cause, where=where, phase=where, false=named and not where)
    single = program.stages == RANKS and cause is not None and cause["alone"] and stage == job.rank
    where = job.cause in PLACES and named and (verdict["rank"] == job.rank or single)
    what = "" if cause is None else cause["what"]
    phase = where and (verdict["phase"] == job.cause or what.startswith(job.cause))
    return _make(job, verdict, cause, where=where, phase=phase, false=named and not where)


def _make(
    job: ParallelJob, verdict: Mapping[str, Any], cause: Mapping[str, Any] | None, **found: bool
) -> ParallelOutcome:
    more = "" if cause is None else f" stage {cause['stage']} {cause['what']}"
    cost = verdict["lost_ratio"]
    told = f"{verdict['kind']} rank {verdict['rank']} {verdict['phase']}{more}"
    told += "" if cost is None else f", costs {100 * cost['value']:.1f} %"
    told = f"{told}: {verdict['reason']}" if verdict["kind"] in NOBODY_KINDS else told
    return ParallelOutcome(job=job, told=told, **found)


def draw_jobs(programs: Sequence[str], sizes: Sequence[float], runs: int, steps: int, seed: int) -> list[ParallelJob]:
    """As many jobs of each program with a delay of each size in each place, with an uneven stage, and with nobody slow;
    in an order drawn by chance."""
    draws = np.random.default_rng(seed)
    found = []
    for name in list(programs) * runs:
        program = PROGRAMS[name]
        for size_ratio in sizes:
            for place in PLACES:
                ranks = program.loading if place == "data" else range(RANKS)
                rank = int(draws.choice(np.array(ranks)))
                found.append(ParallelJob(program=name, cause=place, size_ratio=size_ratio, rank=rank, steps=steps))
        if name != "mesh":
            count = program.stages if program.stages > 1 else RANKS
            found.append(ParallelJob(program=name, cause="uneven", rank=int(draws.integers(count)), steps=steps))
        found.append(ParallelJob(program=name, cause="nobody", steps=steps))
    return [found[place] for place in draws.permutation(len(found))]
