"""Plays one replica of a made-up pipeline, one event after the other.

Its rules are neither those of the replay nor the simple ones. A receive is posted one operation ahead of its
computation. A worker has one line out and one line in: messages queue for both, in the order in which they are ready,
so that gradients and activations hold each other up. Between the end of what an operation waits for and its start lies
a launch.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from benchmarks.simulate.pipeline_durations import Durations, OperationRow
from distprof.facts.operations import Kind

Program = list[tuple[bool, int]]
Message = tuple[int, int, bool, int]
"""From stage, to stage, whether it is a forward's, and the micro-batch."""


def play_events(
    durations: Durations, programs: list[Program], rows: list[OperationRow], at: tuple[int, int]
) -> list[float]:
    """Plays forwards and backwards; returns when each stage is done."""
    replica = _Replica(durations, programs, rows, at)
    for stage in range(len(programs)):
        replica.begin(stage, 0)
    replica.run()
    return replica.done_ns


class _Replica:
    """The state of one replica in one step."""

    def __init__(
        self, durations: Durations, programs: list[Program], rows: list[OperationRow], at: tuple[int, int]
    ) -> None:
        self._durations, self._programs, self._rows, self._at = durations, programs, rows, at
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._now_ns = 0.0
        stages = len(programs)
        self.done_ns = [0.0] * stages
        self._out_ns, self._in_ns = [0.0] * stages, [0.0] * stages
        self._sent_ns: dict[Message, float] = {}
        self._posted_ns: dict[Message, float] = {}
        self._arrived: set[Message] = set()
        self._waiting: dict[Message, tuple[int, int]] = {}

    def run(self) -> None:
        """Until nothing more happens."""
        while self._events:
            self._now_ns, _, happen = heapq.heappop(self._events)
            happen()

    def _schedule(self, time_ns: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_ns, next(self._count), happen))

    def begin(self, stage: int, index: int) -> None:
        """The stage comes to an operation of its program: it posts this receive and the next one, and computes once
        what it needs is there."""
        for ahead in (index, index + 1):
            needed = self._find_source(stage, ahead)
            if needed is not None and needed not in self._posted_ns:
                self._posted_ns[needed] = self._now_ns
                self._move(needed)
        if index == len(self._programs[stage]):
            self.done_ns[stage] = self._now_ns
            return
        needed = self._find_source(stage, index)
        if needed is None or needed in self._arrived:
            self._launch(stage, index)
        else:
            self._waiting[needed] = (stage, index)

    def _find_source(self, stage: int, index: int) -> Message | None:
        if index >= len(self._programs[stage]):
            return None
        forward, batch = self._programs[stage][index]
        source = stage - 1 if forward else stage + 1
        return (source, stage, forward, batch) if 0 <= source < len(self._programs) else None

    def _launch(self, stage: int, index: int) -> None:
        forward, batch = self._programs[stage][index]
        place = (*self._at, stage, int(not forward), batch)
        start_ns = self._now_ns + float(self._durations.launch_ns[place])
        took_ns = float(self._durations.compute_ns[place])
        self._record(stage, Kind.FORWARD if forward else Kind.BACKWARD, start_ns, start_ns + took_ns, batch)
        self._schedule(start_ns + took_ns, lambda: self._end(stage, index))

    def _end(self, stage: int, index: int) -> None:
        forward, batch = self._programs[stage][index]
        target = stage + 1 if forward else stage - 1
        if 0 <= target < len(self._programs):
            message = (stage, target, forward, batch)
            self._sent_ns[message] = self._now_ns
            self._move(message)
        self.begin(stage, index + 1)

    def _move(self, message: Message) -> None:
        """Moves it if it is sent and its receive is posted: as soon as both lines are free."""
        if message not in self._sent_ns or message not in self._posted_ns:
            return
        source, target, forward, batch = message
        begin_ns = max(self._now_ns, self._out_ns[source], self._in_ns[target])
        place = (*self._at, min(source, target), int(not forward), batch)
        end_ns = begin_ns + float(self._durations.transfer_ns[place])
        self._out_ns[source] = self._in_ns[target] = end_ns
        self._record(
            source, Kind.FORWARD_SEND if forward else Kind.BACKWARD_SEND, self._sent_ns[message], end_ns, batch
        )
        receive = Kind.FORWARD_RECV if forward else Kind.BACKWARD_RECV
        self._record(target, receive, self._posted_ns[message], end_ns, batch)
        self._schedule(end_ns, lambda: self._arrive(message))

    def _arrive(self, message: Message) -> None:
        self._arrived.add(message)
        if message in self._waiting:
            self._launch(*self._waiting.pop(message))

    def _record(self, stage: int, kind: Kind, start_ns: float, end_ns: float, batch: int) -> None:
        step, replica = self._at
        passes = kind in (Kind.FORWARD, Kind.BACKWARD)
        self._rows.append(
            OperationRow(replica, stage, step, kind, start_ns, end_ns - start_ns, batch, batch if passes else -1)
        )
