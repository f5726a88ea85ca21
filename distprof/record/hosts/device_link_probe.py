"""How fast data moves between the hosts of a job over the backend that moves it from device to device, such as NCCL.

Rank 0's host is joined with one other host after the other. All ranks of the two take part side by side, each with the
one that has its place on the other host: so every network card is used that a collective would use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from distprof.facts.run import LinkReading
from distprof.record.hosts.clock_sync import identify_host
from distprof.record.step.protocols import Accelerator
from distprof.world import collect_texts

SMALL_BYTES, LARGE_BYTES = 2**20, 16 * 2**20
QUICK_NS = 5_000_000
"""Where the small message takes less than this, the large one is used: the time was mostly latency."""
SMALL_ROUNDS, LARGE_ROUNDS = 2, 4
"""Exchanges in a row that are timed together."""
NUM_BLOCKS = 3
"""Times that the large message is timed; the shortest counts."""


def probe_device_links(
    group: dist.ProcessGroup,
    device: Accelerator,
    place: torch.device,
    *,
    limit_s: float,
    host: str | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> tuple[LinkReading, ...]:
    """How fast data moves between rank 0's host and each other one, both ways at once, on every rank.

    Collective, and synchronises. Uses the default group, whose communicator it creates if nothing has used it yet; none
    is created for the probe. Each pair of ranks sends up to 194 MiB each way.

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
    told = [json.loads(text) for text in collect_texts(json.dumps([[*found.items()], failure]), group=group)]
    _raise_first([text for _, text in told])
    speeds = {int(far): float(speed) for items, _ in told for far, speed in items}
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
        self._out, self._into = (torch.zeros(LARGE_BYTES, dtype=torch.uint8, device=place) for _ in range(2))
        self._told, self._heard = (torch.zeros(1, dtype=torch.int64, device=place) for _ in range(2))
        self._first, self._last = device.make_events(2, timing=True)

    def connect(self) -> None:
        """Makes the group's communicator, which exchanges between two ranks may not be the first to use. Collective."""
        dist.all_reduce(self._told)
        int(self._told)

    def measure(self, peer: int, *, go: bool) -> float | None:
        """Bytes per second each way with one other rank. None: one of the two does not want to."""
        if self._agree(peer, int(go)) == 0:
            return None
        size, took_ns = SMALL_BYTES, self._time(peer, SMALL_BYTES, SMALL_ROUNDS)
        if took_ns < QUICK_NS:
            size, took_ns = LARGE_BYTES, min(self._time(peer, LARGE_BYTES, LARGE_ROUNDS) for _ in range(NUM_BLOCKS))
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
        self._told.fill_(value)
        _exchange(self._told, self._heard, peer)
        return min(value, int(self._heard))


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
