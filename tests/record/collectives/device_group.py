"""A process group whose collectives take time on a stream of a made-up device, as NCCL's do, and move nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from benchmarks.simulate.device import SimulatedDevice, Stream
from benchmarks.simulate.device_work import DeviceWork
from distprof.record.collectives.collective_watch import CollectiveWatch

BACKEND, RANKS = "madeup", 2


class DeviceFuture(torch.futures.Future):  # type: ignore[type-arg]
    """Done on the host at once; what follows it runs on another stream, which waits for the device."""

    def __init__(self, group: DeviceGroup, part: DeviceWork, result: Any) -> None:
        super().__init__()
        self._group, self._device, self._part = group, group.device, part
        self.set_result(result)

    def then(self, callback: Callable[[Any], Any]) -> Any:
        stream = Stream(self._device)
        self._group.callbacks.append(stream)
        stream.launch(0, after=[self._part])
        before = self._device.set_stream(stream)
        result = callback(self)
        after = stream.launch(0)
        self._device.set_stream(before)
        return DeviceFuture(self._group, after, result)


class Issued(dist.Work):
    """A collective of the group."""

    def __init__(self, group: DeviceGroup, part: DeviceWork, result: Any) -> None:
        super().__init__()
        self._device, self._part, self._future = group.device, part, DeviceFuture(group, part, result)

    def block(self) -> bool:
        """Has the current stream wait for it. As `dist.Work.wait`, which C++ calls too and distprof wraps."""
        self._device.current_stream().launch(0, after=[self._part])
        return True

    def is_completed(self) -> bool:
        self._device.refuse_in_capture()
        return True

    def get_future(self) -> Any:
        return self._future


class DeviceGroup(dist.ProcessGroup):
    """This process and others that are always as far."""

    def __init__(self, rank: int, size: int, device: SimulatedDevice, lasts_ns: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.device, self._lasts_ns = device, lasts_ns
        self.stream, self.callbacks = Stream(device), list[Stream]()
        self._issued = list[Issued]()  # torch 2.6 keeps no handle that is written in Python

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    @property
    def group_name(self) -> str:
        return distributed_c10d._world.pg_names[self]

    def _issue(self, result: Any) -> Issued:
        self.stream.launch(0, after=[self.device.current_stream().record_event().work])  # type: ignore[list-item]
        self._issued.append(Issued(self, self.stream.launch(self._lasts_ns), result))
        return self._issued[-1]

    def allreduce(self, tensors: Any, options: Any = None) -> Any:
        return self._issue(tensors)

    def broadcast(self, tensors: Any, options: Any = None) -> Any:
        return self._issue(tensors)

    def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        for copies, own in zip(outputs, inputs, strict=True):
            for copy in copies:
                copy.copy_(own)
        return self._issue(outputs)

    def barrier(self, options: Any = None) -> Any:
        return self._issue([])


class Kernels(torch.autograd.Function):
    """Takes time of the device forward, and twice as long backward."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, device: SimulatedDevice, lasts_ns: int) -> torch.Tensor:
        ctx.device, ctx.lasts_ns = device, lasts_ns
        device.current_stream().launch(lasts_ns)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.device.current_stream().launch(2 * ctx.lasts_ns)
        return grads[0], None, None


class Layer(nn.Module):
    """A layer whose kernels take some time."""

    def __init__(self, device: SimulatedDevice, lasts_ns: int, width: int) -> None:
        super().__init__()
        self.inner, self._device, self._lasts_ns = nn.Linear(width, width, bias=False), device, lasts_ns

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Kernels.apply(self.inner(inputs), self._device, self._lasts_ns)  # type: ignore[no-any-return, no-untyped-call]


@contextmanager
def open_group(device: SimulatedDevice, lasts_ns: int, patch: pytest.MonkeyPatch) -> Iterator[DeviceGroup]:
    """Makes such a group the default one."""
    groups = list[DeviceGroup]()

    def make(store: Any, rank: int, size: int, timeout: Any) -> DeviceGroup:
        groups.append(DeviceGroup(rank, size, device, lasts_ns))
        return groups[-1]

    patch.setattr(CollectiveWatch, "ends_on_device", lambda *_: True)
    patch.setattr(dist.Work, "wait", lambda work, timeout=None: work.block())
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, lambda *arguments: _makers[-1](*arguments), devices=["cpu"])
    _makers.append(make)
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=RANKS)
    try:
        yield groups[0]
    finally:
        dist.destroy_process_group()
        _makers.pop()


_makers = list[Callable[..., DeviceGroup]]()
