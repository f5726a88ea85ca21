"""Whole jobs on the GPUs of this machine, judged by their reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from benchmarks.gpu_check.check_result import CheckResult, NotHere
from benchmarks.gpu_check.collective_values import (
    compare_kernels,
    count_backward,
    find_stride,
    find_timed_ratio,
    find_worst_anchor_us,
)
from benchmarks.gpu_check.made_up import make_up
from benchmarks.report_file import read_report_file
from distprof.analyze import analyze
from distprof.facts.run import Run
from distprof.render.files.files import describe_plain
from distprof.storage.run_folder import read_run

LATE_MS, LATE_FROM = 50.0, 15
Value = Callable[[Any, Run, Path], float]


class Expected(Struct, frozen=True, kw_only=True):
    """A number of a job, and the range that it should be in."""

    name: str
    read: Value
    """From the report, as JSON, the run and its folder."""
    low: float
    high: float


class JobCheck(Struct, frozen=True, kw_only=True):
    """A job and what is expected of it."""

    name: str
    overrides: tuple[str, ...]
    expected: tuple[Expected, ...] = ()
    ranks: int = 1
    gpus: int = 1
    """It runs only where there are as many."""
    limit_s: float = 90.0


def _find_lateness_ms(report: Any, run: Run, folder: Path) -> float:
    forward_ms = run.column("forward_device_ns")[0] / 1e6
    return float(np.nanmedian(forward_ms[LATE_FROM + 1 :]) - np.nanmedian(forward_ms[5:LATE_FROM]))


def _expect(name: str, read: Value, low: float, high: float) -> Expected:
    return Expected(name=name, read=read, low=low, high=high)


def _of_run(read: Callable[[Run], float]) -> Value:
    return lambda report, run, folder: read(run)


ON_DEVICE = _expect(
    "the headline stands on the device", lambda report, *_: report["headline"]["clock"] == "device", 1, 1
)
COMPLETE = _expect("the report is complete", lambda report, *_: report["coverage"]["complete"], 1, 1)
MFU = _expect("MFU", lambda report, *_: report["headline"]["mfu_ratio"] or 0.0, 0.02, 1.0)
COLLECTIVES = (
    _expect("collectives timed, of all in sampled steps", _of_run(find_timed_ratio), 1, 1),
    _expect("collectives that end before they begin", _of_run(count_backward), 0, 0),
    _expect("widest bound of the device's clock, us", _of_run(find_worst_anchor_us), 0, 50),
)
STRIDE = _expect("from one sampled step to the next", _of_run(find_stride), 1, 16)
KERNELS = _expect(
    "off NCCL's kernels, in units of 2 % or 20 us", lambda report, run, folder: compare_kernels(run, folder), 0, 1
)
LATE = ("inject.rank=0", "inject.phase=forward", f"inject.delay_ms={LATE_MS:g}", f"inject.from_step={LATE_FROM}")
NAMED = _expect("the verdict names the rank that is late", lambda report, *_: report["verdict"]["rank"] == 1, 1, 1)
SLOW_DATA = ("inject.rank=1", "inject.phase=data", "inject.delay_ms=200")
ON_GPU_1 = ("inject.rank=1", "inject.phase=forward", "inject.delay_ms=50", "inject.where=device")
EVERY = "profile.collectives=1"
JOBS = (
    JobCheck(
        name="DDP with a kernel window", overrides=("train=gpt2_small", "train.steps=20", "profile=kernels", EVERY),
        expected=(COMPLETE, ON_DEVICE, MFU, *COLLECTIVES, KERNELS),
    ),
    JobCheck(
        name="the device is late", overrides=("train=gpt2_tiny", "train.steps=30", *LATE, "inject.where=device"),
        # While the device spins the host gets ahead, so that the gaps between a tiny model's kernels go.
        expected=(_expect("forward is later by 50 ms, ms", _find_lateness_ms, 0.94 * LATE_MS, 1.03 * LATE_MS),),
    ),
    JobCheck(
        name="FSDP2", overrides=("train=gpt2_small", "strategy=fsdp", "train.steps=10", EVERY),
        expected=(COMPLETE, ON_DEVICE, *COLLECTIVES),
    ),
    JobCheck(
        name="compiled", overrides=("train=gpt2_small", "train.compile=true", "train.steps=15"),
        expected=(COMPLETE, ON_DEVICE), limit_s=120.0,
    ),
    JobCheck(
        name="forward alone", overrides=("train=gpt2_tiny", "strategy=single", "train.mode=forward", "train.steps=200"),
        expected=(COMPLETE, ON_DEVICE),
    ),
    JobCheck(
        name="two ranks share a GPU", overrides=("train=gpt2_tiny", "train.steps=40", "backend=gloo", *SLOW_DATA),
        expected=(COMPLETE, NAMED), ranks=2,
    ),
    JobCheck(
        name="DDP over NCCL, the host late", overrides=("train=gpt2_small", "train.steps=40", *SLOW_DATA),
        expected=(COMPLETE, ON_DEVICE, NAMED, STRIDE), ranks=2, gpus=2,
    ),
    JobCheck(
        name="DDP over NCCL, the device late", overrides=("train=gpt2_small", "train.steps=40", *ON_GPU_1),
        expected=(COMPLETE, ON_DEVICE, NAMED), ranks=2, gpus=2,
    ),
    JobCheck(
        name="DDP over NCCL, a kernel window",
        overrides=("train=gpt2_small", "train.steps=20", "profile=kernels", EVERY),
        expected=(COMPLETE, ON_DEVICE, *COLLECTIVES, KERNELS), ranks=2, gpus=2,
    ),
    JobCheck(
        name="FSDP2 over NCCL",
        overrides=("train=gpt2_small", "strategy=fsdp", "train.steps=10", "profile=kernels", EVERY),
        expected=(COMPLETE, ON_DEVICE, *COLLECTIVES, KERNELS), ranks=2, gpus=2,
    ),
)  # fmt: skip


def check_job(job: JobCheck, folder: Path, *, dry: bool) -> Iterator[CheckResult]:
    """Runs a job into a new folder and judges it; ``dry``: judges a simulated one instead."""
    if dry:
        run = make_up(folder)
        report = json.loads(json.dumps(describe_plain(analyze(run))))
    else:
        ended, said = _run(write_command(job, folder), folder.with_suffix(".log"), job.limit_s)
        yield CheckResult(name=f"{job.name}: exit code", value=float(ended), low=0, high=0, note=said if ended else "")
        if ended:
            return
        run, report = read_run(folder), read_report_file(folder / "report.json")
    for item in job.expected:
        name = f"{job.name}: {item.name}"
        try:
            value = float(item.read(report, run, folder))
        except NotHere as reason:
            yield CheckResult(name=name, value=None, low=item.low, high=item.high, skipped=True, note=str(reason))
        else:
            yield CheckResult(name=name, value=value, low=item.low, high=item.high)


def _run(command: list[str], log: Path, limit_s: float) -> tuple[int, str]:
    """Runs a command with all that it starts; returns its exit code and the first line of it that names an error.

    Raises:
        subprocess.TimeoutExpired: It was ended.
    """
    with log.open("w+", errors="replace") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True
        )
        try:
            process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        file.seek(0)
        lines = [line.strip() for line in file if "Error" in line or line.startswith("distprof: ")]
    return process.returncode, next(iter(lines), "")[:200]


def write_command(job: JobCheck, folder: Path) -> list[str]:
    """The command line of a job."""
    launch: Sequence[str] = ()
    if job.ranks > 1:
        launch = ("torch.distributed.run", "--standalone", f"--nproc-per-node={job.ranks}", "-m")
    return [sys.executable, "-m", *launch, "distprof", "logger=none", f"run_dir={folder}", *job.overrides]
