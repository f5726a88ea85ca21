"""The made-up device, against times worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulate.device import (
    HostClock,
    NotThereYet,
    ReusedEvent,
    Scalar,
    SimulatedDevice,
    SimulatedEvent,
    Stream,
)
from benchmarks.simulate.device_ranks import Program, RankProgram, run_together
from benchmarks.simulate.device_work import Meeting


def test_a_stream_runs_behind_the_host_and_waits_where_it_is_told_to() -> None:
    clock = HostClock(0)
    device = SimulatedDevice(clock)
    compute, communication = device.current_stream(), Stream(device)
    assert compute.launch(100).end_ns == 100
    clock.advance(30)
    assert compute.launch(50).end_ns == 150  # behind the first
    gathered = communication.launch(400)
    assert (gathered.start_ns, gathered.end_ns) == (30, 430)  # on a stream of its own
    compute.wait_event(communication.record_event())
    assert compute.launch(5).end_ns == 435
    clock.advance(1_000)
    assert compute.launch(5).start_ns == 1_030  # an idle device begins when the host launches


def test_a_full_queue_makes_the_host_wait_for_the_oldest_launch() -> None:
    clock = HostClock(0)
    device = SimulatedDevice(clock, launch_ns=1, launch_queue=3)
    for _ in range(3):
        device.current_stream().launch(100)
    assert (clock.now, device.blocked) == (3, 0)
    device.current_stream().launch(100)
    assert (clock.now, device.blocked, device.synchronised) == (101, 1, 0)


def test_times_come_in_steps_of_half_a_microsecond_and_in_float32_milliseconds() -> None:
    clock = HostClock(0)
    device = SimulatedDevice(clock, offset_ns=7_000_000_000, drift_ppm=50)
    begin, end = SimulatedEvent(device, timing=True), SimulatedEvent(device, timing=True)
    begin.record()
    device.current_stream().launch(20_000_000_700)
    end.record()
    with pytest.raises(NotThereYet):
        begin.elapsed_time(end)
    clock.advance(30_000_000_000)
    ticks = (7_000_000_000 + 20_000_000_700 * 1.00005) // 500 - 7_000_000_000 // 500
    assert begin.elapsed_time(end) == float(np.float32(ticks * 500 / 1e6))


def test_an_event_used_again_before_it_was_read_is_a_fault() -> None:
    clock = HostClock()
    device = SimulatedDevice(clock)
    first, second = device.make_events(2, timing=True)
    first.record()
    second.record()
    assert first.query() and second.query()  # to ask whether it is over is not to read it
    with pytest.raises(ReusedEvent):
        first.record()
    assert first.elapsed_time(second) == 0
    first.record()


def test_the_device_counts_who_waits_for_it() -> None:
    clock = HostClock(0)
    device = SimulatedDevice(clock)
    device.current_stream().launch(80)
    loss, buffer = Scalar(device, 2.5), device.make_buffer(1)
    device.copy_scalar(loss, buffer, 0)
    with pytest.raises(NotThereYet):
        buffer[0]
    assert (float(loss), clock.now, device.synchronised, buffer[0]) == (2.5, 80, 1, 2.5)


def make_rank(late_ns: int, meetings: list[Meeting]) -> tuple[RankProgram, list[tuple[int, int]]]:
    """A rank that computes, late by some time, and then reduces on another stream, in every step."""
    clock = HostClock(0)
    device = SimulatedDevice(clock, launch_ns=10)
    stream, seen = Stream(device), list[tuple[int, int]]()

    def run() -> Program:
        for meeting in meetings:
            device.current_stream().launch(1_000 + late_ns)
            stream.wait_stream(device.current_stream())
            part = stream.launch(0, meeting=meeting)
            device.current_stream().wait_stream(stream)
            yield None
            yield part  # the program looks at its loss
            seen.append((part.start_ns or 0, part.end_ns or 0))

    return RankProgram(device, [stream, device.current_stream()], run()), seen


def test_a_collective_ends_everywhere_once_the_last_rank_has_come_and_the_transfer_is_over() -> None:
    meetings = [Meeting(3, 200) for _ in range(3)]
    ranks = [make_rank(late_ns, meetings) for late_ns in (0, 400, 0)]
    run_together([rank for rank, _ in ranks])
    for parts in zip(*(seen for _, seen in ranks), strict=True):
        starts, ends = zip(*parts, strict=True)
        assert set(ends) == {max(starts) + 200}
        assert max(starts) == starts[1] == min(starts) + 400  # who waits least came last


def test_ranks_that_wait_for_each_other_for_ever_are_found_out() -> None:
    (first, _), (second, _) = make_rank(0, [Meeting(2, 1)]), make_rank(0, [Meeting(2, 1)])
    with pytest.raises(RuntimeError, match="never launches"):
        run_together([first, second])
