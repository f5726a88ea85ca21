"""How fast data moves between the hosts of a job, measured before and after its steps.

Collective over a gloo group of all ranks that nothing else uses at that moment. Rank 0's host is joined with one other
host after the other, so that probes do not disturb each other. Ranks of a host share the result; with one host there is
nothing to measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from distprof.facts.run import LinkReading
from distprof.record.hosts.clock_sync import identify_host, visit
from distprof.world import collect_texts

SMALL_BYTES, LARGE_BYTES = 256 * 2**10, 4 * 2**20
QUICK_NS = 20_000_000
"""A link that moves the small message faster than this gets the large one too: the time was mostly latency."""
NUM_TRANSFERS = 3


def probe_links(
    group: dist.ProcessGroup,
    *,
    host: str | None = None,
    now_ns: Callable[[], int] = time.monotonic_ns,
    limit_s: float | None = None,
) -> tuple[LinkReading, ...]:
    """How fast data moves between rank 0's host and each other one, on every rank. Collective; sends up to 24 MiB each.

    The best of three transfers counts each way, and of the two ways the slower one. The time includes one small
    message, so a very fast link is measured as too slow, never as too fast.

    Args:
        group: All ranks, over gloo; nothing else uses it meanwhile.
        host: Identifies this rank's host. None: see `identify_host`.
        now_ns: The clock, monotonic, ns.
        limit_s: For so long new transfers begin; hosts that are not done by then have no reading. A single message that
            takes longer is a failure. None: no limit but the group's time-out.

    Raises:
        RuntimeError: A rank has gone, or does not answer in time. The group may then be of no more use.
    """
    hosts = collect_texts(identify_host() if host is None else host, group=group)
    until_s = None if limit_s is None else time.monotonic() + limit_s
    found = visit(
        group, hosts, lambda rank: _Prober(group, rank, now_ns, limit_s, until_s).probe(), lambda: _echo(group)
    )
    speeds = {rank: bytes_per_s for rank, bytes_per_s in found.items() if bytes_per_s is not None}
    return tuple(LinkReading(rank=rank, bytes_per_s=bytes_per_s) for rank, bytes_per_s in speeds.items())


class _Prober:
    """Rank 0's side of one link."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        rank: int,
        now_ns: Callable[[], int],
        limit_s: float | None,
        until_s: float | None,
    ) -> None:
        self._group, self._rank, self._now_ns = group, rank, now_ns
        self._limit = None if limit_s is None else timedelta(seconds=limit_s)
        self._until_s = until_s

    def probe(self) -> float | None:
        """Bytes per second of the slower way. None: there was no time."""
        buffer = torch.zeros(LARGE_BYTES, dtype=torch.uint8)
        used, slower_ns = SMALL_BYTES, self._transfer(buffer[:SMALL_BYTES])
        if slower_ns is not None and slower_ns < QUICK_NS:
            used, slower_ns = LARGE_BYTES, self._transfer(buffer)
        self._send(torch.zeros(1, dtype=torch.int64))
        return None if slower_ns is None else used * 1e9 / max(slower_ns, 1)

    def _transfer(self, buffer: torch.Tensor) -> int | None:
        """Moves the buffer both ways several times; returns the best time of the slower way, ns. None: there was no
        time for all of them, and fewer would read too little."""
        order, done = torch.tensor([buffer.numel()]), torch.zeros(1, dtype=torch.int64)
        ways: list[tuple[int, int]] = []
        for _ in range(NUM_TRANSFERS):
            if self._until_s is not None and time.monotonic() >= self._until_s:
                return None
            begin = self._now_ns()
            self._send(order)
            self._receive(buffer)
            middle = self._now_ns()
            self._send(buffer)
            self._receive(done)
            ways.append((middle - begin, self._now_ns() - middle))
        return max(min(there for there, _ in ways), min(back for _, back in ways))

    def _send(self, buffer: torch.Tensor) -> None:
        self._wait(self._group.send([buffer], self._rank, 0))

    def _receive(self, buffer: torch.Tensor) -> None:
        self._wait(self._group.recv([buffer], self._rank, 0))

    def _wait(self, work: dist.Work) -> None:
        work.wait() if self._limit is None else work.wait(self._limit)


def _echo(group: dist.ProcessGroup) -> None:
    """The other side: sends back what it is asked for, until it is asked for nothing."""
    buffer = torch.zeros(LARGE_BYTES, dtype=torch.uint8)
    order, done = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    while True:
        group.recv([order], 0, 0).wait()
        if int(order) == 0:
            return
        group.send([buffer[: int(order)]], 0, 0).wait()
        group.recv([buffer[: int(order)]], 0, 0).wait()
        group.send([done], 0, 0).wait()
