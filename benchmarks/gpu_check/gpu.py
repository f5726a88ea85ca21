"""What the checks ask of a GPU, and a stand-in that does none of it, so that they can be run through without one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from distprof.record.device.torch_device import TorchDevice
from distprof.train.inject import make_device_delay


class CheckedGpu(Protocol):
    """The calls that need a device; everything else in the checks runs without one, too."""

    name: str
    """As `World` takes it: "cuda" or "cpu"."""

    def count(self) -> int:
        """Number of GPUs of this machine."""

    def spin(self, duration_ms: float) -> None:
        """Keeps the current stream busy for so long; returns at once."""

    def time_ms(self, work: Callable[[], object]) -> float:
        """How long work takes on the device. Synchronises."""

    def synchronise(self) -> None:
        """Waits for the device."""

    def make_events(self, number: int) -> list[Any]:
        """Events that time, each recorded once."""

    def beside(self) -> AbstractContextManager[None]:
        """A block on another stream, which first waits for the current one."""

    def forbid_synchronising(self) -> AbstractContextManager[None]:
        """A block in which torch raises RuntimeError where it would wait for the device."""


class RealGpu:
    """The first GPU of this machine."""

    name = "cuda"

    def __init__(self) -> None:
        """Calibrates `spin`. Synchronises."""
        self._device = torch.device("cuda", 0)
        torch.cuda.set_device(self._device)
        self._delays: dict[float, Callable[[], None]] = {}
        self._beside: torch.cuda.Stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def count(self) -> int:
        """As torch sees them."""
        return torch.cuda.device_count()

    def spin(self, duration_ms: float) -> None:
        """By `make_device_delay`; the first call with a duration synchronises."""
        if duration_ms not in self._delays:
            self._delays[duration_ms] = make_device_delay(self._device, duration_ms)
        self._delays[duration_ms]()

    def time_ms(self, work: Callable[[], object]) -> float:
        """Between two events."""
        start, end = self.make_events(2)
        start.record()
        work()
        end.record()
        end.synchronize()
        elapsed_ms: float = start.elapsed_time(end)
        return elapsed_ms

    def synchronise(self) -> None:
        """Waits for every stream."""
        torch.cuda.synchronize(self._device)

    def make_events(self, number: int) -> list[Any]:
        """Those that the recorder uses."""
        return TorchDevice(self._device).make_events(number, timing=True)

    @contextlib.contextmanager
    def beside(self) -> Any:
        """On one stream, always the same."""
        self._beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._beside):
            yield

    @contextlib.contextmanager
    def forbid_synchronising(self) -> Any:
        """By torch's own debugging mode."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


class NoGpu:
    """Does nothing, in no time."""

    name = "cpu"

    def count(self) -> int:
        """So many that every check runs."""
        return 2

    def spin(self, duration_ms: float) -> None:
        """Nothing to keep busy."""

    def time_ms(self, work: Callable[[], object]) -> float:
        """Host time, ms."""
        start_ns = time.monotonic_ns()
        work()
        return (time.monotonic_ns() - start_ns) / 1e6

    def synchronise(self) -> None:
        """Nothing to wait for."""

    def make_events(self, number: int) -> list[Any]:
        """Events that record nothing."""

        class NoEvent:
            def record(self) -> None:
                pass

        return [NoEvent() for _ in range(number)]

    def beside(self) -> AbstractContextManager[None]:
        """The same stream."""
        return contextlib.nullcontext()

    def forbid_synchronising(self) -> AbstractContextManager[None]:
        """Nothing to forbid."""
        return contextlib.nullcontext()
