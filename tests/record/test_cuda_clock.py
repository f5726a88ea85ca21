"""The device clock: against pretended CUDA events everywhere, against real ones where there is a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from distprof.facts.run import PHASE_CODE, Phase
from distprof.record import cuda_clock as module
from distprof.record.cuda_clock import CudaClock
from distprof.record.recorder import Recorder

DATA, FORWARD = PHASE_CODE[Phase.DATA], PHASE_CODE[Phase.FORWARD]


class FakeStream:
    """A stream on which time passes when it is told to, and work is done up to a point."""

    def __init__(self) -> None:
        self.now_ms, self.done_ms, self.synchronised = 0.0, 0.0, 0


class FakeEvent:
    def __init__(self) -> None:
        self.at_ms, self.stream = -1.0, FakeStream()

    def record(self, stream: FakeStream) -> None:
        self.at_ms, self.stream = stream.now_ms, stream

    def query(self) -> bool:
        return self.at_ms <= self.stream.done_ms

    def synchronize(self) -> None:
        self.stream.synchronised += 1
        self.stream.done_ms = self.stream.now_ms

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.query() and end.query(), "CUDA refuses to time an event that has not happened"
        return end.at_ms - self.at_ms


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    stream = FakeStream()
    monkeypatch.setattr(module, "_make_event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return stream


def run_step(recorder: Recorder, stream: FakeStream, step: int) -> None:
    recorder.begin_step(step, warmup=False)
    recorder.enter(DATA)
    stream.now_ms += 0.25
    recorder.exit()
    recorder.enter(FORWARD)
    stream.now_ms += 2.0
    recorder.exit()
    stream.now_ms += 0.5
    recorder.keep_scalars(loss=torch.tensor(float(step)))
    recorder.end_step()


def test_steps_are_read_when_they_have_happened_and_never_waited_for(stream: FakeStream) -> None:
    recorder = Recorder(device_clock=CudaClock(torch.device("cuda", 0), num_rows=3, num_events=16))
    run_step(recorder, stream, 0)
    run_step(recorder, stream, 1)
    assert recorder.drain() == []
    stream.done_ms = 3.0  # the device is through the first step
    run_step(recorder, stream, 2)
    (first,) = recorder.drain()
    assert (first.step, first.step_device_ns) == (0, 2_750_000)
    assert first.phase_device_ns is not None
    assert (first.phase_device_ns[DATA], first.phase_device_ns[FORWARD]) == (250_000, 2_000_000)
    assert first.scalars == (0.0, None) and stream.synchronised == 0
    assert [record.step for record in recorder.drain(wait=True)] == [1, 2] and stream.synchronised == 2


def test_a_device_far_behind_costs_device_times_and_no_waiting(stream: FakeStream) -> None:
    recorder = Recorder(device_clock=CudaClock(torch.device("cuda", 0), num_rows=2, num_events=16))
    for step in range(4):
        run_step(recorder, stream, step)
    assert stream.synchronised == 0
    records = {record.step: record for record in recorder.drain(wait=True)}
    assert [step for step in range(4) if records[step].step_device_ns is None] == [2, 3]


@pytest.mark.cuda
def test_phases_sum_to_the_device_step_without_a_synchronisation() -> None:
    device = torch.device("cuda", 0)
    left, right = (torch.randn(4096, 4096, device=device) for _ in range(2))
    recorder = Recorder(device_clock=CudaClock(device))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(10):
            recorder.begin_step(step, warmup=False)
            recorder.enter(FORWARD)
            product: Any = left @ right
            recorder.exit()
            recorder.enter(DATA)
            product = product + 1
            recorder.exit()
            recorder.keep_scalars(loss=product.mean())
            recorder.end_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    records = recorder.drain(wait=True)
    assert len(records) == 10
    for record in records[2:]:
        assert record.step_device_ns is not None and record.phase_device_ns is not None
        assert abs(sum(record.phase_device_ns) / record.step_device_ns - 1) < 0.01
        assert record.phase_device_ns[FORWARD] > record.phase_device_ns[DATA] > 0
        assert record.scalars[0] is not None
