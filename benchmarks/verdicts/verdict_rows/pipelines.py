"""Rows of pipeline-parallel jobs, which are judged by their operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.simulate.pipeline_job import PipelineJob
from benchmarks.verdicts.verdict_rows.row import Draws, draw_size
from distprof.facts.operations import Kind

STAGES = (2, 3, 4, 6, 8)
REPLICAS = (2, 3, 4)
PARTS = ((Kind.FORWARD, Kind.BACKWARD), (Kind.FORWARD,), (Kind.BACKWARD,))


class PipelineRow(Struct, frozen=True, kw_only=True):
    """Jobs of one kind, as `benchmarks.verdicts.verdict_rows.row.Row` for those of data parallelism."""

    name: str
    group: str
    make: Callable[[Draws, PipelineJob], PipelineJob]
    """Adds the faults to a plain job."""
    share_ratio: float = 1.0
    shape: tuple[int, int] | None = None
    """Replicas and stages; None: drawn."""

    def draw(self, seed: int, num_steps: int) -> PipelineJob:
        """A job. With even seeds it is played by simple rules, with odd ones by rules of their own."""
        draws = np.random.default_rng([seed, *self.name.encode()])
        replicas, stages = int(draws.choice(REPLICAS)), int(draws.choice(STAGES))
        replicas, stages = self.shape or (replicas, stages)
        plain = PipelineJob(
            replicas=replicas, stages=stages, micro_batches=int(draws.integers(stages, 3 * stages + 1)),
            steps=num_steps, gpipe=bool(draws.integers(2)), rules="simple" if seed % 2 == 0 else "shared",
            transfer_ns=float(draws.choice([0.3e6, 1e6, 3e6])), noise_ratio=float(draws.choice([0.01, 0.03])),
            drift_ratio=float(draws.choice([0.003, 0.01])), seed=int(draws.integers(2**31)),
        )  # fmt: skip
        return self.make(draws, plain)


def _add_nothing(draws: Draws, job: PipelineJob) -> PipelineJob:
    return job


def _make_noisy(draws: Draws, job: PipelineJob) -> PipelineJob:
    return replace(job, noise_ratio=0.1, drift_ratio=0.03, spike_ratio=0.01)


def _add_slow(draws: Draws, job: PipelineJob) -> PipelineJob:
    place = int(draws.integers(job.replicas)), int(draws.integers(job.stages))
    kinds = PARTS[int(draws.integers(len(PARTS)))]
    return replace(job, slow={place: 1 + draw_size(draws, 0.1, 0.5)}, slow_kinds=kinds)


def _add_slow_replica(draws: Draws, job: PipelineJob) -> PipelineJob:
    place, factor = int(draws.integers(job.replicas)), 1 + draw_size(draws, 0.05, 0.3)
    return replace(job, slow={(place, stage): factor for stage in range(job.stages)})


def _add_uneven(draws: Draws, job: PipelineJob) -> PipelineJob:
    stage = int(draws.choice([0, job.stages - 1, int(draws.integers(job.stages))]))
    return replace(job, uneven={stage: 1 + draw_size(draws, 0.1, 0.5)})


def _add_both(draws: Draws, job: PipelineJob) -> PipelineJob:
    return _add_slow(draws, _add_uneven(draws, job))


def _add_lengths(draws: Draws, job: PipelineJob) -> PipelineJob:
    return replace(job, length_ratio=draw_size(draws, 0.1, 0.4))


def _add_long_steps(draws: Draws, job: PipelineJob) -> PipelineJob:
    replica, factor = int(draws.integers(job.replicas)), 1 + draw_size(draws, 0.2, 0.6)
    chosen = draws.permutation(job.steps)[: job.steps // 4].tolist()
    return replace(job, long_steps={(step, replica): factor for step in chosen})


def _add_slow_link(draws: Draws, job: PipelineJob) -> PipelineJob:
    link = int(draws.integers(job.stages - 1))
    of = int(draws.integers(job.replicas)) if job.stages == 2 else None
    return replace(job, transfer_ns=2e6, slow_links={link: float(draws.uniform(3, 12))}, slow_links_of=of)


def _add_collections(draws: Draws, job: PipelineJob) -> PipelineJob:
    return replace(job, collect_every=int(draws.integers(4, 12)), collect_ns=float(draws.uniform(50e6, 300e6)))


def _row(name: str, make: Callable[[Draws, PipelineJob], PipelineJob], **others: Any) -> PipelineRow:
    return PipelineRow(name=name, group="pipelines", make=make, **others)


PIPELINE_ROWS = (
    _row("pipe-nobody", _add_nothing),
    _row("pipe-1-replica-nobody", _add_nothing, shape=(1, 4)),
    _row("pipe-16-stages-nobody", _add_nothing, shape=(2, 16), share_ratio=0.2),
    _row("pipe-noisy-nobody", _make_noisy),
    _row("pipe-worker", _add_slow),
    _row("pipe-2-replicas-worker", _add_slow, shape=(2, 4)),
    _row("pipe-16-stages-worker", _add_slow, shape=(2, 16), share_ratio=0.2),
    _row("pipe-replica", _add_slow_replica),
    _row("pipe-stage", _add_uneven),
    _row("pipe-1-replica-stage", _add_uneven, shape=(1, 4)),
    _row("pipe-16-stages-stage", _add_uneven, shape=(2, 16), share_ratio=0.2),
    _row("pipe-stage-and-worker", _add_both, shape=(4, 4)),
    _row("pipe-sequences", _add_lengths),
    _row("pipe-long-steps", _add_long_steps),
    _row("pipe-link", _add_slow_link, shape=(2, 4)),
    _row("pipe-2-stages-link", _add_slow_link, shape=(4, 2)),
    _row("pipe-collections", _add_collections),
)  # fmt: skip
