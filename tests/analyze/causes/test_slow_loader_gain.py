"""Simulated loaders: the right cause is named, and its gain is what really adding the workers gains."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.analyze.causes.slow_loader import BRINGING_NS
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Run
from distprof.report.wait_report import VerdictKind
from tests.factories import MS, make_run

STEPS, WARMUP, PREFETCH = 160, 20, 2


class Job(NamedTuple):
    """Times of each rank and step, ``[num_ranks, STEPS]``, ns."""

    work_ns: FloatArray
    """For all but its batch."""
    fetch_ns: FloatArray
    """For a batch, of a worker or, without workers, of the rank."""


class Played(NamedTuple):
    """What comes of a job with a number of workers, by rank and step."""

    waits_ns: FloatArray
    ready: FloatArray
    step_ns: FloatArray


def draw_job(seed: int, workers: int, load: float) -> Job:
    """Loaders that need ``load`` times as long for a batch as the rest of a step; without workers, as well."""
    draws = np.random.default_rng(seed)
    shape = (int(draws.integers(2, 5)), STEPS)
    work_ns = draws.uniform(20, 80) * MS * draws.normal(1, 0.02, shape).clip(0.9, 1.1)
    fetch_ns = load * max(workers, 1) * work_ns.mean() * draws.uniform(0.9, 1.1, shape)
    return Job(work_ns, fetch_ns)


def play(job: Job, workers: int, brought_ns: float = 0.0) -> Played:
    """Batches are made in order, by the workers in turn, each a few ahead; all ranks meet at the end of a step."""
    waits_ns, ready, step_ns = np.zeros_like(job.work_ns), np.zeros_like(job.work_ns), np.zeros_like(job.work_ns)
    asked_ns = np.zeros((len(job.work_ns), STEPS + PREFETCH * max(workers, 1)))
    done_ns, now_ns = np.full(job.work_ns.shape, np.inf), 0.0
    for step in range(STEPS):
        arrivals_ns = []
        for rank, (work_ns, fetch_ns) in enumerate(zip(job.work_ns, job.fetch_ns, strict=True)):
            begun = min(step + PREFETCH * workers, STEPS)
            for batch in range(step, begun):
                free_ns = done_ns[rank, batch - workers] if batch >= workers else 0.0
                done_ns[rank, batch] = max(free_ns, asked_ns[rank, batch]) + fetch_ns[batch]
            ready[rank, step] = (done_ns[rank, step:begun] <= now_ns).sum()
            waited_ns = max(done_ns[rank, step] - now_ns, 0.0) if workers else fetch_ns[step]
            asked_ns[rank, step + PREFETCH * workers] = now_ns + waited_ns
            waits_ns[rank, step] = waited_ns
            arrivals_ns.append(now_ns + waited_ns + brought_ns + work_ns[step])
        step_ns[:, step] = max(arrivals_ns) - now_ns
        now_ns = max(arrivals_ns)
    return Played(waits_ns, ready, step_ns)


def record(job: Job, workers: int) -> Run:
    """As ranks would record it."""
    played = play(job, workers)
    own_ns = {"data": played.waits_ns, "forward": job.work_ns}
    late_ns = played.step_ns - played.waits_ns - job.work_ns
    columns: dict[str, Any] = {
        "data_loader_host_ns": played.waits_ns, "between_loader_host_ns": 0, "between_data_loader_host_ns": 0,
        "loader_batches": 1, "loader_ready": played.ready, "loader_unpinned": 0, "loader_workers": workers,
        "loader_prefetch": PREFETCH if workers else 0, "worker_batches": 1, "worker_host_ns": job.fetch_ns,
        "worker_collate_host_ns": 0, "worker_cpu_ns": job.fetch_ns / 10,
    }  # fmt: skip
    return make_run(
        num_ranks=len(job.work_ns), num_steps=STEPS, num_warmup=WARMUP, host_ns={**own_ns, "all_reduce": late_ns},
        columns=columns,
    )  # fmt: skip


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_gain_is_what_the_workers_that_are_advised_gain(seed: int, workers: int) -> None:
    load = np.random.default_rng(seed).uniform(1.1, 2.5) if workers else 0.4
    job = draw_job(seed, workers, load)
    report = analyze(record(job, workers))
    verdict = report.verdict
    assert verdict.kind is VerdictKind.SLOW_LOADER and verdict.lost_ratio is not None and verdict.loader is not None
    assert verdict.loader.workers_needed is not None
    before = play(job, workers).step_ns[0, WARMUP:].mean()
    after = play(job, verdict.loader.workers_needed, 0.0 if workers else BRINGING_NS)
    assert verdict.lost_ratio.value == pytest.approx(1 - after.step_ns[0, WARMUP:].mean() / before, abs=0.02)
    assert after.waits_ns[:, WARMUP:].mean() < 0.01 * before


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_loaders_that_keep_up_are_no_cause(seed: int, workers: int) -> None:
    report = analyze(record(draw_job(seed, workers, 0.8), workers))
    assert report.causes is not None
    assert VerdictKind.SLOW_LOADER not in [cause.kind for cause in report.causes.causes]
