"""Measures some suspected ranks and two references by themselves: matrix products, copies, exchanges.

Rank 0 tells one rank, or one pair, after the other what to do, over gloo, while all others wait: so measurements do not
disturb each other, and a rank that has gone is known by its number. Everything is measured once in every round, so that
what changes on a shared machine meanwhile meets all ranks alike. Use it only where no training runs.
"""

from __future__ import annotations

import contextlib
import enum
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from distprof.errors import DistprofError, read_first_line
from distprof.facts.probes import FIGURES, PAIR_FIGURES, ProbedPair, ProbedRank, SuspectProbes
from distprof.record.device.peak import DTYPES, SIZES
from distprof.record.device.rank_info import take_snapshot
from distprof.record.hosts.clock_sync import name_host
from distprof.record.hosts.link_probe import echo
from distprof.world import World, collect_texts

ROUNDS = 15
"""Enough to tell a rank that is slowest in all of them, or in all but one, from chance, among many suspects."""
MAX_LATE_S = 20.0
"""So long after the time asked for, no further round begins: busy machines and slow links take longer than planned."""
ANSWER_S = 30.0
"""A rank that does not answer for so long has gone: more than any turn takes, with what connecting needs."""
DISMISS_S = 1.0
"""How long rank 0 tries to tell each rank that all is over: those that are there only wait for that."""
COPY_BYTES = {"cpu": 32 * 2**20, "cuda": 256 * 2**20}
"""Beyond what caches hold, by the memory that is copied."""
SMALL_BYTES, LARGE_BYTES = 256 * 2**10, {"gloo": 4 * 2**20, "nccl": 64 * 2**20}
"""The message of all exchanges where some link is so slow that the large one would take too long; and the usual one."""
MIN_PINGS, MAX_PINGS = 5, 10
LAUNCHED = {"cpu": 1, "cuda": 8}
"""Pieces of work between two readings of the clock: on a GPU several, so that launching them is not what is timed."""
_ORDER_TAG, _DATA_TAG = 1, 0
Work = Callable[[], object]


class ProbeTurn(enum.IntEnum):
    """What a rank does when it is its turn."""

    END = 0
    ABANDON = 1
    """End, because something failed."""
    PRODUCT = 2
    COPY = 3
    TO_DEVICE = 4
    DEVICE_COPY = 5
    EXCHANGE = 6
    ECHO = 7
    """The other side of an exchange."""


_ALONE = (ProbeTurn.PRODUCT, ProbeTurn.COPY, ProbeTurn.TO_DEVICE, ProbeTurn.DEVICE_COPY)
"""In the order of `FIGURES`."""


def choose_references(hosts: Sequence[str], suspects: Sequence[int]) -> tuple[int, int]:
    """Two ranks that are not suspected, which tell device, host and link apart best.

    One on the first suspect's host, which shares what is the host's, and one on another host: links across hosts are
    compared with the link between the two. Where the suspect is alone on its host, both are on two other hosts.

    Args:
        hosts: The host of each rank.
        suspects: Global ranks.

    Raises:
        DistprofError: Fewer than two ranks are left.
    """
    healthy = [rank for rank in range(len(hosts)) if rank not in suspects]
    if len(healthy) < 2:
        raise DistprofError(
            f"{len(hosts)} rank(s) of which {len(suspects)} are suspects: two others are needed to compare with"
        )
    own = hosts[suspects[0]]
    near = next((rank for rank in healthy if hosts[rank] == own), healthy[0])
    far = [rank for rank in healthy if hosts[rank] not in (own, hosts[near])]
    return near, (far or [rank for rank in healthy if rank != near])[0]


def probe_suspects(
    world: World,
    suspects: Sequence[int],
    references: Sequence[int] = (),
    *,
    seconds: float,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> SuspectProbes | None:
    """Measures suspects and references. Collective over all ranks; synchronises.

    Args:
        world: This process among the ranks; it has joined the default group.
        suspects: Global ranks.
        references: Two other ranks. Empty: see `choose_references`.
        seconds: How long everything takes together, about; on a busy machine up to `MAX_LATE_S` more.
        now_ns: The clock, monotonic, ns.

    Returns:
        The measurements on rank 0, None elsewhere.

    Raises:
        DistprofError: A rank has gone, does not answer, or cannot measure.
    """
    group = dist.group.WORLD
    assert group is not None
    try:
        host = name_host(world.host, group=group)
        index = world.device.index if world.device.type == "cuda" else None
        snapshot, _ = take_snapshot(world.device.type, index)
        own = [host, snapshot.name if snapshot is not None else str(world.device)]
        hosts, devices = zip(*(json.loads(text) for text in collect_texts(json.dumps(own), group=group)), strict=True)
        near, far = references or choose_references(hosts, suspects)
        if world.backend == "nccl":  # a pair may not be the first to use the group
            dist.all_reduce(torch.zeros(1, device=world.device))
            torch.cuda.synchronize()
    except RuntimeError as error:
        raise DistprofError(f"the ranks do not all answer: {read_first_line(error)}") from error
    worker = _Worker(group, world, now_ns)
    if world.rank != 0:
        _obey(group, worker, limit_s=seconds + MAX_LATE_S + 2 * ANSWER_S)
        return None
    conductor = _Conductor(group, worker, world.size)
    takers, pairs = sorted({*suspects, near, far}), list(_list_pairs(suspects, near, far))
    alone = _ALONE if world.device.type == "cuda" else _ALONE[:2]
    budget_ns = round(seconds * 1e9 / ((1 + ROUNDS) * (len(takers) * len(alone) + len(pairs))))
    figures = [*zip(FIGURES[: len(alone)], alone, strict=True)]
    try:
        rounds = list(_conduct(conductor, takers, alone, pairs, budget_ns, seconds, LARGE_BYTES[world.backend]))
    except BaseException:
        conductor.dismiss(ProbeTurn.ABANDON)
        raise
    conductor.dismiss(ProbeTurn.END)
    return SuspectProbes(
        device_type=world.device.type, backend=world.backend, suspects=tuple(sorted(suspects)),
        references=tuple(sorted((near, far))),
        ranks=tuple(
            ProbedRank(
                rank=rank, host=hosts[rank], device=devices[rank],
                **{name: tuple(each.alone[rank, turn] for each in rounds) for name, turn in figures},
            )
            for rank in takers
        ),
        pairs=tuple(
            ProbedPair(
                rank=pair[0], peer=pair[1],
                **{name: tuple(each.pairs[pair][at] for each in rounds) for at, name in enumerate(PAIR_FIGURES)},
            )
            for pair in pairs
        ),
    )  # fmt: skip


class _Round(NamedTuple):
    alone: dict[tuple[int, ProbeTurn], float]
    """By rank and turn."""
    pairs: dict[tuple[int, int], list[float]]
    """By rank and peer, in the order of `PAIR_FIGURES`."""


def _list_pairs(suspects: Sequence[int], near: int, far: int) -> Iterator[tuple[int, int]]:
    """The lower rank first."""
    for rank in sorted(suspects):
        yield from ((min(rank, other), max(rank, other)) for other in (near, far))
    yield min(near, far), max(near, far)


def _conduct(
    conductor: _Conductor,
    takers: Sequence[int],
    alone: Sequence[ProbeTurn],
    pairs: Sequence[tuple[int, int]],
    budget_ns: int,
    seconds: float,
    large_bytes: int,
) -> Iterator[_Round]:
    """The rounds. The first one warms up and is left out."""
    begin_s, size = math.inf, SMALL_BYTES
    for number in range(1 + ROUNDS):
        if time.monotonic() - begin_s > seconds + MAX_LATE_S:
            return
        measured = {(rank, turn): conductor.measure(rank, turn, budget_ns) for turn in alone for rank in takers}
        exchanged = {pair: conductor.exchange(*pair, budget_ns, size) for pair in pairs}
        if number:
            yield _Round(measured, exchanged)
        else:
            begin_s = time.monotonic()
            round_s = sum(large_bytes / speed for _, *ways in exchanged.values() for speed in ways)
            size = large_bytes if round_s * ROUNDS < seconds / 2 else SMALL_BYTES


class _Conductor:
    """Rank 0's side: says whose turn it is."""

    def __init__(self, group: dist.ProcessGroup, worker: _Worker, size: int) -> None:
        self._group, self._worker, self._others = group, worker, [*range(1, size)]
        self._own = (ProbeTurn.END, -1, 0, 0)

    def measure(self, rank: int, turn: ProbeTurn, budget_ns: int) -> float:
        """One figure of one rank."""
        self._order(rank, turn, -1, budget_ns, 0)
        did, figure, *_ = self._await(rank)
        if not did:
            raise DistprofError(f"rank {rank} could not measure its {_name(turn)}: its own line says why")
        return figure

    def exchange(self, rank: int, peer: int, budget_ns: int, size: int) -> list[float]:
        """Latency, ns, and bytes per second there and back, on the clock of the lower rank, by messages of one size."""
        self._order(peer, ProbeTurn.ECHO, rank, budget_ns, size)
        self._order(rank, ProbeTurn.EXCHANGE, peer, budget_ns, size)
        (did, *figures), (echoed, *_) = self._await(rank), self._await(peer)  # whoever has gone is named by this
        if not (did and echoed):
            raise DistprofError(f"ranks {rank} and {peer} could not exchange data: their own lines say why")
        return figures

    def dismiss(self, turn: ProbeTurn) -> None:
        """Lets all other ranks end, as far as they are there."""
        for rank in self._others:
            with contextlib.suppress(RuntimeError):
                self._send(rank, turn, -1, 0, 0).wait(timedelta(seconds=DISMISS_S))

    def _send(self, rank: int, *order: int) -> dist.Work:
        return self._group.send([torch.tensor(order)], rank, _ORDER_TAG)

    def _order(self, rank: int, turn: ProbeTurn, peer: int, budget_ns: int, size: int) -> None:
        self._own = (turn, peer, budget_ns, size)
        if rank == 0:
            return
        try:
            self._send(rank, *self._own).wait(timedelta(seconds=ANSWER_S))
        except RuntimeError as error:
            raise self._lose(rank, error) from error

    def _await(self, rank: int) -> list[float]:
        """Whether it could, and the figures."""
        answer = torch.zeros(4, dtype=torch.float64)
        if rank == 0:
            answer = self._worker.do(*self._own)
        else:
            try:
                self._group.recv([answer], rank, _ORDER_TAG).wait(timedelta(seconds=ANSWER_S))
            except RuntimeError as error:
                raise self._lose(rank, error) from error
        values: list[float] = answer.tolist()
        return values

    def _lose(self, rank: int, error: RuntimeError) -> DistprofError:
        self._others.remove(rank)
        return DistprofError(
            f"rank {rank} has ended, or did not answer for {ANSWER_S:.0f} s, so nothing is concluded: see what it "
            f"said last ({read_first_line(error)})"
        )


def _obey(group: dist.ProcessGroup, worker: _Worker, *, limit_s: float) -> None:
    """The other ranks' side: does what rank 0 says until it says that all is over."""
    order = torch.zeros(4, dtype=torch.int64)
    try:
        while True:
            group.recv([order], 0, _ORDER_TAG).wait(timedelta(seconds=limit_s))
            turn, *rest = order.tolist()
            if turn == ProbeTurn.END:
                return
            if turn == ProbeTurn.ABANDON:
                raise DistprofError("rank 0 has given up: its own line says why")
            answer = worker.do(ProbeTurn(turn), *rest)
            group.send([answer], 0, _ORDER_TAG).wait(timedelta(seconds=ANSWER_S))
    except RuntimeError as error:
        raise DistprofError(f"rank 0 has ended, or did not answer: {read_first_line(error)}") from error


class _Worker:
    """A rank's own measurements."""

    def __init__(self, group: dist.ProcessGroup, world: World, now_ns: Callable[[], int]) -> None:
        self._group, self._world, self._device, self._now_ns = group, world, world.device, now_ns
        self._works: dict[ProbeTurn, tuple[Work, float]] = {}
        self._buffer: torch.Tensor | None = None

    def do(self, turn: ProbeTurn, peer: int, budget_ns: int, size: int) -> torch.Tensor:
        """Whether it could, and up to three figures; a failure is said on standard error, and raises nothing."""
        try:
            if turn is ProbeTurn.ECHO:
                echo(*self._connect(peer), self._take_buffer())
                figures = []
            elif turn is ProbeTurn.EXCHANGE:
                figures = self._exchange(peer, budget_ns, size)
            else:
                figures = [self._sustain(turn, budget_ns)]
        except RuntimeError as error:
            what = _name(turn) + (f" with rank {peer}" if peer >= 0 else "")
            print(f"distprof: rank {self._world.rank}: {what}: {read_first_line(error)}", file=sys.stderr)
            return torch.zeros(4, dtype=torch.float64)
        return torch.tensor([1.0, *figures, *[math.nan] * (3 - len(figures))], dtype=torch.float64)

    def _sustain(self, turn: ProbeTurn, budget_ns: int) -> float:
        """Work per second, one piece after the other until the time is over."""
        if turn not in self._works:
            self._works[turn] = make_work(turn, self._device)
        work, size = self._works[turn]
        count, begin_ns, took_ns = 0, self._now_ns(), 0
        while not count or took_ns < budget_ns:
            for _ in range(LAUNCHED[self._device.type]):
                work()
            if self._device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            count += LAUNCHED[self._device.type]
            took_ns = self._now_ns() - begin_ns
        return size * count * 1e9 / max(took_ns, 1)

    def _exchange(self, peer: int, budget_ns: int, size: int) -> list[float]:
        buffer, (send, receive) = self._take_buffer(), self._connect(peer)

        def transfer(number: int) -> tuple[int, int]:
            order, done = (torch.full((1,), number, dtype=torch.int64, device=buffer.device) for _ in range(2))
            begin_ns = self._now_ns()
            send(order)
            receive(buffer[:number])
            middle_ns = self._now_ns()
            send(buffer[:number])
            receive(done)
            return self._now_ns() - middle_ns, middle_ns - begin_ns

        begin_ns, pings = self._now_ns(), list[float]()
        while len(pings) < MIN_PINGS or (len(pings) < MAX_PINGS and self._now_ns() - begin_ns < budget_ns / 2):
            pings.append(transfer(8)[1] / 2)
        ways = [transfer(size)]
        while self._now_ns() - begin_ns < budget_ns:
            ways.append(transfer(size))
        send(torch.zeros(1, dtype=torch.int64, device=buffer.device))
        return [
            statistics.median(pings),
            *(len(ways) * size * 1e9 / max(sum(way), 1) for way in zip(*ways, strict=True)),
        ]

    def _take_buffer(self) -> torch.Tensor:
        if self._buffer is None:
            place = self._device if self._world.backend == "nccl" else torch.device("cpu")
            self._buffer = torch.zeros(LARGE_BYTES[self._world.backend], dtype=torch.uint8, device=place)
        return self._buffer

    def _connect(self, peer: int) -> tuple[Callable[[torch.Tensor], None], Callable[[torch.Tensor], None]]:
        """What sends to a rank and what receives from it; what is received can be read at once."""
        if self._world.backend == "nccl":
            return (
                lambda tensor: _move(dist.P2POp(dist.isend, tensor, peer)),
                lambda tensor: _move(dist.P2POp(dist.irecv, tensor, peer)),
            )
        limit = timedelta(seconds=ANSWER_S / 2)  # before rank 0 loses patience with this rank
        return (
            lambda tensor: _wait(self._group.send([tensor], peer, _DATA_TAG), limit),
            lambda tensor: _wait(self._group.recv([tensor], peer, _DATA_TAG), limit),
        )


def _wait(work: dist.Work, limit: timedelta) -> None:
    work.wait(limit)


def _move(end: dist.P2POp) -> None:
    """From device to device. Synchronises."""
    for work in dist.batch_isend_irecv([end]):
        work.wait()
    torch.cuda.current_stream().synchronize()


def _name(turn: ProbeTurn) -> str:
    return turn.name.lower().replace("_", " ")


def make_work(turn: ProbeTurn, device: torch.device) -> tuple[Work, float]:
    """A piece of work that can be repeated, and its size in FLOPs or bytes. Allocates what it needs."""
    own = torch.Generator(device)
    if turn is ProbeTurn.PRODUCT:
        size, dtype = SIZES[device.type][-2], DTYPES["bf16" if device.type == "cuda" else "fp32"]
        left, right, into = (torch.randn(size, size, device=device, generator=own).to(dtype) for _ in range(3))
        return lambda: torch.mm(left, right, out=into), 2.0 * size**3
    on_device = turn is ProbeTurn.DEVICE_COPY, turn is not ProbeTurn.COPY
    size = COPY_BYTES["cuda" if all(on_device) else "cpu"]
    source, target = (torch.ones(size, dtype=torch.uint8, device=device if there else "cpu") for there in on_device)
    if turn is ProbeTurn.TO_DEVICE:
        source = source.pin_memory()
    return lambda: target.copy_(source, non_blocking=True), float(size)
