"""How fast data moves between the hosts of a job, from CPU to CPU and from device to device, before and after steps.

Collective over a gloo group of all ranks that nothing else uses at that moment. Rank 0's host is joined with one other
host after the other, so that probes do not disturb each other. With one host there is nothing to measure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from distprof.facts.run import LinkReading
from distprof.record.hosts.clock_sync import identify_host, visit
from distprof.record.step.protocols import Accelerator
from distprof.world import collect_texts

HOST_SMALL_BYTES, HOST_LARGE_BYTES = 256 * 2**10, 4 * 2**20
HOST_QUICK_NS = 20_000_000
"""A link that moves the small message faster than this gets the large one too: the time was mostly latency."""
HOST_LONG_NS = 200_000_000
"""A link that moves it faster than this moves a larger message as well, which takes about so long: switches and limits
let so much pass at once that a short message looks faster than a link is."""
NUM_TRANSFERS = 3

DEVICE_SMALL_BYTES, DEVICE_LARGE_BYTES = 2**20, 16 * 2**20
DEVICE_QUICK_NS = 5_000_000
"""The same between devices."""
SMALL_ROUNDS, LARGE_ROUNDS = 2, 4
"""Exchanges in a row that are timed together."""
NUM_BLOCKS = 3
"""Times that the large message is timed; the shortest counts."""


def probe_links(
    group: dist.ProcessGroup,
    *,
    host: str | None = None,
    now_ns: Callable[[], int] = time.monotonic_ns,
    limit_s: float | None = None,
) -> tuple[LinkReading, ...]:
    """How fast data moves over gloo between rank 0's host and each other one. Collective; sends up to 24 MiB each.

    Every rank gets the readings; ranks of a host share them.

    The best of three transfers counts each way, and of the two ways the slower one. The time includes one small
    message, so a very fast link is measured as too slow, never as too fast. Of a slow one it is what a larger message
    takes beyond the small one, so that what passes at once and how long a message is on its way do not count.

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
        buffer = torch.zeros(HOST_LARGE_BYTES, dtype=torch.uint8)
        small_ns = self._transfer(buffer[:HOST_SMALL_BYTES])
        found = None
        if small_ns is not None and small_ns < HOST_QUICK_NS:
            large_ns = self._transfer(buffer)
            found = None if large_ns is None else HOST_LARGE_BYTES * 1e9 / max(large_ns, 1)
        elif small_ns is not None:
            found = self._probe_slow(buffer, small_ns)
        self._send(torch.zeros(1, dtype=torch.int64))
        return found

    def _probe_slow(self, buffer: torch.Tensor, small_ns: int) -> float:
        """Bytes per second of a link on which the small message took so long."""
        more_bytes = min(HOST_SMALL_BYTES * max(1, HOST_LONG_NS // small_ns), HOST_LARGE_BYTES - HOST_SMALL_BYTES)
        longer_ns = self._transfer(buffer[: HOST_SMALL_BYTES + more_bytes]) if small_ns < HOST_LONG_NS else None
        if longer_ns is None or longer_ns <= small_ns:
            return HOST_SMALL_BYTES * 1e9 / small_ns
        return more_bytes * 1e9 / (longer_ns - small_ns)

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
    echo(
        lambda buffer: group.send([buffer], 0, 0).wait(),
        lambda buffer: group.recv([buffer], 0, 0).wait(),
        torch.zeros(HOST_LARGE_BYTES, dtype=torch.uint8),
    )


def echo(
    send: Callable[[torch.Tensor], object], receive: Callable[[torch.Tensor], object], buffer: torch.Tensor
) -> None:
    """The other side of exchanges: sends back what it is asked for and takes as much, until it is asked for nothing.

    Args:
        send: Sends to the rank that asks.
        receive: Receives from it. What it has received can be read at once.
        buffer: Bytes, at least as many as are asked for, where ``send`` and ``receive`` take their data.
    """
    order, done = (torch.zeros(1, dtype=torch.int64, device=buffer.device) for _ in range(2))
    while True:
        receive(order)
        if int(order) == 0:
            return
        send(buffer[: int(order)])
        receive(buffer[: int(order)])
        send(done)


def probe_device_links(
    group: dist.ProcessGroup,
    device: Accelerator,
    place: torch.device,
    *,
    limit_s: float,
    host: str | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> tuple[LinkReading, ...]:
    """How fast data moves over the backend that moves it from device to device, such as NCCL, both ways at once.

    All ranks of two hosts take part side by side, each with the one that has its place on the other host: so every
    network card is used that a collective would use. Every rank gets the readings. Collective, and synchronises. Uses
    the default group, whose communicator it creates if nothing has used it yet; none is created for the probe. Each
    pair of ranks sends up to 194 MiB each way.

    A pair of ranks takes what the quicker of the two measured on its own device clock: the other one may have begun to
    wait early. The slowest pair of two hosts counts, times the number of pairs, since collectives spread their data
    evenly. With different numbers of ranks on hosts, each takes part with as many as the smallest has.

    Args:
        group: All ranks, over gloo, for what is agreed on; nothing else uses it meanwhile.
        device: Gives the events.
        place: This rank's device, where the buffers are.
        limit_s: For so long pairs of hosts are begun; those that are not have no reading.
        host: Identifies this rank's host. None: see `identify_host`.
        now_s: The clock of the limit, monotonic, s.

    Raises:
        RuntimeError: Some rank has no memory for the probe, or cannot reach another.
    """
    rows = _pair_ranks(collect_texts(identify_host() if host is None else host, group=group))
    if not rows:
        return ()
    prober, failure = None, ""
    try:
        prober = _PairProber(device, place)
    except RuntimeError as error:  # no memory: then no rank may begin, or its peer would wait for ever
        failure = str(error)
    _raise_first(collect_texts(failure, group=group))
    assert prober is not None
    found: dict[int, float] = {}
    try:
        prober.connect()
        until_s = now_s() + limit_s  # without what the job would have needed to connect anyway
        for near, far in [pair for row in rows for pair in row if dist.get_rank() in pair]:
            if dist.get_rank() == far:
                prober.measure(near, go=True)
            elif (speed := prober.measure(far, go=now_s() < until_s)) is not None:
                found[far] = speed
    except RuntimeError as error:
        failure = str(error)
    ranks = [json.loads(text) for text in collect_texts(json.dumps([[*found.items()], failure]), group=group)]
    _raise_first([text for _, text in ranks])
    speeds = {int(far): float(speed) for items, _ in ranks for far, speed in items}
    return tuple(
        LinkReading(
            rank=row[0][1], bytes_per_s=len(row) * min(speeds[far] for _, far in row), network=_name_backend(place)
        )
        for row in rows
        if all(far in speeds for _, far in row)
    )


class _PairProber:
    """One rank's side of its pairs. Both sides call the same functions in the same order."""

    def __init__(self, device: Accelerator, place: torch.device) -> None:
        """Allocates. Synchronises.

        Raises:
            RuntimeError: There is no memory.
        """
        self._device = device
        self._out, self._into = (torch.zeros(DEVICE_LARGE_BYTES, dtype=torch.uint8, device=place) for _ in range(2))
        self._own, self._peers = (torch.zeros(1, dtype=torch.int64, device=place) for _ in range(2))
        self._first, self._last = device.make_events(2, timing=True)

    def connect(self) -> None:
        """Makes the group's communicator, which exchanges between two ranks may not be the first to use. Collective."""
        dist.all_reduce(self._own)
        int(self._own)

    def measure(self, peer: int, *, go: bool) -> float | None:
        """Bytes per second each way with one other rank. None: one of the two does not want to."""
        if self._agree(peer, int(go)) == 0:
            return None
        size, took_ns = DEVICE_SMALL_BYTES, self._time(peer, DEVICE_SMALL_BYTES, SMALL_ROUNDS)
        if took_ns < DEVICE_QUICK_NS:
            size = DEVICE_LARGE_BYTES
            took_ns = min(self._time(peer, size, LARGE_ROUNDS) for _ in range(NUM_BLOCKS))
        return size * 1e9 / max(took_ns, 1)

    def _time(self, peer: int, size: int, rounds: int) -> int:
        """One exchange of so many bytes, ns, of the side that measured less."""
        stream = self._device.current_stream()
        self._first.record(stream)
        for _ in range(rounds):
            _exchange(self._out[:size], self._into[:size], peer)
        self._last.record(stream)
        self._last.synchronize()
        return self._agree(peer, round(self._first.elapsed_time(self._last) * 1e6 / rounds))

    def _agree(self, peer: int, value: int) -> int:
        """The smaller of both sides' values. Synchronises, and the sides then begin nearly together."""
        self._own.fill_(value)
        _exchange(self._own, self._peers, peer)
        return min(value, int(self._peers))


def _exchange(out: torch.Tensor, into: torch.Tensor, peer: int) -> None:
    """Sends and receives at once. The current stream waits for it, the host need not."""
    ends = [dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, into, peer)]
    for work in dist.batch_isend_irecv(ends):
        work.wait()


def _pair_ranks(hosts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """For each host other than rank 0's, pairs of a rank of rank 0's host and one of its own; empty: one host."""
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    near, *others = members.values()
    width = min(map(len, members.values()))
    return [list(zip(near[:width], far[:width], strict=True)) for far in others]


def _raise_first(failures: Sequence[str]) -> None:
    """Raises on every rank what went wrong on the lowest one."""
    for rank, failure in enumerate(failures):
        if failure:
            raise RuntimeError(f"rank {rank}: {failure}")


def _name_backend(place: torch.device) -> str:
    """What moves data of this kind of device in the default group."""
    pairs = (pair.partition(":") for pair in dist.get_backend_config().split(","))
    return {kind: backend for kind, _, backend in pairs}[place.type]
