"""Schedules a simulated job by other rules than `benchmarks.simulate.schedule`, event by event.

Collectives are rings. A member sends to the next as soon as both are there and their streams are free, at first a
quarter of its data, and the rest once all have arrived. Transfers between ranks of a host share its bus, those that
leave it share its link: transfers under way at the same time slow each other down. Under DDP two buckets can be under
way. A rank can go on when its own part is done, so ranks leave a collective at different times.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator

import numpy as np

from benchmarks.simulate.draw import Load
from benchmarks.simulate.job import SimulatedJob
from benchmarks.simulate.network import Network
from benchmarks.simulate.program import Compute, Program, list_issues
from benchmarks.simulate.schedule import Schedule, find_last_arrivals

NUM_STREAMS = 2
"""Of DDP: its buckets take turns."""
ARRIVE, END, LEAVE = range(3)

_Event = tuple[float, int, int, int, int, int]
"""Time, order, and what: a rank arrives at or leaves the collective (rank, step, issue), or something ends in a pipe
(its number, its version)."""


def make_shared_schedule(job: SimulatedJob, program: Program, work: Load) -> Schedule:
    """Schedules a program."""
    player = _Player(job, program, work)
    player.play()
    return player.describe()


class _Player:
    """A job that is being played."""

    def __init__(self, job: SimulatedJob, program: Program, work: Load) -> None:
        self.job, self.program, self.work = job, program, work
        self.issues = list_issues(program)
        self.streams = [
            index % NUM_STREAMS if job.strategy == "ddp" and not op.between else 0
            for index, op in enumerate(self.issues)
        ]
        self.time_ns: list[list[list[float]]] = np.stack(
            [work.find_time(op, slice(None)) for op in program if isinstance(op, Compute)], axis=2
        ).tolist()
        self.wake_ns: list[list[list[float]]] = work.wake_ns.tolist()
        self.network = Network(job, work, self.issues)
        self.events: list[_Event] = []
        self.num_events = 0
        shape = (job.num_ranks, job.num_steps, len(self.issues))
        self.arrival, self.over, self.exposed = (np.full(shape, np.nan).tolist() for _ in range(3))
        self.begin, self.end = (np.zeros(shape[:2]).tolist() for _ in range(2))
        self.queues: list[list[deque[tuple[int, int]]]] = [
            [deque() for _ in range(NUM_STREAMS)] for _ in range(job.num_ranks)
        ]
        self.outstanding = [0] * job.num_ranks
        self.blocked: list[tuple[int, int] | None] = [None] * job.num_ranks
        self.ranks = [self._follow(rank) for rank in range(job.num_ranks)]

    def play(self) -> None:
        """Until every rank has done its last step."""
        for program in self.ranks:
            next(program, None)
        while self.events:
            now_ns, _, kind, first, step, issue = heapq.heappop(self.events)
            if kind == ARRIVE:
                queue = self.queues[first][self.streams[issue]]
                queue.append((step, issue))
                if len(queue) == 1:
                    self.network.join(now_ns, first, step, issue)
            elif kind == END:
                for rank, at_step, index in self.network.end(now_ns, first, step):
                    wake_ns = now_ns + self.wake_ns[rank][at_step][index]
                    self._push(wake_ns, LEAVE, rank, at_step, index)
            else:
                self._leave(now_ns, first, step, issue)
            for number, version, end_ns in self.network.list_next():
                self._push(end_ns, END, number, version, 0)

    def _push(self, at_ns: float, kind: int, first: int, step: int, issue: int) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (at_ns, self.num_events, kind, first, step, issue))

    def _follow(self, rank: int) -> Generator[None, float, None]:
        """Goes through a rank's steps; stops where the rank is blocked, and is sent the time at which it can go on."""
        now_ns = 0.0
        for step in range(self.job.num_steps):
            compute = issue = 0
            inside = False
            for op in self.program:
                if not inside and not op.between:
                    self.begin[rank][step], inside = now_ns, True
                if isinstance(op, Compute):
                    now_ns += self.time_ns[rank][step][compute]
                    compute += 1
                    continue
                if op.happens(step):
                    self.arrival[rank][step][issue], self.exposed[rank][step][issue] = now_ns, 0.0
                    self.outstanding[rank] += 1
                    self._push(now_ns, ARRIVE, rank, step, issue)
                    if op.blocking:
                        self.blocked[rank] = (step, issue)
                        now_ns = yield
                issue += 1
            self.end[rank][step] = now_ns

    def _leave(self, now_ns: float, rank: int, step: int, issue: int) -> None:
        """The collective is over for a rank, whose stream is free for the next. It goes on if it waited only for this:
        whoever waits for the last bucket waits for all of them."""
        self.over[rank][step][issue] = now_ns
        queue = self.queues[rank][self.streams[issue]]
        queue.popleft()
        if queue:
            self.network.join(now_ns, rank, *queue[0])
        self.outstanding[rank] -= 1
        waits = self.blocked[rank]
        if self.outstanding[rank] or waits is None:
            return
        at_step, index = waits
        self.blocked[rank] = None
        self.over[rank][at_step][index] = now_ns
        self.exposed[rank][at_step][index] = now_ns - self.arrival[rank][at_step][index]
        try:
            self.ranks[rank].send(now_ns)
        except StopIteration:
            return

    def describe(self) -> Schedule:
        """What was played."""
        arrival_ns = np.array(self.arrival)
        part_ns = self.work.own_ns.copy()
        for (code, _), more_ns in self.work.piece_ns.items():
            part_ns[:, :, code] += more_ns
        return Schedule(
            begin_ns=np.array(self.begin), end_ns=np.array(self.end), part_ns=part_ns, arrival_ns=arrival_ns,
            over_ns=np.array(self.over), exposed_ns=np.array(self.exposed),
            last_arrival_ns=find_last_arrivals(self.job, self.issues, arrival_ns),
        )  # fmt: skip
