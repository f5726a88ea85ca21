"""Interfaces that a recorder uses besides the host clock. Nothing in this room asks which device implements them."""

from __future__ import annotations

from typing import Any, Protocol


class DeviceEvent(Protocol):
    """A place in a stream of a device; `torch.Event` and `benchmarks.simulate.device.Event`."""

    def record(self, stream: Any) -> None:
        """Marks the place behind all work that the stream has been given so far. Does not wait for the device."""

    def query(self) -> bool:
        """Whether the device has passed the place."""

    def synchronize(self) -> None:
        """Waits until the device has passed the place."""

    def elapsed_time(self, end: Any) -> float:
        """Device time from this event to another one, ms. The device must have passed both."""


class Accelerator(Protocol):
    """A device that runs behind the host; `distprof.record.device.torch_device.TorchDevice` and, made up for the tests,
    `benchmarks.simulate.device.SimulatedDevice`."""

    def make_events(self, number: int, *, timing: bool) -> list[Any]:
        """Creates events for good: none of them allocates anything when it is recorded. Synchronises."""

    def current_stream(self) -> Any:
        """The stream that the calling thread gives work to."""

    def make_stream(self, priority: int) -> Any:
        """Creates a stream beside the current one; below 0, the device does its work first."""

    def is_capturing(self) -> bool:
        """Whether the calling thread captures a graph: then events may be neither asked nor read."""

    def adopt_thread(self) -> None:
        """Makes the device the calling thread's own. A thread begins with the first device: were it to ask an event of
        another one, it would first take memory of that first device, on which it does nothing."""

    def make_buffer(self, number: int) -> Any:
        """Numbers in memory of the host that the device writes by itself, NaN at first."""

    def holds(self, value: Any) -> bool:
        """Whether a value lies on the device, so that the host would wait for the device if it read it now."""

    def copy_scalar(self, value: Any, buffer: Any, position: int) -> None:
        """Has the device write a value of its own into a buffer, behind the current stream's work.

        Raises:
            ValueError, RuntimeError: It is no scalar.
        """


class PhaseRanges(Protocol):
    """Shows phases to an external tool. Implemented by `distprof.record.windows.nvtx_ranges.NvtxRanges`."""

    def step(self, step: int) -> None: ...
    def enter(self, code: int) -> None: ...
    def exit(self) -> None: ...
    def error(self, code: int) -> None: ...
    def begin_mark(self, code: int) -> None: ...
    def end_mark(self) -> None: ...
    def end_step(self) -> None: ...
    def begin_stretch(self, name: str) -> None: ...
    def end_stretch(self) -> None: ...
