"""A job of the bench ``links``: what it is, and running it by a launcher on each host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.links.two_namespaces import ADDRESSES, DEVICE, enter, join_hosts
from distprof.errors import DistprofError

HEALTHY_MBIT = 10_000.0
GIGABIT_MBIT = 1_000.0
RANKS_PER_HOST = 2
LATE_RANK = 3
RING_BYTES = 3.4e6
"""About what each rank of four sends in a step of gpt2_tiny: 2 x 3/4 of its gradients."""
DELAY_RATIO = 0.6
"""Of the time that these need on the link: how late the rank is ..."""
LEAST_DELAY_MS = 100
"""... at least."""
START_S = 120.0
STEPS_FACTOR = 5.0
"""A job that takes so many times as long as its steps need, and its start, has hung."""
WARMUP_STEPS = 3


class LinkJob(Struct, frozen=True, kw_only=True):
    """One job."""

    mbit_per_s: float | None
    """What the link between its hosts carries. None: one host."""
    steps: int
    """Measured ones."""
    late: bool
    """Whether a rank of the far host is late."""
    same_name: bool
    """Whether both hosts have the same name."""
    clock_ahead_s: int

    @property
    def is_healthy(self) -> bool:
        """Whether no link is slow."""
        return self.mbit_per_s is None or self.mbit_per_s >= GIGABIT_MBIT

    @property
    def link_name(self) -> str:
        """In a few words."""
        return "one host" if self.mbit_per_s is None else f"{self.mbit_per_s:g} Mbit/s"

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.link_name.replace('/', ' ').replace(' ', '-')}-{self.steps}{'-late' if self.late else ''}"

    @property
    def needed_s(self) -> float:
        """What a step's bytes need on the link."""
        return 0.0 if self.mbit_per_s is None else RING_BYTES / (self.mbit_per_s * 1e6 / 8)

    @property
    def delay_ms(self) -> int:
        """How late the rank is in every step."""
        return max(LEAST_DELAY_MS, round(1000 * DELAY_RATIO * self.needed_s))


def run_link_job(job: LinkJob, folder: Path) -> Path:
    """Runs a job, and returns its run folder.

    Args:
        job: The job.
        folder: Where its files go; must not exist.

    Raises:
        DistprofError: It failed, or hung.
    """
    folder.mkdir(parents=True)
    arguments = _list_arguments(job, folder / "run")
    limit_s = START_S + STEPS_FACTOR * (job.steps + WARMUP_STEPS) * (job.needed_s + job.delay_ms / 1000 + 0.2)
    if job.mbit_per_s is None:
        launch = ["--standalone", "--nproc-per-node", str(2 * RANKS_PER_HOST)]
        _wait([_start([*_launch(launch), *arguments], folder, {})], folder, limit_s)
        return folder / "run"
    with join_hosts(job.mbit_per_s) as namespaces, contextlib.ExitStack() as stack:
        launchers = []
        for host, namespace in enumerate(namespaces):
            ahead = ["--time", "--monotonic", str(job.clock_ahead_s), "--fork"] if host and job.clock_ahead_s else []
            begin = enter(namespace, None if job.same_name else f"host-{'ab'[host]}", ahead)
            places = ["--nnodes", "2", "--node-rank", str(host), "--nproc-per-node", str(RANKS_PER_HOST)]
            meeting = ["--master-addr", ADDRESSES[0], "--master-port", "29500"]
            command = [*begin, *_launch([*places, *meeting]), *arguments]
            launchers.append(_start(command, folder / str(host), {"GLOO_SOCKET_IFNAME": DEVICE}))
            stack.callback(launchers[-1].kill)
        _wait(launchers, folder, limit_s)
    return folder / "run"


def _list_arguments(job: LinkJob, run: Path) -> list[str]:
    late = [f"inject.rank={LATE_RANK}", "inject.phase=data", f"inject.delay_ms={job.delay_ms}"] if job.late else []
    train = ["train=gpt2_tiny", f"train.steps={job.steps}", f"train.warmup_steps={WARMUP_STEPS}"]
    return [*train, "logger=none", "hardware.peak=none", *late, f"run_dir={run}"]


def _launch(places: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *places, "-m", "distprof"]


def _start(command: Sequence[str], folder: Path, more: dict[str, str]) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    with (folder / "log").open("w") as output:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


def _wait(launchers: Sequence[subprocess.Popen[bytes]], folder: Path, limit_s: float) -> None:
    try:
        codes = [launcher.wait(limit_s) for launcher in launchers]
    except subprocess.TimeoutExpired as error:
        for launcher in launchers:
            launcher.kill()
        raise DistprofError(f"{folder}: the job did not end within {limit_s:.0f} s") from error
    if any(codes):
        raise DistprofError(f"{folder}: the job failed; its hosts' output is in */log")
