"""The probe that runs on the job's own backend, here gloo: who is paired with whom, what counts, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.simulate.device import HostClock, SimulatedDevice
from distprof.facts.run import LinkReading
from distprof.record.hosts import link_probe
from distprof.record.hosts.link_probe import (
    DEVICE_LARGE_BYTES,
    DEVICE_SMALL_BYTES,
    LARGE_ROUNDS,
    SMALL_ROUNDS,
    probe_device_links,
)
from distprof.world import World
from tests.ranks import call_on_ranks

CPU = torch.device("cpu")


class Ticking(SimulatedDevice):
    """A device whose every event is so many ms after the one before."""

    def __init__(self, tick_ms: Iterator[float]) -> None:
        super().__init__(HostClock())
        self.tick_ms = tick_ms

    def make_events(self, number: int, *, timing: bool) -> list[Any]:
        assert timing
        return [TickingEvent(self) for _ in range(number)]


class TickingEvent:
    def __init__(self, device: Ticking) -> None:
        self.device, self.took_ms = device, 0.0

    def record(self, stream: object) -> None:
        self.took_ms = next(self.device.tick_ms)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: TickingEvent) -> float:
        return end.took_ms


def probe(host: str, took_ms: Iterator[float], **options: Any) -> list[LinkReading]:
    """Every second time is that of the last event of a block."""
    ticks = (value for took in took_ms for value in (0.0, took))
    group = options.pop("group")
    return list(probe_device_links(group, Ticking(ticks), CPU, host=host, **{"limit_s": 60.0, **options}))


def repeat(small_ms: float, *large_ms: float) -> Iterator[float]:
    """Times of one exchange; those of the large message follow only if the small one is quick."""
    while True:
        yield small_ms * SMALL_ROUNDS
        yield from (large * LARGE_ROUNDS for large in large_ms)


def probe_pairs(world: World, seen: str) -> None:
    group, sent = dist.new_group(backend="gloo"), []
    exchange = link_probe._exchange
    link_probe._exchange = lambda out, into, peer: sent.append(out.nbytes) or exchange(out, into, peer)  # type: ignore
    # Three hosts, the middle one of two ranks: each takes part with one. Far ranks measure more, because they wait.
    took = repeat(1, 7, 2, 3) if world.rank == 0 else repeat(4, 9, 9, 9)
    found = probe("abbc"[world.rank], took, group=group)
    speed = pytest.approx(DEVICE_LARGE_BYTES / 2e-3)
    assert found == [LinkReading(rank=far, bytes_per_s=speed, network="gloo") for far in (1, 3)]
    assert (max(sent, default=0) == DEVICE_LARGE_BYTES) is (world.rank != 2)
    sent.clear()
    # Two hosts of two ranks: side by side, and the slower pair sets the pace of both.
    took = repeat(5 + world.rank % 2)
    (both,) = probe("aabb"[world.rank], took, group=group)
    assert both == LinkReading(rank=2, bytes_per_s=pytest.approx(2 * DEVICE_SMALL_BYTES / 6e-3), network="gloo")
    assert max(sent) == DEVICE_SMALL_BYTES  # a slow link is not burdened with the large message
    sent.clear()
    assert probe("a", repeat(1), group=group) == [] and not sent  # one host
    # Time is up at the second host; and at the first, of one of two pairs, which says too little.
    times = iter([0.0, 1.0, 9.0])
    limited = probe("abbc"[world.rank], repeat(6), group=group, limit_s=5.0, now_s=lambda: next(times, 0.0))
    assert [reading.rank for reading in limited] == [1]
    late = count(0, 9 * (world.rank == 1))
    assert probe("aabb"[world.rank], repeat(6), group=group, limit_s=5.0, now_s=lambda: next(late)) == []
    (Path(seen) / str(world.rank)).touch()
    fail_on_rank_2(world, group)


def fail_on_rank_2(world: World, group: dist.ProcessGroup) -> None:
    """Nobody begins if somebody cannot."""
    zeros = torch.zeros

    def run_out(*size: Any, **options: Any) -> torch.Tensor:
        if world.rank == 2 and size == (DEVICE_LARGE_BYTES,):
            raise torch.OutOfMemoryError("out of memory")
        return zeros(*size, **options)

    torch.zeros = run_out  # type: ignore[assignment]
    link_probe._exchange = lambda *arguments: pytest.fail("a rank has begun")
    with pytest.raises(RuntimeError, match="rank 2: out of memory"):
        probe("abcd"[world.rank], repeat(1), group=group)
    torch.zeros = zeros


def test_pairs_of_ranks_are_probed_side_by_side_and_the_slowest_counts(tmp_path: Path) -> None:
    call_on_ranks(4, probe_pairs, str(tmp_path), tmp_path=tmp_path)
    assert all((tmp_path / str(rank)).exists() for rank in range(4))
