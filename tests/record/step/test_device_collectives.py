"""Single collectives on the device's streams: when a rank was ready, when they ended, and on which clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.device import HostClock, SimulatedDevice, Stream
from benchmarks.simulate.device_work import DeviceWork
from distprof.facts.run import COLUMN, PHASE_CODE, CollectiveKind, Phase
from distprof.record.gather.step_writer import StepWriter
from distprof.record.step.collective_log import CollectiveStride
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord
from distprof.storage.rank_stream import StreamWriter, read_stream
from tests.factories import make_info

US, MS = 1_000, 1_000_000
GATHER, BACKWARD = CollectiveKind.ALL_GATHER, PHASE_CODE[Phase.BACKWARD]


class Streams:
    """A rank with a compute stream and one for communication, and what truly happened."""

    def __init__(self, *, every: int | None = 1, num_events: int = 4096, **device: float) -> None:
        self.device = SimulatedDevice(HostClock(), **device)  # type: ignore[arg-type]
        self.recorder = Recorder(now_ns=self.device.clock, device=self.device, every=every, num_events=num_events)
        self.compute, self.network = self.device.current_stream(), Stream(self.device)
        self.begins: list[DeviceWork] = []
        self.truth: list[tuple[DeviceWork, DeviceWork]] = []

    def begin(self, step: int) -> None:
        self.recorder.begin_step(step, warmup=False)
        self.begins.append(self.compute.tail)

    def gather(self, lasts_ns: int) -> int:
        """As FSDP2 issues it: on a stream of its own, which waits for compute."""
        self.network.wait_stream(self.compute)
        before = self.device.set_stream(self.network)
        ticket = self.recorder.begin_collective(GATHER, 64, on_device=True)
        ready, work = self.network.tail, self.network.launch(lasts_ns)
        self.recorder.end_on_device(ticket)
        self.device.set_stream(before)
        self.truth.append((ready, work))
        return ticket

    def await_(self, ticket: int) -> None:
        self.recorder.mark(PHASE_CODE[Phase.ALL_GATHER], ticket)
        self.compute.wait_stream(self.network)
        self.recorder.resume()

    def finish(self, *said: str) -> list[StepRecord]:
        assert self.device.synchronised == 0
        records = self.recorder.drain(wait=True)
        notes = self.recorder.on_device.describe()
        assert len(notes) == len(said) and all(map(str.startswith, notes, said))
        return records


def test_a_gather_is_ready_ends_and_is_waited_for_where_it_truly_is() -> None:
    rank = Streams()
    rank.begin(0)
    rank.compute.launch(100 * US)
    ticket = rank.gather(300 * US)
    rank.compute.launch(120 * US)
    rank.await_(ticket)
    rank.compute.launch(50 * US)
    rank.recorder.end_step()
    (record,) = rank.finish()
    assert record.device_times is not None and record.begin_device_ns == 0
    (arrival_ns,), (end_ns,), (exposed_ns,), (left_ns,) = record.device_times
    assert (arrival_ns, end_ns, exposed_ns, left_ns) == pytest.approx((100 * US, 400 * US, 180 * US, 400 * US), abs=US)
    assert record.collectives is not None and record.collectives[0].end_ns is None  # the host does not see it


def test_a_collective_on_the_compute_stream_lasts_as_long_as_the_wait_for_it() -> None:
    rank = Streams()
    rank.begin(0)
    rank.compute.launch(100 * US)
    ticket = rank.recorder.begin_collective(GATHER, 64, on_device=True, apart=False)
    rank.recorder.wait(ticket)
    rank.compute.launch(70 * US)
    rank.recorder.resume()
    rank.recorder.end_on_device(ticket)
    rank.recorder.end_step()
    (record,) = rank.finish()
    assert record.device_times is not None
    times = [column[0] for column in record.device_times]
    assert times == pytest.approx((100 * US, 170 * US, 70 * US, 170 * US), abs=US)


def test_an_end_that_nobody_marks_is_known_only_if_compute_waited_for_it() -> None:
    rank = Streams()
    rank.begin(0)
    for computed_ns in (10 * US, 300 * US):
        ticket = rank.recorder.begin_collective(GATHER, 64, on_device=True, asynchronous=True)
        rank.network.launch(100 * US)
        rank.compute.launch(computed_ns)
        rank.await_(ticket)
    rank.recorder.end_step()
    (record,) = rank.finish()
    assert record.device_times is not None
    first, second = record.device_times.end_ns
    assert first == pytest.approx(100 * US, abs=US) and second is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 30 * US, 2 * MS])), min_size=1, max_size=30),
    st.sampled_from([-50.0, 0.0, 50.0]), st.sampled_from([0, 3 * MS]), st.integers(0, 10**12),
)  # fmt: skip
def test_the_device_clock_runs_on_from_step_to_step_with_all_collectives_on_it(
    steps: list[tuple[int, int]], drift_ppm: float, between_ns: int, offset_ns: int
) -> None:
    rank = Streams(drift_ppm=drift_ppm, offset_ns=offset_ns, launch_ns=US)
    numbers = []
    for step, (gathers, lasts_ns) in enumerate(steps):
        rank.begin(step)
        for _ in range(gathers):
            ticket = rank.gather(lasts_ns)
            rank.compute.launch(20 * US)
            rank.await_(ticket)
            numbers.append(step)
        rank.recorder.end_step()
        rank.compute.launch(between_ns)
    records, rate = rank.finish(), 1 + drift_ppm * 1e-6
    origin_ns = rank.begins[0].find_end()
    for record, begin in zip(records, rank.begins, strict=True):
        assert record.begin_device_ns == pytest.approx((begin.find_end() - origin_ns) * rate, abs=US)
        assert record.device_times is not None
    found = [
        (record.begin_device_ns or 0, arrival or 0, end or 0)
        for record in records
        for arrival, end in zip(*(record.device_times or ((), ()))[:2], strict=True)
    ]
    for (begin_ns, arrival_ns, end_ns), (ready, work) in zip(found, rank.truth, strict=True):
        for seen_ns, true in ((arrival_ns, ready), (end_ns, work)):
            assert begin_ns + seen_ns == pytest.approx((true.find_end() - origin_ns) * rate, abs=2 * US)


def test_both_clocks_are_read_at_the_end_of_a_step_about_once_a_second() -> None:
    rank = Streams(offset_ns=10**9, drift_ppm=50.0, launch_ns=US)
    for step in range(6):
        rank.begin(step)
        rank.compute.launch(600 * MS)
        rank.recorder.end_step()
        rank.device.clock.advance(500 * MS)
    origin_ns = rank.begins[0].find_end()
    anchors = [record.anchor for record in rank.finish()]
    assert [anchor is not None for anchor in anchors] == [True, False, True, False, True, False]
    for anchor in anchors:
        if anchor is not None:
            true_ns = origin_ns + anchor.device_ns / (1 + 50e-6)
            assert anchor.host_ns == pytest.approx(true_ns, abs=anchor.bound_ns + 2 * US) and anchor.bound_ns < 5 * US


def test_a_step_between_without_device_times_does_not_stop_the_clock() -> None:
    rank = Streams()
    for step in range(3):
        if step == 1:  # nothing may be asked of the device then
            rank.device.begin_capture()
        rank.begin(step)
        rank.compute.launch(MS)
        rank.recorder.end_step()
        if step == 1:
            rank.device.end_capture()
    first, captured, last = rank.finish("1 step(s) captured a graph")
    assert captured.step_device_ns is None and captured.begin_device_ns is None
    assert (first.begin_device_ns, last.begin_device_ns) == pytest.approx((0, 2 * MS), abs=US)


def test_collectives_make_no_step_lose_its_stamps() -> None:
    rank = Streams(num_events=24)
    for step in range(4):
        rank.begin(step)
        for _ in range(40):  # far more than there is room for
            ticket = rank.recorder.begin_collective(GATHER, 64, on_device=True)
            rank.recorder.end_on_device(ticket)
        rank.compute.launch(10 * US)
        rank.recorder.end_step()
        rank.device.wait_for(rank.compute.tail)
    timed = 0
    for record in rank.recorder.drain(wait=True):
        assert record.step_device_ns == pytest.approx(10 * US, abs=US) and record.device_times is not None
        timed += sum(at is not None for at in record.device_times.arrival_ns)
    assert 0 < timed < 80
    (note,) = rank.recorder.on_device.describe()
    assert note == f"{160 - timed} collective(s) found no free event and are not timed on the device"


def test_an_end_that_comes_after_its_step_is_not_taken_for_one_of_the_next() -> None:
    rank = Streams()
    tickets = []
    for step in range(2):
        rank.begin(step)
        tickets.append(rank.recorder.begin_collective(GATHER, 64, on_device=True))
        rank.recorder.end_on_device(tickets[0] if step else -1)
        rank.recorder.end_step()
    for record in rank.finish():
        assert record.device_times is not None and record.device_times.end_ns == [None]


class Handle:
    """A collective whose work the device has been given: torch calls at once what is to follow it."""

    def get_future(self) -> Handle:
        return self

    def then(self, end: Callable[[Any], None]) -> None:
        end(self)


def test_the_stride_follows_what_timing_costs_and_is_a_power_of_two() -> None:
    rank = Streams(every=None, launch_ns=2 * US)
    for step in range(40):
        rank.begin(step)
        for _ in range(4):  # two events each, of 2 us: 16 us a step
            ticket = rank.recorder.begin_collective(GATHER, 64, on_device=True)
            rank.recorder.on_device.follow(Handle(), lambda _, ticket=ticket: rank.recorder.end_on_device(ticket))
        rank.device.clock.advance(MS)  # 1.6 %, of which 0.3 % are allowed
        rank.recorder.end_step()
    timed = [record.step for record in rank.finish() if record.device_times is not None]
    assert timed[0] == 0 and [step // 8 for step in timed if step >= 8] == [1, 2, 3, 4]


def test_a_host_that_runs_ahead_has_all_the_time_that_its_device_takes() -> None:
    rank = Streams(every=None, launch_ns=2 * US)
    for step in range(40):
        rank.begin(step)
        for _ in range(4):
            rank.recorder.end_on_device(rank.recorder.begin_collective(GATHER, 64, on_device=True))
        rank.compute.launch(20 * MS)
        rank.recorder.end_step()
        rank.device.wait_for(rank.compute.tail)  # 20 us of 20 ms, although the step is 30 us long on the host
    assert all(record.device_times is not None for record in rank.finish())


def learn(stride: CollectiveStride, spent_ns: int, number: int = 4) -> int:
    stride.begin(0, 0)
    stride.spend(spent_ns, collectives=number)
    stride.begin(1, MS)
    return stride.every


@pytest.mark.parametrize(("number", "every"), [(1, 1), (10, 1), (11, 2), (40, 4), (64, 8)])
def test_without_any_cost_the_stride_is_what_is_kept(number: int, every: int) -> None:
    assert learn(CollectiveStride(None), 0, number) == every


def test_one_step_that_was_held_up_does_not_move_the_stride() -> None:
    stride = CollectiveStride(None)
    assert [learn(stride, spent_ns) for spent_ns in (US, US, 900 * US, US)] == [1] * 4


def test_a_gather_without_room_has_no_times_rather_than_others() -> None:
    rank = Streams(num_events=20)
    rank.begin(0)
    tickets = [rank.gather(300 * US) for _ in range(6)]  # the sixth finds half the ring taken
    rank.compute.launch(MS)
    rank.await_(tickets[0])
    rank.await_(tickets[-1])
    rank.recorder.end_step()
    (record,) = rank.recorder.drain(wait=True)
    assert record.device_times is not None
    assert [at is None for at in record.device_times.arrival_ns] == [False] * 5 + [True]
    assert record.device_times.end_ns[-1] is None and record.device_times.left_ns[-1] is not None
    (note,) = rank.recorder.on_device.describe()
    assert note == "1 collective(s) found no free event and are not timed on the device"


def test_collectives_may_be_left_alone() -> None:
    rank = Streams(every=0)
    rank.begin(0)
    rank.gather(MS)
    rank.recorder.end_step()
    (record,) = rank.finish()
    assert record.device_times is None and record.step_device_ns is not None and record.begin_device_ns == 0


def test_what_was_timed_comes_back_from_the_file(tmp_path: Path) -> None:
    rank = Streams(launch_ns=US)
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=1, info=make_info(0))
    for step in range(2):
        rank.begin(step)
        rank.await_(rank.gather(MS))
        rank.recorder.end_step()
    step_writer = StepWriter(recorder=rank.recorder, writer=writer, device=torch.device("cpu"), warn=pytest.fail)
    step_writer.take(wait=True)
    writer.close()
    stream = read_stream(tmp_path / "a")
    (table,) = stream.device_collectives
    assert table.steps.tolist() == [0, 1] and table.left_ns is not None
    begin_ns = stream.rows[:, COLUMN["begin_device_ns"]]
    assert (table.arrival_ns[:, 0] - begin_ns).tolist() == pytest.approx([0, 0], abs=20 * US)
    assert (table.end_ns[:, 0] - begin_ns).tolist() == pytest.approx([MS, MS], abs=20 * US)
    assert stream.warnings == ()
