"""The device that torch computes on: against pretended parts of torch everywhere, for real where there is a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.device.torch_device import TorchDevice
from distprof.record.step.recorder import Recorder

DATA, FORWARD = PHASE_CODE[Phase.DATA], PHASE_CODE[Phase.FORWARD]


def test_every_event_exists_on_the_device_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    class PretendedEvent:
        def __init__(self, device: torch.device, *, enable_timing: bool) -> None:
            said.append((device, enable_timing))

        def record(self, stream: str) -> None:
            said.append(stream)

    device = torch.device("cuda", 1)
    monkeypatch.setattr(torch, "Event", PretendedEvent)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: said.append(f"wait for {device}"))
    assert len(TorchDevice(device).make_events(2, timing=True)) == 2
    assert said == [(device, True)] * 2 + ["stream of cuda:1"] * 2 + ["wait for cuda:1"]


def test_a_stream_of_its_own_is_asked_for_with_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "Stream", lambda device, *, priority: (device, priority))
    device = torch.device("cuda", 1)
    stream: Any = TorchDevice(device).make_stream(-1)
    assert stream == (device, -1)


def test_only_a_tensor_that_is_not_the_hosts_is_the_devices() -> None:
    device = TorchDevice(torch.device("cuda", 0))
    assert device.holds(torch.ones((), device="meta"))
    assert not any(device.holds(value) for value in (2.5, torch.ones(()), None, "loss"))
    buffer = torch.zeros(3)
    device.copy_scalar(torch.full((1, 1), 2.5), buffer, 1)
    assert buffer.tolist() == [0.0, 2.5, 0.0]


@pytest.mark.cuda
def test_phases_sum_to_the_device_step_without_a_synchronisation() -> None:
    device = torch.device("cuda", 0)
    left, right = (torch.randn(4096, 4096, device=device) for _ in range(2))
    recorder = Recorder(device=TorchDevice(device))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(40):
            recorder.begin_step(step, warmup=False)
            recorder.enter(FORWARD)
            product: Any = left @ right
            recorder.exit()
            recorder.enter(DATA)
            product = product + 1
            recorder.exit()
            recorder.work.keep_scalars(loss=product.mean())
            recorder.end_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    records = recorder.drain(wait=True)
    assert [record.step for record in records] == list(range(40)) and recorder.on_device.describe() == []
    for record in records[2:]:
        assert record.step_device_ns is not None and record.phase_device_ns is not None
        assert sum(record.phase_device_ns) == record.step_device_ns
        assert record.phase_device_ns[FORWARD] > record.phase_device_ns[DATA] > 0
        assert record.scalars[0] is not None
