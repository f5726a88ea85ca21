"""Targeted probes on real gloo ranks of which one is really slower, or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from distprof.analyze.judge_probes import judge_probes
from distprof.errors import DistprofError
from distprof.facts.probes import SuspectProbes
from distprof.record.hosts import suspect_probe
from distprof.record.hosts.suspect_probe import Turn, Work, choose_references, make_work, probe_suspects
from distprof.world import World
from tests.ranks import call_on_ranks

SECONDS = 0.5
connect = suspect_probe._Worker._connect
PIECES = 50
SLOWER = 6
"""Times as much to do, which also shows on a machine on which others work."""


def do_more(turn: Turn) -> Callable[[Turn, torch.device], tuple[Work, float]]:
    """What is to be done many times for one piece of such work."""

    def make(asked: Turn, device: torch.device) -> tuple[Work, float]:
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
        report = judge_probes(dataclasses.replace(measured, suspects=(suspect,), references=others))
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
        for values in dataclasses.astuple(pair)[2:]:
            assert len(values) > 0 and min(values) > 0


def probe_all(world: World) -> None:
    suspect_probe.COPY_BYTES["cpu"], suspect_probe.LARGE_BYTES["gloo"] = 8 * 2**20, suspect_probe.SMALL_BYTES
    assert find(world) in ({}, {0: [], 1: [], 2: []})  # nobody is slow
    suspect_probe.make_work = do_more([Turn.END, Turn.PRODUCT, Turn.COPY][world.rank])
    slow = {0: [], 1: [("device", "product_flops_per_s")], 2: [("device", "copy_bytes_per_s")]}
    assert find(world) in ({}, slow)
    suspect_probe.make_work = make_work
    suspect_probe._Worker._connect = connect_slowly  # type: ignore[method-assign]
    assert find(world) in ({}, {0: [], 1: [("link", "bytes_per_s")], 2: []})


def connect_slowly(
    self: suspect_probe._Worker, peer: int
) -> tuple[Callable[[torch.Tensor], None], Callable[[torch.Tensor], None]]:
    """With rank 1, every message of some size goes in many pieces, each of which is waited for."""
    send, receive = connect(self, peer)

    def move(one: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
        slow = tensor.nbytes > 1000 and 1 in (peer, self._world.rank)
        for piece in tensor.chunk(PIECES if slow else 1):
            one(piece)

    return partial(move, send), partial(move, receive)


def test_what_is_really_slower_is_named_and_nobody_else(tmp_path: Path) -> None:
    call_on_ranks(3, probe_all, tmp_path=tmp_path)


def fail_alike(world: World) -> None:
    """A rank that cannot measure says so; every rank ends, and rank 0 names it."""

    def fail(turn: Turn, device: torch.device) -> tuple[Work, float]:
        if world.rank == 2 and turn is Turn.COPY:
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
