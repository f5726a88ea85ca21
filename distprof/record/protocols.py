"""Interfaces that a recorder uses besides the host clock."""

from __future__ import annotations

from typing import Any, Protocol


class DeviceClock(Protocol):
    """Time stamps on a device's stream, read later. Implemented by `distprof.record.cuda_clock.CudaClock`."""

    def open(self) -> bool:
        """Takes a free row of events for a new step; False: none is free, and this step has no device times."""

    def stamp(self, position: int) -> None:
        """Records event ``position`` of the open step on the compute stream."""

    def close(self, *, position: int, scalars: tuple[Any, Any]) -> int:
        """Ends the open step with event ``position``; returns a ticket for `read`."""

    def read(self, ticket: int, *, wait: bool) -> tuple[list[int], int, tuple[float | None, float | None]] | None:
        """Segment lengths and step length in device ns, and the scalars; None: not finished yet.

        Synchronises only with ``wait``.
        """


class PhaseRanges(Protocol):
    """Shows phases to an external tool. Implemented by `distprof.record.nvtx_ranges.NvtxRanges`."""

    def step(self, step: int) -> None: ...
    def enter(self, code: int) -> None: ...
    def exit(self) -> None: ...
    def error(self, code: int) -> None: ...
    def begin_mark(self, code: int) -> None: ...
    def end_mark(self) -> None: ...
    def end_step(self) -> None: ...
    def begin_stretch(self, name: str) -> None: ...
    def end_stretch(self) -> None: ...
