"""Device clocks of ranks on two hosts, from the made-up devices through the files to times that can be compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from benchmarks.simulate.device import HostClock, SimulatedDevice, Stream
from benchmarks.simulate.device_ranks import Program, RankProgram, run_together
from benchmarks.simulate.device_work import DeviceWork, Meeting
from distprof.analyze.clocks.device_clock import map_device_clocks, report_device_clocks
from distprof.facts.run import ClockReading, CollectiveKind, Run
from distprof.record.gather.step_writer import StepWriter
from distprof.record.step.recorder import Recorder
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import rank_path, read_run, write_meta
from tests.factories import make_info, make_meta

US, MS, S = 10**3, 10**6, 10**9
NUM_STEPS, START_NS = 100, 86_400 * S
AHEAD_NS, BOUND_NS = 3 * S, 40 * US
"""Of the second host's clock, which runs at the same rate, and of its readings."""


class Rank:
    """A rank whose host runs up to four steps ahead; its device has an offset and a drift of its own."""

    def __init__(self, rank: int, meetings: list[Meeting], run_dir: Path) -> None:
        self.clock, self.ahead_ns = HostClock(START_NS), AHEAD_NS if rank == 2 else 0
        drift_ppm = (-30.0, 45.0, 10.0)[rank]
        self.device = SimulatedDevice(self.clock, launch_ns=2 * US, offset_ns=rank * 7 * S, drift_ppm=drift_ppm)
        self.recorder = Recorder(now_ns=lambda: self.clock.now + self.ahead_ns, device=self.device, every=1)
        info = make_info(rank, host="b" if rank == 2 else "a", device="cuda:0")
        self.writer = StreamWriter(rank_path(run_dir, rank), run_id="0123456789ab", world_size=3, info=info)
        self.network, self.begins, self.own_ns = Stream(self.device), list[DeviceWork](), (50 + 10 * rank) * MS
        self.program = RankProgram(self.device, [self.network, self.device.current_stream()], self.run(meetings))

    def run(self, meetings: list[Meeting]) -> Program:
        compute = self.device.current_stream()
        for step, meeting in enumerate(meetings):
            self.recorder.begin_step(step, warmup=False)
            self.begins.append(compute.tail)
            compute.launch(self.own_ns)
            self.network.wait_stream(compute)
            self.device.set_stream(self.network)
            ticket = self.recorder.begin_collective(CollectiveKind.ALL_REDUCE, 64, on_device=True)
            self.network.launch(0, meeting=meeting)
            self.recorder.end_on_device(ticket)
            self.device.set_stream(compute)
            compute.wait_stream(self.network)
            self.recorder.end_step()
            yield compute.tail if step % 4 == 3 else None

    def close(self) -> None:
        writer = StepWriter(recorder=self.recorder, writer=self.writer, device=torch.device("cpu"), warn=pytest.fail)
        writer.take(wait=True)
        self.writer.close()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Rank], Run]:
    """Three ranks and what they left on disk."""
    run_dir = tmp_path_factory.mktemp("run")
    (run_dir / "ranks").mkdir()
    meetings = [Meeting(3, 20 * MS) for _ in range(NUM_STEPS)]
    ranks = [Rank(rank, meetings, run_dir) for rank in range(3)]
    run_together([rank.program for rank in ranks])
    assert [rank.device.synchronised for rank in ranks] == [0, 0, 0]
    for rank in ranks:
        rank.close()
    readings = tuple(
        ClockReading(rank=rank, at_ns=at_ns, offset_ns=AHEAD_NS if rank == 2 else 0, bound_ns=BOUND_NS * (rank == 2))
        for at_ns in (START_NS, START_NS + 20 * S) for rank in range(3)
    )  # fmt: skip
    write_meta(run_dir, make_meta(world_size=3, clock_readings=readings))
    return ranks, read_run(run_dir)


def test_the_true_time_of_every_step_is_within_the_bound(job: tuple[list[Rank], Run]) -> None:
    ranks, run = job
    clocks, begins_ns = map_device_clocks(run), run.column("begin_device_ns")
    for position, rank in enumerate(ranks):
        true_ns = np.array([work.find_end() for work in rank.begins])
        found_ns = clocks.to_reference(position, begins_ns[position])
        bound_ns = clocks.worst_bound_ns(position, begins_ns[position].min(), begins_ns[position].max())
        assert np.abs(found_ns - true_ns).max() <= bound_ns < 10 * US + 2 * BOUND_NS * (position == 2)


def test_the_ends_of_collectives_agree_and_the_report_says_so(job: tuple[list[Rank], Run]) -> None:
    first, second, far = report_device_clocks(job[1])
    assert [item.drift_ratio for item in (first, second, far)] == pytest.approx([-30e-6, 45e-6, 10e-6], abs=1e-6)
    assert (first.agrees, second.agrees, far.agrees) == (None, True, True)
    assert second.end_gap_ns == pytest.approx(0, abs=3 * US) and far.end_gap_ns == pytest.approx(0, abs=3 * US)
    assert second.bound_ns == second.host_bound_ns
    assert far.bound_ns == pytest.approx((far.host_bound_ns or 0) + BOUND_NS, rel=0.3)
    assert min(item.anchors for item in (first, second, far)) >= 7 and not any(
        item.anchors_left_out for item in (first, second, far)
    )


def test_wrong_readings_of_a_hosts_clock_are_found_by_the_ends_of_collectives(job: tuple[list[Rank], Run]) -> None:
    run = job[1]
    readings = tuple(replace(item, offset_ns=item.offset_ns + 200 * US * (item.rank == 2))
                     for item in run.meta.clock_readings)  # fmt: skip
    _, second, far = report_device_clocks(replace(run, meta=replace(run.meta, clock_readings=readings)))
    assert second.agrees and far.agrees is False
    assert far.end_gap_ns == pytest.approx(-200 * US, abs=3 * US) and far.bound_ns == -far.end_gap_ns
