"""The collectives of a whole job, from the ranks to the run read back, and the same losses as without distprof."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distprof.config.schema import ProfileConfig
from distprof.facts.run import Clock, CollectiveKind, Phase, Run
from distprof.profiler.job.run_files import JobPlan
from distprof.profiler.rank.build_profiler import Job, start_profiler
from distprof.storage.run_folder import read_run
from distprof.world import World
from tests.ranks import call_on_ranks

WARMUP, STEPS, WIDTH = 3, 5, 32


def start_job(world: World, runs_dir: str, level: str) -> Job:
    return start_profiler(
        world, JobPlan(name=level, strategy="ddp", precision="fp32", config={}, runs_dir=runs_dir),
        ProfileConfig(
            level=level, nvtx=False, nvtx_module_depth=0, window_s=0.05, shadow_every=0, max_overhead_ratio=None  # type: ignore[arg-type]
        ),
        print_line=lambda text: None,
    )  # fmt: skip


def train(world: World, job: Job, group: dist.ProcessGroup) -> list[float]:
    """Two micro-steps, the first without synchronisation, then a mean of the losses in a group made by the user."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.002)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(world.rank)
    profiler, losses = job.profiler, []
    profiler.watch(model)
    for step in range(WARMUP + STEPS):
        with profiler.step(warmup=step < WARMUP):
            for last in (False, True):
                with contextlib.nullcontext() if last else model.no_sync():
                    with profiler.phase("forward"):
                        loss = model(torch.randn(8, WIDTH, generator=generator)).square().mean()
                    with profiler.phase("backward"):
                        loss.backward()
            with profiler.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=group)
            losses.append(float(mean))
    return losses


def run_both(world: World, runs_dir: str) -> None:
    group = dist.new_group([0, 1], group_desc="metrics")
    losses = []
    for level in ("off", "phases"):
        job = start_job(world, runs_dir, level)
        losses.append(train(world, job, group))
        job.profiler.close()
    assert losses[0] == losses[1]  # to the last bit
    if world.rank == 0:
        check(read_run(job.folder))


def check(run: Run) -> None:
    assert run.warnings == () and [info.notes for info in run.ranks] == [(), ()]
    measured = [table for table in run.collectives if set(table.steps.tolist()) >= {*range(WARMUP, WARMUP + STEPS)}]
    buckets, metrics = sorted(measured, key=lambda table: table.group)
    assert buckets.group == "default" and metrics.group.startswith("metrics ")
    assert (buckets.size, buckets.ranks.tolist(), metrics.ranks.tolist()) == (2, [0, 1], [0, 1])
    assert sum(buckets.sizes_bytes) == 3 * 4 * (WIDTH * WIDTH + WIDTH) and len(buckets.kinds) > 1
    assert set(buckets.phases) == {Phase.BACKWARD} and metrics.phases == (Phase.OTHER,)
    assert metrics.kinds == (CollectiveKind.ALL_REDUCE,) and metrics.sizes_bytes == (4,)
    for table in (buckets, metrics):
        assert not np.isnan(table.end_ns).any() and np.all(table.end_ns.min(axis=0) >= table.arrival_ns.max(axis=0))
        steps = run.column("begin_host_ns")[:, table.steps], run.column("step_host_ns")[:, table.steps]
        assert np.all(table.arrival_ns >= steps[0][..., None])
        assert np.all(table.end_ns <= (steps[0] + steps[1])[..., None])
    exposed = buckets.exposed_ns[:, :, -1]
    np.testing.assert_array_equal(run.column("all_reduce_host_ns")[:, buckets.steps], exposed)
    np.testing.assert_array_equal(
        run.column("all_reduce_exposed_host_ns")[:, buckets.steps],
        exposed + metrics.exposed_ns[:, np.searchsorted(metrics.steps, buckets.steps), 0],
    )
    np.testing.assert_array_equal(run.column("other_wait_host_ns")[:, metrics.steps], metrics.exposed_ns[:, :, 0])
    assert np.all(run.wait_ns(Clock.HOST)[:, :, :3] == 0)


def test_a_jobs_collectives_come_back_and_its_losses_stay(tmp_path: Path) -> None:
    call_on_ranks(2, run_both, str(tmp_path / "runs"), tmp_path=tmp_path)
