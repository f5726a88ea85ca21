"""Targeted probes on real gloo ranks of which one is really slower, or none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from msgspec import structs

from distprof.analyze.judge_probes import judge_probes
from distprof.errors import DistprofError
from distprof.facts.probes import SuspectProbes
from distprof.record.hosts import suspect_probe
from distprof.record.hosts.suspect_probe import ProbeTurn, Work, choose_references, make_work, probe_suspects
from distprof.world import World, all_reduce_max
from tests.ranks import call_on_ranks

SECONDS = 0.5
connect = suspect_probe._Worker._connect
MOST_TRIES = 4
SLOWER = 10
"""Times as much to do, which also shows on a machine on which others work."""


def do_more(turn: ProbeTurn) -> Callable[[ProbeTurn, torch.device], tuple[Work, float]]:
    """What is to be done many times for one piece of such work."""

    def make(asked: ProbeTurn, device: torch.device) -> tuple[Work, float]:
        work, size = make_work(asked, device)
        return (lambda: [work() for _ in range(SLOWER)] if asked is turn else work()), size

    return make


def find(world: World) -> dict[int, list[tuple[str, str]]]:
    """What is found by suspect, of one measurement: with three ranks, two and the three pairs always compare."""
    measured = probe_suspects(world, [1], seconds=SECONDS)
    assert (measured is not None) is (world.rank == 0)
    if measured is None:
        return {}
    check(measured)
    found = {}
    for suspect in range(3):
        others = tuple(rank for rank in range(3) if rank != suspect)
        report = judge_probes(structs.replace(measured, suspects=(suspect,), references=others))
        assert report.enough and all(item.ranks == (suspect,) for item in report.findings)
        found[suspect] = [(str(item.part), item.figure) for item in report.findings]
    return found


def check(measured: SuspectProbes) -> None:
    """All is measured in every round, and nothing that is not there."""
    assert measured.suspects == (1,) and measured.references == (0, 2)
    for rank in measured.ranks:
        assert len(rank.product_flops_per_s) == len(rank.copy_bytes_per_s) == len(measured.pairs[0].latency_ns)
        assert min(rank.product_flops_per_s + rank.copy_bytes_per_s) > 0
        assert rank.to_device_bytes_per_s == rank.device_copy_bytes_per_s == () and rank.host == "test-host"
    assert {(pair.rank, pair.peer) for pair in measured.pairs} == {(0, 1), (0, 2), (1, 2)}
    for pair in measured.pairs:
        for values in structs.astuple(pair)[2:]:
            assert len(values) > 0 and min(values) > 0


def probe_all(world: World) -> None:
    suspect_probe.COPY_BYTES["cpu"] = 8 * 2**20
    assert find(world) in ({}, {0: [], 1: [], 2: []})  # nobody is slow
    suspect_probe.make_work = do_more([ProbeTurn.END, ProbeTurn.PRODUCT, ProbeTurn.COPY][world.rank])
    slow = {0: [], 1: [("device", "product_flops_per_s")], 2: [("device", "copy_bytes_per_s")]}
    group, named = dist.group.WORLD, set[int]()
    for _ in range(MOST_TRIES):  # where others work as well, it may take another time
        found = find(world)
        assert all(items in ([], slow[rank]) for rank, items in found.items())
        named |= {rank for rank, items in found.items() if items}
        if all_reduce_max(len(named), group=group) == 2:
            return
    raise AssertionError(f"only {named} found")


class Cable:
    """A clock that only data moves on, and a reading a little: 1 GB/s, but of what rank 1 receives 0.4 GB/s."""

    def __init__(self) -> None:
        self.time_ns = 0

    def read(self) -> int:
        self.time_ns += 1000
        return self.time_ns

    def work(self) -> None:
        self.time_ns += 1_000_000

    def connect(self, worker: suspect_probe._Worker, peer: int) -> tuple[Callable[..., None], Callable[..., None]]:
        def move(end: Callable[[torch.Tensor], None], ns_per_byte: float, tensor: torch.Tensor) -> None:
            self.time_ns += round(tensor.nbytes * ns_per_byte)
            end(tensor)

        send, receive = connect(worker, peer)
        own = worker._world.rank
        return partial(move, send, 2.5 if peer == 1 else 1), partial(move, receive, 2.5 if own == 1 else 1)


def probe_links(world: World) -> None:
    cable = Cable()
    suspect_probe.make_work = lambda turn, device: (cable.work, 1.0)
    suspect_probe._Worker._connect = lambda worker, peer: cable.connect(worker, peer)  # type: ignore[method-assign]
    measured = probe_suspects(world, [1], seconds=SECONDS, now_ns=cable.read)
    if measured is None:
        return
    check(measured)
    speeds = {(pair.rank, pair.peer): (pair.there_bytes_per_s, pair.back_bytes_per_s) for pair in measured.pairs}
    for pair, ways in {(0, 1): (0.4e9, 1e9), (0, 2): (1e9, 1e9), (1, 2): (1e9, 0.4e9)}.items():
        for values, speed in zip(speeds[pair], ways, strict=True):
            assert values == pytest.approx([speed] * suspect_probe.ROUNDS, rel=0.02)
    (finding,) = judge_probes(measured).findings
    assert (finding.part, finding.ranks, finding.peer, finding.figure) == ("link", (1,), None, "bytes_per_s")
    assert finding.shortfall_ratio == pytest.approx(0.6, abs=0.01)


def test_a_link_that_is_slow_one_way(tmp_path: Path) -> None:
    call_on_ranks(3, probe_links, tmp_path=tmp_path)


def test_what_is_really_slower_is_named_and_nobody_else(tmp_path: Path) -> None:
    call_on_ranks(3, probe_all, tmp_path=tmp_path)


def fail_alike(world: World) -> None:
    """A rank that cannot measure says so; every rank ends, and rank 0 names it."""

    def fail(turn: ProbeTurn, device: torch.device) -> tuple[Work, float]:
        if world.rank == 2 and turn is ProbeTurn.COPY:
            raise RuntimeError("out of memory")
        return make_work(turn, device)

    suspect_probe.make_work = fail
    reason = "rank 2 could not measure its copy" if world.rank == 0 else "rank 0 has given up"
    with pytest.raises(DistprofError, match=reason):
        probe_suspects(world, [1], seconds=SECONDS)


def test_a_rank_that_cannot_measure_ends_all(tmp_path: Path) -> None:
    call_on_ranks(3, fail_alike, tmp_path=tmp_path)


@pytest.mark.parametrize(
    ("hosts", "suspects", "references"),
    [
        ("aaa", [1], (0, 2)),
        ("aaabbb", [1], (0, 3)),  # one beside it, one on another host
        ("aaabbb", [4], (3, 0)),
        ("abc", [1], (0, 2)),
        ("abbcc", [0], (1, 3)),  # two other hosts
        ("abbb", [0], (1, 2)),
        ("aabb", [0, 1], (2, 3)),
    ],
)
def test_references(hosts: str, suspects: list[int], references: tuple[int, int]) -> None:
    assert choose_references(hosts, suspects) == references


def test_two_references_are_needed() -> None:
    with pytest.raises(DistprofError, match="two others are needed"):
        choose_references("aab", [0, 1])
