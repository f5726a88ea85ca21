"""Plays a job on made-up devices under real recorders, and makes the run that they write."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from benchmarks.simulate.device import SimulatedDevice
from benchmarks.simulate.device_job import DeviceJob
from benchmarks.simulate.device_play import SECOND_NS, PlayedRank, find_offset, find_step_ns, play
from distprof.facts.run import ClockReading, DeviceSnapshot, Peak, RankInfo, Run, RunMeta
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import rank_path, read_run, write_meta

if TYPE_CHECKING:
    from distprof.record.step.recorder import Recorder

COST_STEPS = 12
"""The first steps of a job, which are played again without its faults."""
CLOCK_BOUND_NS = 20_000


class DeviceRun(Struct, frozen=True, kw_only=True):
    """What a job's recorders wrote, and what really happened."""

    job: DeviceJob
    ranks: list[PlayedRank]
    run: Run
    base_ns: float
    """A step with nobody late."""
    late_cost_ns: float
    """How much longer a step is because a rank is late."""
    link_cost_ns: float
    """The same, because of the slow link."""
    synchronised: int
    """How often a host waited for its device because the recorder asked for something."""


class _Host:
    """In place of a torch device: the memory in use is the host's."""

    type = "cpu"


def play_and_record(job: DeviceJob) -> DeviceRun:
    """Plays a job and records it; how late its late rank is follows from how long a step takes with nobody late."""
    short = job.without_late().cut(COST_STEPS)
    base_ns = find_step_ns(short, play(short))
    job = job.be_late(base_ns)
    ranks = play(job, _make_recorder)
    first_ns = find_step_ns(job.cut(COST_STEPS), ranks)
    link_cost_ns = 0.0
    if job.link is not None:
        healthy = job.without_link().cut(COST_STEPS)
        link_cost_ns = first_ns - find_step_ns(healthy, play(healthy))
    synchronised = sum(rank.device.synchronised for rank in ranks)
    with tempfile.TemporaryDirectory(prefix="distprof-bench-") as folder:
        _write(Path(folder), job, ranks)
        run = read_run(Path(folder))
    return DeviceRun(
        job=job, ranks=ranks, run=run, base_ns=base_ns, late_cost_ns=first_ns - base_ns if job.late else 0.0,
        link_cost_ns=link_cost_ns, synchronised=synchronised,
    )  # fmt: skip


def _make_recorder(job: DeviceJob, device: SimulatedDevice, now_ns: Callable[[], int]) -> Recorder:
    from distprof.record.step.recorder import Recorder  # loads torch

    return Recorder(now_ns=now_ns, device=device, num_events=job.num_events, every=job.every)


def _write(folder: Path, job: DeviceJob, ranks: list[PlayedRank]) -> None:
    from distprof.record.gather.step_writer import StepWriter  # loads torch

    (folder / "ranks").mkdir()
    write_meta(folder, _describe_job(job, ranks))
    for rank in ranks:
        writer = StreamWriter(
            rank_path(folder, rank.rank), run_id="made-up", world_size=job.num_ranks, info=_describe_rank(job, rank)
        )
        step_writer = StepWriter(
            recorder=rank.recorder, writer=writer, device=_Host(), warn=_refuse,  # type: ignore[arg-type]
        )  # fmt: skip
        step_writer.take(wait=True)
        step_writer.end("completed")


def _refuse(message: str) -> None:
    raise OSError(message)


def _describe_job(job: DeviceJob, ranks: list[PlayedRank]) -> RunMeta:
    over_ns = max(rank.device.clock.now for rank in ranks)
    readings = tuple(
        ClockReading(
            rank=rank.rank, at_ns=at_ns, offset_ns=find_offset(job, rank.host),
            bound_ns=CLOCK_BOUND_NS if rank.host else 0,
        )
        for at_ns in (SECOND_NS, over_ns) for rank in ranks
    )  # fmt: skip
    return RunMeta(
        run_id="made-up", name="made-up", started_utc=None, world_size=job.num_ranks, backend="nccl",
        device_type="cuda", strategy=job.strategy, precision="bf16", work=None, versions={}, git=None, config={},
        clock_readings=readings,
    )  # fmt: skip


def _describe_rank(job: DeviceJob, rank: PlayedRank) -> RankInfo:
    local = rank.rank % job.ranks_per_host
    return RankInfo(
        rank=rank.rank, local_rank=local, host=f"host-{rank.host}", pid=1000 + rank.rank, device=f"cuda:{local}",
        snapshot=DeviceSnapshot(name="made-up"), peak=Peak(flops_per_s=None, source="made-up"),
    )  # fmt: skip
