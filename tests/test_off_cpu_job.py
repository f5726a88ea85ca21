"""A rank that shares its core with busy processes: from files of the kernel that are made up, and for real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from distprof.analyze import analyze
from distprof.config.schema import ProfileConfig
from distprof.profiler.job.run_files import JobPlan
from distprof.profiler.rank.build_profiler import start_profiler
from distprof.record.hosts.scheduling import SchedulingWatch
from distprof.render.sections.verdict import describe_verdict
from distprof.report.scheduling_report import OffCpuReason
from distprof.report.wait_report import Cause, VerdictKind
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import rank_path, read_run, write_meta
from distprof.world import World
from tests.analyze.causes.test_off_cpu import make_job
from tests.factories import MS
from tests.ranks import call_on_ranks
from tests.record.hosts.test_scheduling import make_stat, write

STEPS = 240


def test_from_the_kernels_files_to_the_verdict(tmp_path: Path) -> None:
    """Rank 1 is on its core for 60 ms of each step, and waits for it for 12 ms; rank 0 never waits."""
    run = make_job({}, {})
    write_meta(tmp_path, run.meta)
    (tmp_path / "ranks").mkdir()
    for rank, info in enumerate(run.ranks):
        writer = StreamWriter(rank_path(tmp_path, rank), run_id=run.meta.run_id, world_size=2, info=info)
        proc, clock_ns = tmp_path / f"proc-{rank}", list[int]()
        watch = SchedulingWatch(proc, proc, affinity={7: {rank}}.__getitem__, now_ns=clock_ns.pop)
        for step in range(run.rows.shape[1]):
            writer.write_steps([run.rows[rank, step]], [None])
            if step % 5:
                continue
            clock_ns.append(int(run.column("begin_host_ns")[rank, step] + run.column("step_host_ns")[rank, step]))
            write(proc / "self/task/7/schedstat", f"{60 * MS * step} {12 * MS * step * rank} 9\n")
            for path in ("self/stat", "self/task/7/stat"):
                write(proc / path, make_stat(ticks=2 + 6 * step))
            reading = watch.read(7)
            assert reading is not None
            writer.write_scheduling(reading)
        writer.write_end("completed", error=None, traceback=None, rows_lost=0, notes=[])
        writer.close()
    report = analyze(read_run(tmp_path))
    assert (report.verdict.rank, report.verdict.cause) == (1, Cause.OFF_CPU)
    assert report.verdict.off_cpu is not None and report.verdict.off_cpu.reason is OffCpuReason.OTHERS
    sentence = "its training thread was off the CPU for 12.0 ms of each step (other processes run on its 1 core;"
    assert sentence in describe_verdict(report)


def train_on_one_core_each(world: World, runs_dir: str) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[world.rank]})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * world.rank)]
    try:
        profile = ProfileConfig(
            level="phases", nvtx=False, nvtx_module_depth=0, window_s=0.25, shadow_every=0, max_overhead_ratio=None
        )
        plan = JobPlan(name="shared core", strategy="ddp", precision="fp32", config={}, runs_dir=runs_dir)
        job = start_profiler(world, plan, profile, print_line=lambda text: None)
        square = torch.randn(256, 256)
        for step in range(STEPS):
            with job.profiler.step(warmup=step < 3):
                with job.profiler.phase("forward"):
                    for _ in range(30):
                        square = torch.tanh(square @ square)
                dist.all_reduce(torch.ones(1))
        job.profiler.close()
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat") or len(os.sched_getaffinity(0)) < 2, reason="needs schedstat, two cores"
)
def test_a_rank_that_shares_its_core_with_busy_processes_is_named(tmp_path: Path) -> None:
    call_on_ranks(2, train_on_one_core_each, str(tmp_path), tmp_path=tmp_path)
    report = analyze(read_run(next(path.parent for path in tmp_path.glob("*/run.json"))))
    verdict = report.verdict
    assert (verdict.kind, verdict.rank, verdict.cause) == (VerdictKind.SLOW_RANK, 1, Cause.OFF_CPU), report
    assert verdict.off_cpu is not None and verdict.late_ns is not None
    assert verdict.off_cpu.reason is OffCpuReason.OTHERS and verdict.off_cpu.cores == 1
    assert 0.5 * verdict.late_ns < verdict.off_cpu.wait_ns
    assert "off the CPU" in describe_verdict(report)
