"""One range over the measured steps that starts and stops a capture, on all ranks together.

Nsight Systems captures every process of its node from the first time that any of them opens the range to the first
time that any closes it. So that no rank's first or last step is cut off, no rank begins a measured step before every
rank has opened the range, and none closes it before every rank, and its device, has ended its last step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from distprof.record.windows.nvtx_ranges import NvtxRanges, tool_listens


class CaptureRange:
    """Opens the range before the first measured step and closes it at the end. Used by one thread."""

    def __init__(
        self,
        ranges: NvtxRanges | None,
        *,
        synchronise: Callable[[], None],
        meet: Callable[[], None] = lambda: None,
        device_profiler: Any = None,
    ) -> None:
        """Args:
        ranges: This rank's ranges. None: a tool listens on another rank, but not here.
        synchronise: Waits for this rank's device.
        meet: Waits for every rank. Collective.
        device_profiler: `torch.cuda.profiler`, or what has its ``start`` and ``stop``. None: the rank has no GPU.
        """
        self._ranges, self._synchronise, self._meet, self._device_profiler = ranges, synchronise, meet, device_profiler
        self._begun = False

    def begin(self) -> bool:
        """Begins the capture before the next step; does nothing when called again. Collective; synchronises.

        Returns:
            Whether it began now.
        """
        if self._begun:
            return False
        self._begun = True
        self._synchronise()
        self._meet()
        if self._ranges is not None:
            self._ranges.begin_measured()
        if self._device_profiler is not None:
            with contextlib.suppress(RuntimeError):  # no tool to start, or one that runs already
                self._device_profiler.start()
        self._synchronise()
        self._meet()
        if self._ranges is not None:
            self._ranges.name_rank()  # the mark made at the start is not in the capture
        return True

    def end(self) -> None:
        """Ends the capture, if it has begun. Every rank has ended its last step; synchronises."""
        if self._begun:
            self._synchronise()
            if self._ranges is not None:
                self._ranges.end_measured()
            if self._device_profiler is not None:
                with contextlib.suppress(RuntimeError):
                    self._device_profiler.stop()


def plan_capture(
    ranges: NvtxRanges | None, device: torch.device, meet: Callable[[], None], *, listens: bool
) -> CaptureRange | None:
    """The capture range; None: no tool listens.

    Args:
        ranges: This rank's ranges, if it has any.
        device: This rank's device.
        meet: Waits for every rank. Collective.
        listens: Whether a tool listens, on any of the ranks that wait for each other; see `tool_captures`.
    """
    if not listens:
        return None
    on_gpu = device.type == "cuda"

    def synchronise() -> None:
        if on_gpu:
            torch.cuda.synchronize(device)

    return CaptureRange(
        ranges, synchronise=synchronise, meet=meet, device_profiler=torch.cuda.profiler if on_gpu else None
    )


def tool_captures(ranges: NvtxRanges | None, device: torch.device) -> bool:
    """Whether a tool listens to this process."""
    return (ranges is not None and tool_listens()) or (device.type == "cuda" and tool_sees_cuda())


def tool_sees_cuda(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a tool such as Nsight Systems has injected itself into CUDA, which this variable announces."""
    return bool(environment.get("CUDA_INJECTION64_PATH"))
