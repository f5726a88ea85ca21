"""One range over the measured steps that starts and stops a capture, on all ranks together.

Nsight Systems captures every process of its node from the first time that any of them opens the range to the first
time that any closes it. So that no rank's first or last step is cut off, no rank begins a measured step before every
rank has opened the range, and none closes it before every rank, and its device, has ended its last step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distprof.record.nvtx_ranges import NvtxRanges, tool_listens


class CaptureRange:
    """Opens the range before the first measured step and closes it at the end. Used by one thread."""

    def __init__(self, ranges: NvtxRanges | None, *, synchronise: Callable[[], None]) -> None:
        """Opens nothing yet.

        Args:
            ranges: This rank's ranges. None: a tool listens on another rank, but not here.
            synchronise: Waits for this rank's device and for every rank. Collective.
        """
        self._ranges, self._synchronise = ranges, synchronise
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
        if self._ranges is not None:
            self._ranges.begin_measured()
        self._synchronise()
        if self._ranges is not None:
            self._ranges.name_rank()  # the mark made at the start is not in the capture
        return True

    def end(self) -> None:
        """Ends the capture, if it has begun. Collective; synchronises."""
        if self._begun:
            self._synchronise()
            if self._ranges is not None:
                self._ranges.end_measured()


def agree_on_capture(ranges: NvtxRanges | None, device: torch.device) -> CaptureRange | None:
    """The capture range, if a tool listens on any rank; None: no tool does. Collective, over the CPU.

    Args:
        ranges: This rank's ranges, if it has any.
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
