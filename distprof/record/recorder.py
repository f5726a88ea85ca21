"""The stop-watch of one rank: a step is a row of segments, each with one phase.

Every call that changes the phase closes the running segment at the stamp that opens the next, so that the phases of a
step sum to the step on each clock by construction. Nothing here synchronises with a device, waits, or does I/O, and
nothing grows: lists are allocated once and finished steps wait in a bounded queue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from distprof.run import KINDS, PHASE_CODE, PHASES, CollectiveKind, Phase, Segments

MAX_SEGMENTS = 1024
MAX_COLLECTIVES = 1024
QUEUED_STEPS = 8192
_OTHER = PHASE_CODE[Phase.OTHER]


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """One finished step, as the recorder saw it."""

    step: int
    warmup: bool
    failed: bool
    shadow: bool = False
    """Ran without instruments."""
    micro_steps: int
    tokens: int
    step_host_ns: int
    phase_host_ns: list[int] | None
    """By phase code. None at level off."""
    segments: Segments
    segments_lost: int
    """Segments past `MAX_SEGMENTS`: on the host clock counted in their phase but not in ``segments``."""
    collectives: list[tuple[int, int, int, int]]
    """(kind code, bytes, start host ns, end host ns); end 0: not seen by the host."""
    scalars: tuple[float | None, float | None]
    """Loss and gradient norm."""
    wait_host_ns: list[int] | None = None
    """Waited in collectives that stand inside own phases, by position in `OWN_PHASES`. None: not known."""
    phase_device_ns: list[int] | None = None
    wait_device_ns: list[int] | None = None
    step_device_ns: int | None = None


class DeviceClock(Protocol):
    """Stamps on a device's stream, read later. Implemented by `distprof.record.cuda_clock.CudaClock`."""

    def open(self) -> bool:
        """Takes a free row of events for a new step; False: none is free and this step goes without."""

    def stamp(self, position: int) -> None:
        """Records event ``position`` of the open step on the compute stream."""

    def close(self, *, position: int, scalars: tuple[Any, Any]) -> int:
        """Ends the open step with event ``position``; returns a ticket to read it by."""

    def read(self, ticket: int, *, wait: bool) -> tuple[list[int], int, tuple[float | None, float | None]] | None:
        """Segment lengths and whole length in device ns, and the scalars; None: not finished yet.

        Synchronises only with ``wait``.
        """


class PhaseRanges(Protocol):
    """What shows the phases to an outside tool. Implemented by `distprof.record.nvtx_ranges.NvtxRanges`."""

    def step(self, step: int) -> None: ...
    def enter(self, code: int) -> None: ...
    def exit(self) -> None: ...
    def begin_mark(self, code: int) -> None: ...
    def end_mark(self) -> None: ...
    def end_step(self) -> None: ...


class Recorder:
    """Records the steps of one rank. One thread at a time: the training thread, or autograd's while that one waits."""

    def __init__(
        self,
        *,
        phases: bool = True,
        now_ns: Callable[[], int] = time.monotonic_ns,
        device_clock: DeviceClock | None = None,
        ranges: PhaseRanges | None = None,
    ) -> None:
        """Allocates everything a step needs.

        Args:
            phases: False at level off: only the step is timed.
            now_ns: The host clock, monotonic, ns.
            device_clock: Stamps on the device's stream, where there is one.
            ranges: NVTX ranges, where a tool listens.
        """
        self._now, self._device, self._ranges, self._phases = now_ns, device_clock, ranges, phases
        self._codes, self._stamps = [0] * MAX_SEGMENTS, [0] * MAX_SEGMENTS
        self._kinds, self._bytes = [0] * MAX_COLLECTIVES, [0] * MAX_COLLECTIVES
        self._starts, self._ends = [0] * MAX_COLLECTIVES, [0] * MAX_COLLECTIVES
        self._totals = [0] * len(PHASES)
        self._stack = [_OTHER]
        self._count = self._lost = self._collectives = 0
        self._current, self._last, self._begin = _OTHER, 0, 0
        self._step, self._warmup, self._tokens, self._micro_steps = 0, False, 0, 0
        self._loss: Any = None
        self._grad_norm: Any = None
        self._stamping = False
        self.open = False
        """Whether a step is running."""
        self._on_device: deque[tuple[int, StepRecord]] = deque()
        self._finished: deque[StepRecord] = deque(maxlen=QUEUED_STEPS)
        self._put = self._taken = 0
        self.rows_lost = 0
        """Finished steps that were overwritten before anyone took them."""

    def begin_step(self, step: int, *, warmup: bool) -> None:
        """Opens a step; one left open by an exception is closed as failed."""
        if self.open:
            self.end_step(failed=True)
        self._step, self._warmup = step, warmup
        self._tokens = self._micro_steps = self._count = self._lost = self._collectives = 0
        self._loss = self._grad_norm = None
        for code in range(len(PHASES)):
            self._totals[code] = 0
        del self._stack[1:]
        self.open = True
        if self._ranges is not None:
            self._ranges.step(step)
        self._stamping = self._device is not None and self._device.open()
        self._current = _OTHER
        self._begin = self._last = self._now()
        self._switch(_OTHER)

    def end_step(self, *, failed: bool = False) -> None:
        """Closes the step and queues its record."""
        now = self._now()
        self._totals[self._current] += now - self._last
        self.open = False
        if self._ranges is not None:
            self._ranges.end_step()
        record = self._record(now, failed)
        if not self._stamping or self._device is None:
            self._queue(record)
        else:
            ticket = self._device.close(position=self._count, scalars=(self._loss, self._grad_norm))
            self._on_device.append((ticket, record))
        self._collect_from_device(wait=False)

    def enter(self, code: int) -> None:
        """Opens a phase inside the running one, by phase code."""
        self._stack.append(code)
        self._switch(code)
        if self._ranges is not None:
            self._ranges.enter(code)

    def exit(self) -> None:
        """Closes the phase opened last and goes back to the one around it."""
        if self._ranges is not None:
            self._ranges.exit()
        if len(self._stack) > 1:
            self._stack.pop()
        self._switch(self._stack[-1])

    def mark(self, code: int) -> None:
        """Starts a segment of another phase inside the running one, until `resume` or until that one is closed."""
        if self.open and self._phases:
            self._switch(code)
            if self._ranges is not None:
                self._ranges.begin_mark(code)

    def resume(self) -> None:
        """Ends a segment that `mark` began."""
        if self.open and self._phases:
            if self._ranges is not None:
                self._ranges.end_mark()
            self._switch(self._stack[-1])

    def add_work(self, *, tokens: int, micro_steps: int = 1) -> None:
        """Counts what this step has processed."""
        self._tokens += tokens
        self._micro_steps += micro_steps

    def keep_scalars(self, *, loss: Any = None, grad_norm: Any = None) -> None:
        """Keeps the step's loss and gradient norm: numbers or tensors, which are not read before the device is done."""
        self._loss = loss if loss is not None else self._loss
        self._grad_norm = grad_norm if grad_norm is not None else self._grad_norm

    def begin_collective(self, kind: CollectiveKind, size_bytes: int) -> int:
        """Notes that a collective is issued; returns its ticket, -1 when there is no room or no step."""
        position = self._collectives
        if not self.open or position >= MAX_COLLECTIVES:
            return -1
        self._collectives = position + 1
        self._kinds[position], self._bytes[position] = KINDS.index(kind), size_bytes
        self._ends[position] = 0
        self._starts[position] = self._now()
        return position

    def end_collective(self, ticket: int) -> None:
        """Notes on the host clock that a collective has ended: only where the host can see that."""
        if ticket >= 0:
            self._ends[ticket] = self._now()

    def drain(self, *, wait: bool = False) -> list[StepRecord]:
        """Takes the finished steps; may be called from another thread.

        Args:
            wait: Also waits for the device to finish the last ones. Synchronises: only after training.
        """
        if wait:
            self._collect_from_device(wait=True)
        taken = []
        while self._finished:
            taken.append(self._finished.popleft())
        self._taken += len(taken)
        self.rows_lost = self._put - self._taken - len(self._finished)
        return taken

    def _switch(self, code: int) -> None:
        # The hottest lines of the project: one call, no loop, nothing allocated but integers.
        now = self._now()
        self._totals[self._current] += now - self._last
        self._last = now
        self._current = code
        position = self._count
        if position < MAX_SEGMENTS - 1:
            self._codes[position] = code
            self._stamps[position] = now
            if self._stamping:
                self._device.stamp(position)  # type: ignore[union-attr]
            self._count = position + 1
        else:
            self._lost += 1

    def _record(self, now: int, failed: bool) -> StepRecord:
        count = self._count
        stamps = [*self._stamps[:count], now]
        segments = Segments(
            begin_ns=self._begin,
            codes=tuple(self._codes[:count]),
            durations_ns=tuple(stamps[index + 1] - stamps[index] for index in range(count)),
            truncated=self._lost > 0,
        )
        number = self._collectives
        return StepRecord(
            step=self._step, warmup=self._warmup, failed=failed, micro_steps=self._micro_steps, tokens=self._tokens,
            step_host_ns=now - self._begin, phase_host_ns=list(self._totals) if self._phases else None,
            segments=segments, segments_lost=self._lost,
            collectives=list(zip(self._kinds[:number], self._bytes, self._starts, self._ends, strict=False)),
            scalars=(None, None) if self._stamping else (_as_float(self._loss), _as_float(self._grad_norm)),
        )  # fmt: skip

    def _queue(self, record: StepRecord) -> None:
        self._put += 1
        self._finished.append(record)

    def _collect_from_device(self, *, wait: bool) -> None:
        """Moves steps whose events have happened to the queue, in order."""
        while self._on_device and self._device is not None:
            ticket, record = self._on_device[0]
            read = self._device.read(ticket, wait=wait)
            if read is None:
                return
            self._on_device.popleft()
            durations, total, record.scalars = read
            if record.segments_lost == 0 and record.phase_host_ns is not None:
                record.phase_device_ns = [0] * len(PHASES)
                for code, duration in zip(record.segments.codes, durations, strict=True):
                    record.phase_device_ns[code] += duration
                record.step_device_ns = total
            self._queue(record)


def _as_float(value: Any) -> float | None:
    return None if value is None else float(value)
