"""How the training thread gets a core: read from made-up files of the kernel, by hand, and where they are missing."""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path

import pytest

from distprof.facts.scheduling import SCHEDULING_FIELDS
from distprof.record.hosts.scheduling import SchedulingWatch

TICK_NS = 10_000_000


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def make_stat(*, ticks: int, faults: int = 0) -> str:
    """A thread whose name would end the name too early; user time is one tick more than half."""
    numbers = ["1"] * 50
    numbers[5] = "-1"
    numbers[9], numbers[11], numbers[12] = str(faults), str(ticks // 2 + 1), str(ticks - ticks // 2 - 1)
    return f"7 (a ) R b) R {' '.join(numbers[1:])}\n"


def make_watch(tmp_path: Path, **changes: object) -> SchedulingWatch:
    """Thread 7 of a process with three threads that compute and one that does not, on two cores, with a quota of 1.5
    cores around its cgroup."""
    task = tmp_path / "self" / "task"
    write(task / "7" / "schedstat", "5000 3000 12\n")
    write(task / "7" / "status", "Name:\tx\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t41\nlast:\t1\n")
    for name, ticks in (("7", 100), ("8", 90), ("9", 10), ("10", 9)):
        write(task / name / "stat", make_stat(ticks=ticks, faults=6))
    write(tmp_path / "self" / "stat", make_stat(ticks=250))
    write(tmp_path / "stat", "cpu  100 1 20 900 7 3 2 50 8 9\ncpu0 1 2 3\n")
    write(tmp_path / "self" / "cgroup", "4:memory:/other\n0::/pod/job\n")
    write(tmp_path / "cgroups" / "pod" / "cpu.max", "150000 100000\n")
    write(tmp_path / "cgroups" / "pod" / "cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec 44\n")
    write(tmp_path / "cgroups" / "pod" / "job" / "cpu.max", "max 100000\n")
    write(tmp_path / "cgroups" / "cpu.max", "600000 100000\n")
    usual = {"affinity": lambda thread: {3, 1}, "now_ns": lambda: 77}
    return SchedulingWatch(tmp_path, tmp_path / "cgroups", **{**usual, **changes})  # type: ignore[arg-type]


def test_a_reading_by_hand(tmp_path: Path) -> None:
    counted = {"driver_allocations": 12, "cache_flushes": 3}
    found = make_watch(tmp_path, allocations=lambda: counted).read(7)
    assert found == {
        **counted,
        "at_ns": 77, "thread": 7, "run_ns": 5000, "wait_ns": 3000, "preempted": 41, "major_faults": 6, "cores": 1.5,
        "core_set": zlib.crc32(b"[1, 3]"), "used_ns": 250 * TICK_NS, "threads": 3,
        "busy_ns": (100 + 1 + 20 + 3 + 2 + 50) * TICK_NS, "steal_ns": 50 * TICK_NS, "throttled_ns": 44_000,
    }  # fmt: skip
    assert {*found} == {*SCHEDULING_FIELDS}


def test_threads_that_compute_are_those_that_did_since_the_last_time(tmp_path: Path) -> None:
    watch = make_watch(tmp_path)
    watch.read(7)
    for name, ticks in (("7", 200), ("8", 95), ("9", 110)):
        write(tmp_path / "self" / "task" / name / "stat", make_stat(ticks=ticks))
    assert (watch.read(7) or {})["threads"] == 2


def test_what_is_long_to_read_is_read_now_and_then(tmp_path: Path) -> None:
    watch = make_watch(tmp_path)
    found = [watch.read(7) or {} for _ in range(50)]
    assert [at for at, reading in enumerate(found) if "steal_ns" in reading] == [0, 1, 2, 4, 8, 16, 32, 48]


@pytest.mark.parametrize("gone", ["status", "stat", "../../stat", "../../../stat", "../../cgroup"])
def test_a_file_that_is_missing_or_odd_takes_only_its_own_numbers_along(tmp_path: Path, gone: str) -> None:
    watch = make_watch(tmp_path)
    path = (tmp_path / "self" / "task" / "7" / gone).resolve()
    path.unlink()
    without = watch.read(7)
    assert without is not None and without["wait_ns"] == 3000 and len(without) >= 9
    path.write_bytes(b"\xff\x00(0::/../..\n nonvoluntary_ctxt_switches: -3 \ncpu x")
    assert watch.read(7) is not None


def test_without_the_kernels_word_on_waiting_there_is_no_reading(tmp_path: Path) -> None:
    watch = make_watch(tmp_path)
    for text in ("", "12", "abc def", "-1 -2 -3"):
        write(tmp_path / "self" / "task" / "7" / "schedstat", text)
        assert watch.read(7) is None
    assert SchedulingWatch(tmp_path / "nothing").read(7) is None


def test_a_system_without_affinities_has_no_cores(tmp_path: Path) -> None:
    def refuse(thread: int) -> set[int]:
        raise PermissionError

    for affinity in (None, refuse):
        found = make_watch(tmp_path, affinity=affinity).read(7)
        assert found is not None and not {"cores", "core_set", "throttled_ns"} & {*found}


@pytest.mark.parametrize(
    ("ranks", "own", "starter", "shared"),
    [
        (6, {1, 3, 5, 7}, {1, 3, 5, 7}, 4.0),  # the quota of 1.5 cores
        (1, {1, 3}, {1, 3}, 1.0),
        (3, {3}, {3}, 3.0),
        (3, {3}, {1, 3, 5, 7}, 1.0),  # its launcher has given it a core of its own
        (3, set(), set(), 1.0),
    ],
)
def test_ranks_share_the_cores_that_their_launcher_may_use(
    tmp_path: Path, ranks: int, own: set[int], starter: set[int], shared: float
) -> None:
    affinities = {0: own, os.getppid(): starter}
    assert make_watch(tmp_path, affinity=affinities.__getitem__).count_ranks_per_core(ranks) == shared


def test_ranks_share_no_cores_where_the_system_does_not_say_which_they_have(tmp_path: Path) -> None:
    def refuse(process: int) -> set[int]:
        raise ProcessLookupError(process)

    for affinity in (refuse, None):
        assert make_watch(tmp_path, affinity=affinity).count_ranks_per_core(8) == 1.0


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="needs Linux with CONFIG_SCHED_INFO")
def test_this_thread_runs_on_this_machine() -> None:
    watch = SchedulingWatch()
    before, after = (watch.read(threading.get_native_id()) for _ in range(2))
    assert before is not None and after is not None
    assert after["run_ns"] >= before["run_ns"] > 0 and 0 < after["cores"] <= (os.cpu_count() or 1)
    assert after["busy_ns"] >= before["busy_ns"] > 0 and after["used_ns"] >= 0
