"""Whatever a user passes as loss and gradient norm: a number, or None with its reason, and never an exception."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.simulate.device import HostClock, Scalar, SimulatedDevice
from distprof.record.step.recorder import Recorder
from distprof.record.step.scalars import NUM_SLOTS

PARTIAL = "it is a DTensor with a part of the value on each rank: pass value.full_tensor()"


class Placement:
    def __init__(self, whole: bool) -> None:
        self._whole = whole

    def is_replicate(self) -> bool:
        return self._whole


class PretendedDTensor:
    """What is asked of a DTensor; anything else would be a collective."""

    def __init__(self, value: float, *, whole: bool) -> None:
        self._value, self.placements = value, (Placement(True), Placement(whole))

    def to_local(self) -> torch.Tensor:
        return torch.tensor(self._value)

    def __float__(self) -> float:
        raise RuntimeError("this would be a collective")


def keep(*losses: Any, device: SimulatedDevice | None = None, phases: bool = True) -> tuple[list[float | None], Any]:
    recorder = Recorder(phases=phases, device=device)
    for step, loss in enumerate(losses):
        recorder.begin_step(step, warmup=False)
        recorder.work.keep_scalars(loss=loss, grad_norm=1.5)
        recorder.end_step()
    records = recorder.drain(wait=True)
    assert [record.scalars[1] for record in records] == [1.5] * len(losses)
    return [record.scalars[0] for record in records], recorder.on_device.describe()


def test_numbers_of_all_kinds_are_read() -> None:
    whole = PretendedDTensor(7.0, whole=True)
    losses = [2, 2.5, True, torch.tensor(3), torch.ones((1, 1), dtype=torch.bfloat16, requires_grad=True), whole]
    assert keep(*losses) == ([2.0, 2.5, 1.0, 3.0, 1.0, 7.0], [])
    (value,), _ = keep(float("inf"))
    assert value is not None and math.isinf(value)


@pytest.mark.parametrize("phases", [True, False], ids=["phases", "off"])
@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (torch.ones(3), "it is a tensor of shape (3,), not a scalar"),
        (torch.ones(0), "it is a tensor of shape (0,), not a scalar"),
        (PretendedDTensor(1.0, whole=False), PARTIAL),
        (torch.ones((), device="meta"), "it is on meta, where the profiler does not read"),
        (1j, "TypeError: float() argument must be a string or a real number, not 'complex'"),
        ({"loss": 1}, "TypeError: float() argument must be a string or a real number, not 'dict'"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_none_and_said_once(loss: Any, why: str, phases: bool) -> None:
    assert keep(loss, 4.0, loss, phases=phases) == ([None, 4.0, None], [f"loss is not recorded: {why}"])


def test_values_of_a_device_that_is_thousands_of_steps_behind_are_left_out_and_not_mixed_up() -> None:
    clock = HostClock()
    device = SimulatedDevice(clock, launch_queue=10**6)
    device.current_stream().launch(10**9)
    steps = NUM_SLOTS + 5
    losses, notes = keep(*(Scalar(device, float(step)) for step in range(steps)), device=device, phases=False)
    assert losses == [float(step) if step < NUM_SLOTS else None for step in range(steps)] and notes == []


class Holder(SimulatedDevice):
    """A device that holds every tensor, and copies as torch does."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def copy_scalar(self, value: Any, buffer: Any, position: int) -> None:
        target = torch.zeros(1)
        target[0].copy_(value.reshape(()))  # refuses a DTensor
        super().copy_scalar(Scalar(self, float(target)), buffer, position)


@pytest.mark.sharding
def test_the_norm_that_fsdp2_returns_is_copied_as_its_own_part_if_that_is_all_of_it() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        whole, partial = (DTensor.from_local(torch.tensor(7.0), mesh, [kind()]) for kind in (Replicate, Partial))
        recorder = Recorder(phases=False, device=Holder(HostClock()))
        recorder.begin_step(0, warmup=False)
        recorder.work.keep_scalars(loss=partial, grad_norm=whole)
        recorder.end_step()
        (record,) = recorder.drain(wait=True)
    finally:
        dist.destroy_process_group()
    assert record.scalars == (None, 7.0) and recorder.on_device.describe() == [f"loss is not recorded: {PARTIAL}"]
