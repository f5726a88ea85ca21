"""What a row is, and what its jobs are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.simulate import Clocks, Delay, SimulatedJob
from distprof.facts.run import Part, Phase, Stretch

IN_STEP: tuple[Part, ...] = (
    Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.OPTIMIZER, Phase.OTHER,
)  # fmt: skip
ANYWHERE: tuple[Part, ...] = (*IN_STEP, Stretch.BETWEEN)
APART = Clocks(offset_ns=3e9, drift_ratio=20e-6, bound_ns=20_000)
"""Of jobs on several hosts."""

Draws = np.random.Generator


class Row(Struct, frozen=True, kw_only=True):
    """Jobs of one kind."""

    name: str
    group: str
    make: Callable[[Draws, int], SimulatedJob]
    """From random numbers and the number of steps."""
    share_ratio: float = 1.0
    """Of the jobs asked for: large jobs take long."""
    hidden: bool = False
    """There is a delay, but it costs nothing: nobody is to be named."""

    def draw(self, seed: int, num_steps: int) -> tuple[SimulatedJob, int]:
        """A job and the seed to simulate it with. Jobs with even seeds are played by simple rules, the others by shared
        ones."""
        draws = np.random.default_rng([seed, *self.name.encode()])
        job = self.make(draws, num_steps)
        job = replace(job, num_steps=num_steps, rules="simple" if seed % 2 == 0 else "shared")
        return job, int(draws.integers(2**31))


def make_plain(strategy: str, num_ranks: int = 8, num_hosts: int = 1, **others: Any) -> SimulatedJob:
    """A job in which nobody is slow: 2 % of jitter, and in one step of 12 some rank takes three times as long."""
    fields: dict[str, Any] = {
        "tail_share_ratio": 0.08 / max(num_ranks, 8),
        "clocks": APART if num_hosts > 1 else Clocks(),
    }
    fields["probe_spread_ratio"] = 0.05
    if strategy == "hsdp" and num_hosts > 1:
        fields["shard_size"] = num_ranks // num_hosts
    return SimulatedJob(
        strategy=strategy,  # type: ignore[arg-type]
        num_ranks=num_ranks, ranks_per_host=-(-num_ranks // num_hosts), **{**fields, **others},
    )  # fmt: skip


def find_step(job: SimulatedJob) -> float:
    """About how long a step takes, ns."""
    passes = 1 / job.num_buckets if job.strategy == "ddp" else 3
    between_ns = sum(item.own_ns / item.every for item in job.between)
    return sum(job.phase_ns.values()) + passes * job.transfer_ns + between_ns


def draw_size(draws: Draws, low: float = 0.03, high: float = 0.25) -> float:
    """A share of the step; its logarithm is uniform."""
    return float(np.exp(draws.uniform(np.log(low), np.log(high))))


def pick(draws: Draws, choices: tuple[Part, ...]) -> Part:
    """One of them."""
    return choices[int(draws.integers(len(choices)))]


def draw_delay(draws: Draws, job: SimulatedJob, parts: tuple[Part, ...] = ANYWHERE, **others: Any) -> Delay:
    """A random rank is slow in a random part of every step."""
    size = draw_size(draws)
    fields: dict[str, Any] = {
        "rank": int(draws.integers(job.num_ranks)), "phase": pick(draws, parts), "delay_ns": size * find_step(job),
    }  # fmt: skip
    return Delay(**{**fields, **others})


def add(job: SimulatedJob, *delays: Delay) -> SimulatedJob:
    """The job with these delays too."""
    return replace(job, delays=(*job.delays, *delays))
