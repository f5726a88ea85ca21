"""Steps on a device that runs behind the host: everything is read, in order, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.device import HostClock, Scalar, SimulatedDevice, SimulatedEvent
from distprof.facts.run import COLUMN, PHASE_CODE, PHASES, Phase
from distprof.record.gather.step_writer import StepWriter
from distprof.record.step.device_clock import NUM_TRIES
from distprof.record.step.pending_steps import NUM_EVENTS, READS_AT_ONCE, READS_PER_STEP
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord
from distprof.storage.rank_stream import StreamWriter, read_stream
from tests.factories import make_info

PARTS = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
MS, US = 1_000_000, 1_000


class Loop:
    """A training loop on a made-up device, and what really happened in it."""

    def __init__(self, *, num_events: int = NUM_EVENTS, **device: float) -> None:
        self.clock = HostClock()
        self.device = SimulatedDevice(self.clock, **device)  # type: ignore[arg-type]
        self.recorder = Recorder(now_ns=self.clock, device=self.device, num_events=num_events)
        self.truth: list[list[int]] = []
        """The true end of every step's stamps, by step."""

    def run_step(self, kernel_ns: int, *, repeat: int = 1, host_ns: int = 10 * US) -> None:
        """One kernel per phase, ``repeat`` times over; its loss is its number, and every third step has none."""
        stream, recorder, step = self.device.current_stream(), self.recorder, len(self.truth)
        recorder.begin_step(step, warmup=False)
        ends = [stream.tail]
        for _ in range(repeat):
            for phase in PARTS:
                recorder.enter(PHASE_CODE[phase])
                ends.append(stream.tail)
                self.clock.advance(host_ns)
                stream.launch(kernel_ns)
                recorder.exit()
                ends.append(stream.tail)
        if step % 3:
            recorder.work.keep_scalars(loss=Scalar(self.device, float(step)))
        recorder.end_step()
        ends.append(stream.tail)
        self.truth.append([work.find_end() for work in ends])

    def check(self, records: list[StepRecord], *, rate: float = 1.0) -> list[int]:
        """Every step is there, in order, with its loss; those with device times have the true ones.

        Returns:
            The steps without device times.
        """
        assert [record.step for record in records] == list(range(len(self.truth)))
        lacking = []
        for record, ends in zip(records, self.truth, strict=True):
            assert record.scalars == (record.step if record.step % 3 else None, None)
            if record.step_device_ns is None:
                assert record.phase_device_ns is None
                lacking.append(record.step)
                continue
            assert record.phase_device_ns is not None and sum(record.phase_device_ns) == record.step_device_ns
            assert record.step_device_ns == pytest.approx((ends[-1] - ends[0]) * rate, abs=US)
            for number, phase in enumerate(PARTS):
                lengths = [ends[at + 1] - ends[at] for at in range(1 + 2 * number, len(ends) - 2, 2 * len(PARTS))]
                measured_ns = record.phase_device_ns[PHASE_CODE[phase]]
                assert measured_ns == pytest.approx(sum(lengths) * rate, abs=US * len(lengths))
        return lacking


class Turn(NamedTuple):
    """Some steps of one kind, and whether the loop then waits for the device as `loss.item()` does."""

    steps: int
    kernel_ns: int
    repeat: int
    waits: bool


TURNS = st.lists(
    st.builds(
        Turn, st.integers(1, 40), st.sampled_from([0, 700, 20 * US, 3 * MS]), st.integers(0, 6), st.booleans()
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(
    TURNS, st.sampled_from([24, 100, 1_000, 4_000]), st.sampled_from([32, 1024]),
    st.sampled_from([-50.0, 0.0, 50.0]), st.integers(0, 10**12),
)  # fmt: skip
def test_whatever_the_run_ahead_order_is_kept_nothing_is_reused_and_what_is_lost_is_counted(
    turns: list[Turn], num_events: int, launch_queue: int, drift_ppm: float, offset_ns: int
) -> None:
    loop = Loop(
        num_events=num_events, launch_queue=launch_queue, drift_ppm=drift_ppm, offset_ns=offset_ns, launch_ns=US
    )
    for turn in turns:
        for _ in range(turn.steps):
            loop.run_step(turn.kernel_ns, repeat=turn.repeat)
        if turn.waits:
            loop.device.wait_for(loop.device.current_stream().tail)
    assert loop.device.synchronised == 0
    lacking = loop.check(loop.recorder.drain(wait=True), rate=1 + drift_ppm * 1e-6)
    notes = loop.recorder.on_device.describe()
    wanted = [f"{len(lacking)} step(s) found no free event and have no device times"] if lacking else []
    assert notes == wanted  # and nothing stopped: no event was reused, none was read too early


def test_a_host_far_ahead_loses_no_device_time() -> None:
    loop = Loop(launch_ns=US)
    for _ in range(300):
        loop.run_step(5 * MS)
    assert loop.device.blocked > 0 and loop.device.synchronised == 0
    done = loop.recorder.drain()
    assert len(done) < 300 - 64  # so many steps are in flight
    assert loop.check(done + loop.recorder.drain(wait=True)) == []


def test_a_step_without_room_has_no_device_times_and_keeps_its_place_and_its_loss() -> None:
    loop = Loop(num_events=24)
    for _ in range(4):
        loop.run_step(MS)  # ten events each, and the device is still at the first
    assert loop.check(loop.recorder.drain(wait=True)) == [2, 3]
    assert loop.recorder.on_device.describe() == ["2 step(s) found no free event and have no device times"]


def test_a_step_of_a_large_model_under_fsdp2_has_device_times() -> None:
    loop, waits = Loop(), 128 * 8 * 2  # layers, micro-steps, and a gather each in forward and backward
    for step in range(3):
        loop.recorder.begin_step(step, warmup=False)
        loop.recorder.enter(PHASE_CODE[Phase.FORWARD])
        for _ in range(waits):
            loop.device.current_stream().launch(US)
            loop.recorder.mark(PHASE_CODE[Phase.ALL_GATHER])
            loop.device.current_stream().launch(US)
            loop.recorder.resume()
        loop.recorder.exit()
        loop.recorder.end_step()
    for record in loop.recorder.drain(wait=True):
        assert record.phase_device_ns is not None and record.segments_lost == 0
        assert record.phase_device_ns[PHASE_CODE[Phase.ALL_GATHER]] == pytest.approx(waits * US, abs=US)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns how many times were read since it was last asked."""
    reads = [0]
    elapsed_time = SimulatedEvent.elapsed_time

    def count(begin: SimulatedEvent, end: SimulatedEvent) -> float:
        reads[0] += 1
        return elapsed_time(begin, end)

    monkeypatch.setattr(SimulatedEvent, "elapsed_time", count)

    def take() -> int:
        number, reads[0] = reads[0], 0
        return number

    return take


def test_hundreds_of_times_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, take = Loop(), count_reads(monkeypatch)
    at_stamps, at_ends = list[int](), list[int]()
    for _ in range(20):
        loop.recorder.begin_step(len(loop.truth), warmup=False)
        at_stamps.append(take())
        for _ in range(300):
            loop.recorder.enter(PHASE_CODE[Phase.FORWARD])
            at_stamps.append(take())
            loop.device.current_stream().launch(2 * US)
            loop.recorder.exit()
            at_stamps.append(take())
            loop.clock.advance(3 * US)
        loop.recorder.end_step()
        at_ends.append(take())
        loop.truth.append([])
    assert sorted(at_stamps)[-2] == READS_AT_ONCE  # and both clocks together, once a second
    assert max(at_stamps) <= READS_AT_ONCE + NUM_TRIES + 1
    assert 0 < max(at_ends) <= READS_PER_STEP + READS_AT_ONCE
    assert len(loop.recorder.drain()) >= 18  # and it keeps up: all but the step before the last


def test_nothing_is_asked_or_read_while_a_graph_is_captured() -> None:
    loop = Loop()
    for step in range(20):
        loop.recorder.begin_step(step, warmup=False)
        if step == 7:  # from inside one step to inside the next but one
            loop.device.begin_capture()
        elif step == 9:
            graph = loop.device.end_capture()
        elif step == 15:
            graph.replay()
        for _ in range(8):
            loop.recorder.enter(PHASE_CODE[Phase.FORWARD])
            loop.device.current_stream().launch(MS)
            loop.recorder.exit()
            loop.clock.advance(MS)
        loop.recorder.work.keep_scalars(loss=Scalar(loop.device, 0.5))
        loop.recorder.end_step()
    records = loop.recorder.drain(wait=True)
    assert [record.step for record in records] == list(range(20))
    assert [record.step for record in records if record.step_device_ns is None] == [7, 8, 9]
    assert len(graph.works) == 2 * 8 and [records[step].step_device_ns for step in (14, 15)] == [8 * MS, 24 * MS]
    (note,) = loop.recorder.on_device.describe()
    assert note.startswith("3 step(s) captured a graph")
    assert [record.step for record in records if record.scalars[0] is None] == [7, 8]


def test_at_level_off_steps_are_timed_and_the_loss_is_read_without_waiting_for_the_device() -> None:
    clock = HostClock()
    device = SimulatedDevice(clock)
    recorder = Recorder(phases=False, now_ns=clock, device=device)
    for step in range(5):
        recorder.begin_step(step, warmup=False)
        device.current_stream().launch(MS)
        recorder.work.keep_scalars(loss=Scalar(device, step + 0.5), grad_norm=3)
        recorder.end_step()
    assert device.synchronised == 0 and recorder.drain() == []
    clock.advance(3 * MS)
    recorder.begin_step(5, warmup=False)
    recorder.end_step()
    done = recorder.drain()
    assert [record.scalars for record in done] == [(0.5, 3.0), (1.5, 3.0), (2.5, 3.0)]
    assert [(record.step_device_ns, record.phase_device_ns) for record in done] == [(MS, None)] * 3
    assert [record.step_device_ns for record in recorder.drain(wait=True)] == [MS, MS, 0]


@pytest.mark.parametrize("by_signal", [False, True], ids=["exception", "signal"])
def test_steps_still_on_the_device_when_a_rank_dies_are_written_with_host_times(
    tmp_path: Path, by_signal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distprof.record.gather.step_writer.FAILING_GRACE_S", 0.0)
    loop = Loop()
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=1, info=make_info(0))
    step_writer = StepWriter(recorder=loop.recorder, writer=writer, device=torch.device("cpu"), warn=print)
    for _ in range(10):
        loop.run_step(5 * MS)
    loop.clock.advance(45 * MS)  # the device is in the third step
    if by_signal:
        step_writer.terminate("SIGTERM")
    else:
        step_writer.take_rest()
        step_writer.end("failed", error="RuntimeError: NCCL")
    assert loop.device.synchronised == 0
    stream = read_stream(tmp_path / "a")
    assert stream.rows[:, COLUMN["step"]].tolist() == list(range(10))
    assert (stream.rows[:, COLUMN["step_host_ns"]] > 0).all()
    times = stream.rows[:, COLUMN["step_device_ns"]]
    read = 0 if by_signal else 2  # from outside, nothing is asked of a device that may hang
    assert (times > 0).tolist() == [True] * read + [False] * (10 - read)
    assert stream.info.notes == (
        f"the device had not finished {10 - read} step(s) when recording ended: they have host times only",
    )
    loop.run_step(MS)  # the loop may go on for a moment
    assert [record.step for record in loop.recorder.drain()] == [10]


def test_a_device_that_fails_costs_device_times_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    for _ in range(3):
        loop.run_step(MS)

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nCompile with ...")

    monkeypatch.setattr(SimulatedEvent, "query", fail)
    monkeypatch.setattr(SimulatedEvent, "record", fail)
    loop.run_step(MS)
    loop.recorder.begin_step(4, warmup=False)
    loop.recorder.end_step()
    records = loop.recorder.drain(wait=True)
    assert [record.step for record in records] == [0, 1, 2, 3, 4]
    assert loop.recorder.on_device.describe() == [
        "the device had not finished 3 step(s) when recording ended: they have host times only",
        "device times stopped: RuntimeError: CUDA error: device-side assert triggered",
    ]
    assert sum(records[3].phase_host_ns or []) == records[3].step_host_ns > 0
    assert len(records[3].phase_host_ns or []) == len(PHASES)
