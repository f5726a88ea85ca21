"""What recording costs the host on this machine, with the events of its own GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu_check.check_result import CheckResult
from benchmarks.gpu_check.gpu import CheckedGpu
from benchmarks.recording.recording_cost import (
    BUCKETS,
    SHARDS,
    STEP_NS,
    find_mean_ns,
    find_stride,
    measure_recording_cost,
)
from benchmarks.simulate.device import HostClock, SimulatedDevice
from distprof.record.device.torch_device import TorchDevice

ROUNDS = 50
MOST_PERCENT = 0.5
"""Of a step of 100 ms; without the events' own cost it is 0.3, see `python -m benchmarks cost`."""


def check_cost(gpu: CheckedGpu, *, dry: bool) -> Iterator[CheckResult]:
    """The checks of this file; ``dry``: on the made-up device."""

    def make_device() -> Any:
        return SimulatedDevice(HostClock()) if dry else TorchDevice(torch.device(gpu.name, 0))

    bare, real = measure_recording_cost(ROUNDS), measure_recording_cost(ROUNDS, make_device)
    own_ns = (real.fsdp_timed.fastest_ns - bare.fsdp_timed.fastest_ns) / real.fsdp_timed.events
    yield CheckResult(name="an event that is recorded and read, host, us", value=own_ns / 1e3, low=0.0, high=5.0)
    for name, plain, timed, number in (
        ("DDP", real.ddp, real.ddp_timed, BUCKETS), ("FSDP2", real.fsdp, real.fsdp_timed, SHARDS),
    ):  # fmt: skip
        every = find_stride(plain, timed, number)
        percent = 100 * find_mean_ns(plain, timed, every) / STEP_NS
        yield CheckResult(name=f"{name}: collectives are timed in every so many steps", value=every, low=1, high=16)
        yield CheckResult(name=f"{name}: recording, of 100 ms, %", value=percent, low=0.0, high=MOST_PERCENT)
