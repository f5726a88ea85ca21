"""The measured steps as one range that starts and stops a capture, on all ranks together.

Nsight Systems captures every process of its node from the first begin of the range to its first end, wherever either
happens. So that no rank's first or last step is cut, no rank begins a measured step before every rank has opened the
range, and none closes it before every rank has ended its last step, on the device too. Both happen between steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distprof.record.nvtx_ranges import NvtxRanges, tool_listens


class CaptureRange:
    """Opens the range at the first measured step and closes it at the end. One thread."""

    def __init__(self, ranges: NvtxRanges | None, *, synchronise: Callable[[], None]) -> None:
        """Opens nothing yet.

        Args:
            ranges: This rank's ranges. None: no tool listens here, though on another rank one does.
            synchronise: Waits for this rank's device and for every rank. Collective.
        """
        self._ranges, self._synchronise = ranges, synchronise
        self._begun = False

    def begin(self) -> None:
        """Begins the capture, with the next step; a second time it does nothing. Collective; synchronises."""
        if self._begun:
            return
        self._begun = True
        self._synchronise()
        if self._ranges is not None:
            self._ranges.begin_measured()
        self._synchronise()
        if self._ranges is not None:
            self._ranges.name_rank()  # the mark of the start lies outside the capture

    def end(self) -> None:
        """Ends the capture, if it has begun. Collective; synchronises."""
        if self._begun:
            self._synchronise()
            if self._ranges is not None:
                self._ranges.end_measured()


def agree_on_capture(ranges: NvtxRanges | None, device: torch.device) -> CaptureRange | None:
    """The capture range of a job that any tool listens to; None: none does. Collective, over the CPU.

    Args:
        ranges: This rank's ranges, where it makes any.
        device: This rank's device.
    """
    listening = torch.tensor([ranges is not None and tool_listens()], dtype=torch.int64)
    dist.all_reduce(listening, op=dist.ReduceOp.MAX)
    if not listening:
        return None

    def synchronise() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        dist.all_reduce(torch.zeros(1))

    return CaptureRange(ranges, synchronise=synchronise)
