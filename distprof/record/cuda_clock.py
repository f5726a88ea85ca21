"""The device clock: CUDA events on the compute stream, allocated before the first step and read steps later."""

from __future__ import annotations

from typing import Any

import torch

from distprof.record.timeline import MAX_SEGMENTS

NUM_ROWS = 6
"""Most steps in flight on the device; a step that finds no free row has no device times."""


class CudaClock:
    """One row of events per step in flight. Never synchronises, except in `read` with ``wait``."""

    def __init__(self, device: torch.device, *, num_rows: int = NUM_ROWS, num_events: int = MAX_SEGMENTS) -> None:
        """Creates every event and records it once, so that none is created inside a step. Synchronises."""
        self._device = device
        self._stream = torch.cuda.current_stream(device)
        self._rows = [[_make_event() for _ in range(num_events)] for _ in range(num_rows)]
        for row in self._rows:
            for event in row:
                event.record(self._stream)
        self._scalars = torch.full((num_rows, 2), float("nan"), dtype=torch.float32).pin_memory()
        self._kept: list[tuple[Any, Any]] = [(None, None)] * num_rows
        self._last = [0] * num_rows
        self._free = list(range(num_rows))
        self._open = -1
        self._events: list[torch.cuda.Event] = []
        torch.cuda.synchronize(device)

    def open(self) -> bool:
        """Takes a free row; the current stream becomes the compute stream."""
        if not self._free:
            return False
        self._open = self._free.pop()
        self._events = self._rows[self._open]
        self._stream = torch.cuda.current_stream(self._device)
        return True

    def stamp(self, position: int) -> None:
        """Records an event on the compute stream, even if another stream is current."""
        self._events[position].record(self._stream)

    def close(self, *, position: int, scalars: tuple[Any, Any]) -> int:
        """Copies the scalars to pinned memory behind the step's work, ends the step, returns the row as the ticket."""
        row = self._open
        for column, value in enumerate(scalars):
            if isinstance(value, torch.Tensor) and value.is_cuda:
                with torch.cuda.stream(self._stream):
                    self._scalars[row, column].copy_(value.detach(), non_blocking=True)
        self._kept[row] = scalars
        self._last[row] = position
        self.stamp(position)
        return row

    def read(self, ticket: int, *, wait: bool) -> tuple[list[int], int, tuple[float | None, float | None]] | None:
        """Segment lengths and step length, device ns (resolution about 500 ns), and the scalars."""
        events, position = self._rows[ticket], self._last[ticket]
        last = events[position]
        if wait:
            last.synchronize()
        elif not last.query():  # type: ignore[no-untyped-call]
            return None
        durations = [round(events[index].elapsed_time(events[index + 1]) * 1e6) for index in range(position)]
        total = round(events[0].elapsed_time(last) * 1e6)
        scalars = tuple(self._scalar(ticket, column) for column in range(2))
        self._kept[ticket] = (None, None)
        self._free.append(ticket)
        return durations, total, (scalars[0], scalars[1])

    def _scalar(self, row: int, column: int) -> float | None:
        value = self._kept[row][column]
        if value is None:
            return None
        on_device = isinstance(value, torch.Tensor) and value.is_cuda
        return float(self._scalars[row, column]) if on_device else float(value)


def _make_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
