"""Reading other hosts' clocks, and probing links: ranks of this machine that pretend to be several hosts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from distprof.record.hosts import clock_sync as module
from distprof.record.hosts import link_probe
from distprof.record.hosts.clock_sync import combine_rounds, identify_clock, identify_host, name_host, read_clocks
from distprof.record.hosts.link_probe import probe_links
from distprof.world import World, collect_texts
from tests.ranks import call_on_ranks

S, US = 10**9, 10**3


def test_a_reading_by_hand() -> None:
    """Six of 64 rounds take 100 us and put rank 0 at 3 s less 10 us; the others are slow and say nonsense."""
    good = [(100 * US, number * 200 * US, number * 200 * US + 3 * S + 40 * US) for number in range(6)]
    slow = [(900 * US, number * US, 0) for number in range(58)]
    drift_ns = 110  # 1.1 ms from the first good round to the end of the last, at 100 parts per million
    wanted = {"at_ns": 550 * US, "offset_ns": 3 * S - 10 * US, "bound_ns": 50 * US + drift_ns + 1}
    assert combine_rounds([*slow, *good]) == wanted


@given(
    offset_ns=st.integers(-(10**16), 10**16),
    delays_ns=st.lists(st.tuples(st.integers(1, 10**7), st.integers(1, 10**7)), min_size=64, max_size=64),
)
def test_a_reading_is_within_its_bound_however_unequal_the_ways(
    offset_ns: int, delays_ns: list[tuple[int, int]]
) -> None:
    rounds, now_ns = [], 0
    for there_ns, back_ns in delays_ns:
        rounds.append((there_ns + back_ns, now_ns, now_ns + there_ns + offset_ns))
        now_ns += there_ns + back_ns
    reading = combine_rounds(rounds)
    assert abs(reading["offset_ns"] - offset_ns) <= reading["bound_ns"]


def read_three_clocks(world: World) -> None:
    """Rank 0 has a clock of its own, ranks 1 and 3 share one that is 3 s ahead, rank 2 has one that is a day behind."""
    truth_ns = (0, 3 * S, -86_400 * S, 3 * S)
    clock, group = "abcb"[world.rank], dist.new_group(backend="gloo")
    readings = read_clocks(group, clock=clock, now_ns=lambda: time.monotonic_ns() + truth_ns[world.rank])
    assert [reading.rank for reading in readings] == [0, 1, 2, 3]
    for reading in readings:
        assert abs(reading.offset_ns - truth_ns[reading.rank]) <= reading.bound_ns
    assert [reading.bound_ns == 0 for reading in readings] == [True, False, False, False]
    first, second = ((reading.at_ns, reading.offset_ns, reading.bound_ns) for reading in readings[1::2])
    assert first == second  # one reading for all ranks of a clock

    def fail(*arguments: object) -> None:
        raise RuntimeError("Connection closed by peer")

    module._ask = module._answer = fail  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="rank 2: Connection closed by peer"):  # rank 3 too, which is asked nothing
        read_clocks(group, clock=clock)


def read_one_host(world: World) -> None:
    stamps: list[int] = []

    def now_ns() -> int:
        stamps.append(time.monotonic_ns())
        return stamps[-1]

    group = dist.new_group(backend="gloo")
    readings = read_clocks(group, now_ns=now_ns)
    assert [reading.rank for reading in readings] == [0, 1, 2, 3]
    assert {(reading.offset_ns, reading.bound_ns) for reading in readings} == {(0, 0)}
    assert len(stamps) <= 1  # nothing to measure
    assert probe_links(group, now_ns=now_ns) == ()


def probe_three_hosts(world: World, seen: str) -> None:
    sent: list[int] = []

    class Group:
        """One that remembers what is sent."""

        def __init__(self) -> None:
            self._group = dist.new_group(backend="gloo")

        def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> dist.Work:
            sent.append(tensors[0].nbytes)
            return self._group.send(tensors, rank, tag)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._group, name)

    host = "abbc"[world.rank]
    # On rank 0 a second passes at every look: 256 KiB in a second, whichever way.
    ticks = iter(range(10**6))
    slow = probe_links(cast(Any, Group()), host=host, now_ns=lambda: next(ticks) * S)
    assert [(reading.rank, reading.bytes_per_s) for reading in slow] == [(1, 2**18), (3, 2**18)]
    assert max(sent, default=0) <= 2**18  # a slow link is not burdened with the large message
    # Here a millisecond: quick enough for 4 MiB.
    quick = probe_links(cast(Any, Group()), host=host, now_ns=lambda: next(ticks) * 1000 * US)
    assert [(reading.rank, reading.bytes_per_s) for reading in quick] == [(1, 2**22 * 1e3), (3, 2**22 * 1e3)]
    (Path(seen) / str(world.rank)).write_text(str(len(sent)))


def probe_in_a_limited_time(world: World) -> None:
    group, host = dist.new_group(backend="gloo"), "abbc"[world.rank]
    assert probe_links(group, host=host, limit_s=0.0) == ()
    assert [reading.rank for reading in probe_links(group, host=host, limit_s=60.0)] == [1, 3]
    # Time is up at the seventh look, which is at the second host, or in the middle of the first.
    for looks, found in ((7, [1]), (5, [])):
        times = iter([0.0] * looks)
        link_probe.time = SimpleNamespace(monotonic=lambda times=times: next(times, 9.0))  # type: ignore[assignment]
        limited = probe_links(group, host=host, now_ns=iter(range(0, 10**9, 1000)).__next__, limit_s=5.0)
        assert [reading.rank for reading in limited] == found
        link_probe.time = time


class Cable:
    """Instead of a group: so much passes at once, and the rest as fast as the cable is. It has the clock."""

    def __init__(self, bytes_per_s: float, burst_bytes: int) -> None:
        self._bytes_per_s, self._burst_bytes, self.now_ns, self.sent_bytes = bytes_per_s, burst_bytes, 0, 0

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> SimpleNamespace:
        self.sent_bytes += tensors[0].nbytes
        self.now_ns += round(max(tensors[0].nbytes - self._burst_bytes, 0) / self._bytes_per_s * 1e9)
        return SimpleNamespace(wait=lambda *limit: True)

    recv = send


@pytest.mark.parametrize(("mbit_per_s", "most_s"), [(1, 15), (10, 3), (50, 3), (90, 3), (500, 0.5)])
def test_what_passes_at_once_does_not_make_a_slow_link_look_fast(mbit_per_s: float, most_s: float) -> None:
    """As of token buckets in switches and clouds: 125 kB are half of the small message."""
    cable = Cable(mbit_per_s * 1e6 / 8, burst_bytes=125_000)
    prober = link_probe._Prober(cast(Any, cable), 1, lambda: cable.now_ns, None, None)
    read = prober.probe()
    assert read is not None and read / (mbit_per_s * 1e6 / 8) == pytest.approx(1, abs=0.04 if mbit_per_s > 1 else 1)
    assert cable.now_ns < most_s * S and cable.sent_bytes < 28 * 2**20


def name_hosts(world: World) -> None:
    """Ranks 0 and 2 are on one host, ranks 1 and 3 on two others, of which one has the same name."""
    name, host = ("image", "image", "image", "other")[world.rank], "abac"[world.rank]
    found = name_host(name, group=cast(Any, dist.new_group(backend="gloo")), host=host)
    assert found == ("image (1)", "image (2)", "image (1)", "other")[world.rank]


def ask_a_stopped_rank(world: World) -> None:
    """The other ranks take part and then say no more."""
    group = dist.new_group(backend="gloo")
    if world.rank == 0:
        with pytest.raises(RuntimeError, match=r"Timed out waiting 200ms|timeout caused pair closure"):
            probe_links(group, host="0", limit_s=0.2)
    else:
        collect_texts(str(world.rank), group=group)
    dist.barrier()


def measure_everything(world: World, seen: str) -> None:
    name_hosts(world)
    read_one_host(world)
    probe_three_hosts(world, seen)
    read_three_clocks(world)
    probe_in_a_limited_time(world)
    ask_a_stopped_rank(world)


def test_every_other_clock_and_link_is_measured_once_by_one_rank(tmp_path: Path) -> None:
    call_on_ranks(4, measure_everything, str(tmp_path), tmp_path=tmp_path)
    sent = [int((tmp_path / str(rank)).read_text()) for rank in range(4)]
    assert sent[0] and sent[1] and not sent[2] and sent[3]


def test_processes_of_one_kernel_have_one_clock_and_a_process_without_proc_has_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if os.path.isdir("/proc/self/ns"):
        assert identify_clock() == identify_clock() and identify_host() == identify_host()
        assert identify_clock() != identify_host()
        spaces = {"time": "1", "time_for_children": "1", "net": "1"}
        monkeypatch.setattr(module, "_read_namespace", spaces.__getitem__)
        before = identify_clock(), identify_host()
        spaces["time"] = spaces["net"] = "2"  # another time namespace, another network namespace
        assert identify_clock() != before[0] and identify_host() != before[1]
    monkeypatch.setattr(module, "_read_boot_id", lambda: None)
    assert identify_clock() != identify_clock() and identify_host() == identify_host()
