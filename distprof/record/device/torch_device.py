"""The device that torch computes on, through the part of torch that is the same for every accelerator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def is_capturing() -> bool:
    """Whether the calling thread captures a graph of a GPU, whatever device is meant."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


class TorchDevice:
    """Implements `distprof.record.step.protocols.Accelerator`; torch has had its parts since 2.6."""

    def __init__(self, device: torch.device) -> None:
        """``device``: of the accelerator, with its index."""
        self._device = device
        self.is_capturing: Callable[[], bool] = _find_capture_test(device)
        """Whether the calling thread captures a graph; False for accelerators that do not know."""

    def make_events(self, number: int, *, timing: bool) -> list[torch.Event]:
        """Creates events and records each once, because torch creates the device's own event only then. Synchronises.

        Args:
            number: How many.
            timing: Whether they measure time.
        """
        events = [torch.Event(self._device, enable_timing=timing) for _ in range(number)]
        stream = self.current_stream()
        for event in events:
            event.record(stream)
        torch.accelerator.synchronize(self._device)
        return events

    def current_stream(self) -> torch.Stream:
        """The stream that the calling thread gives work to."""
        return torch.accelerator.current_stream(self._device)

    def make_stream(self, priority: int) -> torch.Stream:
        """Takes a stream from torch's pool; accelerators know the priorities 0 and -1, which goes first."""
        return torch.Stream(self._device, priority=priority)

    def adopt_thread(self) -> None:
        """Makes it the calling thread's current device."""
        if hasattr(torch.accelerator, "set_device_index"):
            torch.accelerator.set_device_index(self._device)
        else:  # before torch 2.8
            torch.accelerator.set_device_idx(self._device)

    def make_buffer(self, number: int) -> list[torch.Tensor]:
        """Pinned memory, float32: a tensor without dimensions for each number, so that no step has to take it out."""
        return list(torch.full((number,), float("nan"), dtype=torch.float32).pin_memory().unbind())

    def holds(self, value: Any) -> bool:
        """Whether a value is a tensor on an accelerator: this one, or another that reading would wait for as well."""
        return isinstance(value, torch.Tensor) and value.device.type != "cpu"

    def copy_scalar(self, value: Any, buffer: Sequence[torch.Tensor], position: int) -> None:
        """Copies a tensor of one element behind the current stream's work, without waiting for it."""
        buffer[position].copy_(value.reshape(()) if value.dim() else value, non_blocking=True)


def _find_capture_test(device: torch.device) -> Callable[[], bool]:
    if device.type == "cuda" and hasattr(torch._C, "_cuda_isCurrentStreamCapturing"):
        test: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing  # asked at every stamp, so without a detour
        return test
    return getattr(torch.get_device_module(device), "is_current_stream_capturing", lambda: False)
