"""Plays a job on made-up devices: all its ranks, recorded or not, with the truth of every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from benchmarks.simulate.device import HostClock, SimulatedDevice
from benchmarks.simulate.device_job import DeviceJob
from benchmarks.simulate.device_loop import Meetings, Unrecorded
from benchmarks.simulate.device_ranks import RankProgram, run_together
from benchmarks.simulate.device_strategies import LOOPS
from benchmarks.simulate.device_truth import TrueStep

SECOND_NS = 10**9
MakeRecorder = Callable[[DeviceJob, SimulatedDevice, Callable[[], int]], Any]
"""From a job, a device and its host's clock: `distprof.record.step.recorder.Recorder`."""


class PlayedRank(Struct, frozen=True, kw_only=True):
    """One rank when all steps are over."""

    rank: int
    host: int
    device: SimulatedDevice
    rate: float
    """Of its device's clock, against true time."""
    recorder: Any
    steps: list[TrueStep]


def play(job: DeviceJob, make_recorder: MakeRecorder | None = None) -> list[PlayedRank]:
    """Plays a job.

    Args:
        job: The job.
        make_recorder: Makes a rank's recorder. None: nothing records.
    """
    meetings, played, programs = Meetings(job), list[PlayedRank](), list[RankProgram]()
    for rank in range(job.num_ranks):
        host = rank // job.ranks_per_host
        clock = HostClock(SECOND_NS + 37 * rank)
        device = SimulatedDevice(
            clock, launch_ns=job.launch_ns, offset_ns=SECOND_NS * rank, drift_ppm=job.drift_ppm[rank],
            launch_queue=job.launch_queue,
        )  # fmt: skip
        recorder = Unrecorded()
        if make_recorder is not None:
            recorder = make_recorder(job, device, shift_clock(clock, find_offset(job, host)))
        loop = LOOPS[job.strategy](job, rank, device, recorder, meetings)
        programs.append(RankProgram(device, loop.streams, loop.run()))
        played.append(
            PlayedRank(
                rank=rank,
                host=host,
                device=device,
                rate=1 + job.drift_ppm[rank] * 1e-6,
                recorder=recorder,
                steps=loop.witness.steps,
            )
        )
    run_together(programs)
    return played


def find_offset(job: DeviceJob, host: int) -> int:
    """What a host's clock shows at true time 0, ns."""
    return 0 if host == 0 else int(np.random.default_rng([job.seed, 3, host]).uniform(0, 100) * SECOND_NS)


def shift_clock(clock: HostClock, offset_ns: int) -> Callable[[], int]:
    """A clock that shows another time."""
    return lambda: clock.now + offset_ns


def find_step_ns(job: DeviceJob, played: list[PlayedRank]) -> float:
    """Mean time of the job's steps after warm-up, from end to end on the devices, true ns.

    Args:
        job: The job, or only its first steps.
        played: The ranks, which may have played more.
    """
    first, last = job.num_warmup - 1, job.num_steps - 1
    return float(np.mean([(rank.steps[last].end_ns - rank.steps[first].end_ns) / (last - first) for rank in played]))
