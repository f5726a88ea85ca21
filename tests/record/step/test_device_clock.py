"""Readings of the device's and the host's clock together: the truth lies within the stated bound."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.device import HostClock, SimulatedDevice, Stream
from benchmarks.simulate.device_work import DeviceWork, Meeting
from distprof.record.step.device_clock import NUM_PENDING, POLL_NS, Anchor, DeviceAnchors, PendingAnchor

MS, US, S = 10**6, 10**3, 10**9
SLACK_NS = 2
"""The truth is worked out in float64."""


class TickingClock(HostClock):
    """Every look at it takes some time."""

    def __init__(self, draws: random.Random) -> None:
        super().__init__(40 * 86_400 * S)
        self._draws = draws

    def __call__(self) -> int:
        self.advance(self._draws.choice([0, 40, 700, 3_000]))
        return self.now


class SlowStream(Stream):
    """The device takes note of its work some time after the launch."""

    def launch(
        self, duration_ns: int, *, after: Sequence[DeviceWork] = (), meeting: Meeting | None = None
    ) -> DeviceWork:
        device: Any = self.device
        noticed = DeviceWork(device.clock.now + device.take_latency())
        noticed.settle()
        return super().launch(duration_ns, after=[*after, noticed], meeting=meeting)


class SlowDevice(SimulatedDevice):
    """Its streams beside the current one answer after given times, the last of them for ever after."""

    def __init__(self, clock: HostClock, latencies_ns: Sequence[int], **options: Any) -> None:
        super().__init__(clock, **options)
        self._latencies_ns = deque(latencies_ns)

    def take_latency(self) -> int:
        return self._latencies_ns.popleft() if len(self._latencies_ns) > 1 else self._latencies_ns[0]

    def make_stream(self, priority: int) -> SlowStream:
        return SlowStream(self)


class StepClock:
    """A host's clock, some readings of which, counted from 1, take time before them."""

    def __init__(self, clock: HostClock, step_ns: int, at: list[int]) -> None:
        self._clock, self._step_ns, self._at, self._reads = clock, step_ns, at, -1

    def __call__(self) -> int:
        self._reads += 1
        if self._reads in self._at:
            self._clock.advance(self._step_ns)
        return self._clock.now


def test_the_shortest_of_four_brackets_counts_and_the_others_make_it_shorter_still() -> None:
    """By hand: the host looks 11 us after each launch; the device passed the events 9, 2, 9 and 9 us after it."""
    clock = HostClock(0)
    device = SlowDevice(clock, [9 * US, 2 * US, 9 * US], offset_ns=7 * S, launch_ns=US)
    start = device.make_events(1, timing=True)[0]
    start.record()  # at 1 us
    anchors = DeviceAnchors(device, StepClock(clock, 10 * US, at=[2, 5, 8, 11]))
    clock.advance(99 * US)
    pending = anchors.probe()
    assert pending is not None
    assert [(item.before_ns // US, item.after_ns // US) for item in pending] == [
        (100, 111), (111, 122), (122, 133), (133, 144)
    ]  # fmt: skip
    # The first event was passed at 109 us, and by the device's clock the second 4 us later. That one was launched at
    # 111 us, so the first was passed after 107 us, less what the times of events may be wrong: 500 + 4 + 1 ns.
    low_ns, high_ns = 107_000 - 505, 111_000
    assert anchors.read(pending, start, 0) == Anchor(108_000, (low_ns + high_ns) // 2, 2_253 + 500 + 1 + 1)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**12), st.floats(-50, 50), st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(0, 30), st.integers(10 * US, 3 * S)), min_size=1, max_size=12),
)  # fmt: skip
def test_the_truth_is_within_the_bound_whatever_the_offset_the_drift_and_the_run_ahead(
    offset_ns: int, drift_ppm: float, seed: int, turns: list[tuple[int, int]]
) -> None:
    draws = random.Random(seed)
    clock = TickingClock(draws)
    latencies_ns = [draws.choice([0, 600, 2_500, 40_000, 70_000]) for _ in range(400)]
    device = SlowDevice(clock, latencies_ns, offset_ns=offset_ns, drift_ppm=drift_ppm, launch_ns=300)
    anchors, stream = DeviceAnchors(device, clock, every_ns=0), device.current_stream()
    events = device.make_events(400, timing=True)
    events[0].record(stream)
    origin, steps = device.read(stream.tail), deque[tuple[Any, PendingAnchor | None]]()
    found, used = list[Anchor](), 1

    def read_what_is_done() -> None:
        while steps and steps[0][0].query():
            end, pending = steps.popleft()
            if pending is not None:
                found.append(anchors.read(pending, end, device.read(end.work) - origin))

    for ahead, kernel_ns in turns:
        for _ in range(1 + ahead):
            stream.launch(kernel_ns)
            events[used].record(stream)
            steps.append((events[used], anchors.probe()))
            used += 1
            read_what_is_done()
        device.wait_for(stream.tail)
        read_what_is_done()
    assert not steps and device.synchronised == 0
    for anchor in found:
        shown_ns = (offset_ns - origin) + anchor.host_ns * (1 + drift_ppm * 1e-6)
        assert abs(shown_ns - anchor.device_ns) <= anchor.bound_ns * 1.0001 + SLACK_NS


def test_readings_are_taken_once_a_second_and_none_while_a_graph_is_captured() -> None:
    clock = HostClock(5 * S)
    device = SimulatedDevice(clock)
    anchors = DeviceAnchors(device, clock)
    assert anchors.is_due(clock.now)
    device.begin_capture()
    assert anchors.probe() is None and anchors.is_due(clock.now)
    device.end_capture()
    assert anchors.probe() is not None
    assert not anchors.is_due(clock.now + S - 1) and anchors.is_due(clock.now + S)


def test_a_device_that_does_not_answer_costs_one_look_and_its_event_is_used_again_later() -> None:
    clock = TickingClock(random.Random(1))
    device = SlowDevice(clock, [*[S] * 300, US])
    anchors = DeviceAnchors(device, clock, every_ns=0)
    for _ in range(300):  # more than there are events
        before_ns, launched = clock.now, device.launched
        assert anchors.probe() is None
        assert clock.now - before_ns <= POLL_NS + 3 * 3_000 and device.launched - launched <= 1
        clock.advance(S // 2)
    clock.advance(300 * S)
    assert anchors.probe() is not None
    still = HostClock()  # shows the same time however often one looks
    assert DeviceAnchors(SlowDevice(still, [S]), still).probe() is None


def test_a_host_far_ahead_has_so_many_readings_pending_and_no_more() -> None:
    clock = HostClock()
    device = SimulatedDevice(clock, launch_ns=100)
    anchors, reference = DeviceAnchors(device, clock, every_ns=0), device.make_events(1, timing=True)[0]
    reference.record()
    pending = [anchors.probe() for _ in range(NUM_PENDING + 2)]
    assert [item is None for item in pending] == [False] * NUM_PENDING + [True] * 2
    assert pending[0] is not None and pending[1] is not None
    anchors.read(pending[0], reference, 0)
    anchors.read(pending[1], reference, 0)
    again = [anchors.probe() for _ in range(3)]
    assert [item is None for item in again] == [False, False, True]  # both were given back


def test_the_reference_may_come_before_or_after_also_where_no_time_is_below_0() -> None:
    """Some drivers answer 0 if the second event comes first."""

    class Clamped:
        def __init__(self, at_ms: float) -> None:
            self.at_ms = at_ms

        def record(self, stream: Any) -> None:
            self.at_ms = 20.0

        def query(self) -> bool:
            return True

        def elapsed_time(self, end: Clamped) -> float:
            return max(end.at_ms - self.at_ms, 0.0)

    clock = HostClock()
    device: Any = SimulatedDevice(clock)
    device.make_events = lambda number, timing: [Clamped(0) for _ in range(number)]
    anchors = DeviceAnchors(device, clock)
    for reference_ms, reference_ns in ((5.0, 5 * MS), (20.0, 20 * MS), (35.0, 35 * MS)):
        pending = anchors.probe()
        assert pending is not None
        assert anchors.read(pending, Clamped(reference_ms), reference_ns).device_ns == 20 * MS


@pytest.mark.cuda
def test_a_gpu_and_its_host_agree_between_readings() -> None:
    import time

    import torch

    from distprof.record.device.torch_device import TorchDevice

    device = TorchDevice(torch.device("cuda", 0))
    anchors = DeviceAnchors(device, time.monotonic_ns, every_ns=0)
    reference = device.make_events(1, timing=True)[0]
    left = torch.randn(4096, 4096, device="cuda")
    pending = [anchors.probe()]
    for _ in range(200):
        left = left @ left
    reference.record(device.current_stream())
    pending.append(anchors.probe())  # while the device computes
    reference.synchronize()
    first, second = (anchors.read(item, reference, 0) for item in pending if item is not None)
    assert max(first.bound_ns, second.bound_ns) < 100 * US
    apart_ns = (second.device_ns - first.device_ns) - (second.host_ns - first.host_ns)
    assert abs(apart_ns) <= first.bound_ns + second.bound_ns + 1e-4 * (second.host_ns - first.host_ns)
