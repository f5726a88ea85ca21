"""How long the training thread waits for a core, and why it may: what Linux counts, read by the background thread.

Two kinds of readings: a few small files of the thread itself, and now and then what takes a file per thread of the
process, or is long on hosts of many cores. Where a file is missing, as on other systems, its numbers are not there.
Paths are texts, and files are read by `os.read`: a `Path` and a file object take five times as long as the kernel does.
"""

from __future__ import annotations

import functools
import os
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

RARE_EVERY = 16
"""Readings; before that the first, and those whose number is a power of two, have everything, too."""
MIN_SHARE_RATIO = 0.1
"""Of the processor time of the process' busiest thread: threads that use less do not compute."""
TICK_NS = 10_000_000
"""Of processor times in ``/proc``: USER_HZ is 100 on all that Linux runs on here."""
_MOST_BYTES = 16_384
"""Of a file: more than any of them has before what is read."""
_AFFINITY = getattr(os, "sched_getaffinity", None)
_BUSY, _STEAL = (0, 1, 2, 5, 6, 7), 7
"""Of the numbers of ``/proc/stat``: user, nice, system, irq, softirq, steal."""


class SchedulingWatch:
    """Reads about one thread of this process. It is used on another thread, and never raises."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        *,
        affinity: Callable[[int], set[int]] | None = _AFFINITY,
        allocations: Callable[[], Mapping[str, float]] = dict,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Reads nothing yet.

        Args:
            proc: The kernel's files.
            cgroups: Where the hierarchy of version 2 is.
            affinity: The cores of a thread. None: the system does not say.
            allocations: Reads what the allocator of its GPU counts.
            now_ns: The host clock, ns.
        """
        self._proc, self._cgroups, self._affinity, self._now = str(proc), str(cgroups), affinity, now_ns
        self._read_allocations = allocations
        self._taken = 0
        self._limited = True  # whether the last look found a quota
        self._used: dict[str, int] = {}  # processor time by thread, in ticks

    def read(self, thread: int) -> dict[str, float] | None:
        """One reading, by `distprof.facts.scheduling.SCHEDULING_FIELDS`, without what is not known.

        Args:
            thread: As the kernel numbers it.

        Returns:
            None: the kernel does not say how long the thread waits for a core.
        """
        own = f"{self._proc}/self/task/{thread}"
        waited = _read_numbers(f"{own}/schedstat")
        if len(waited) < 2:
            return None
        rare = self._taken % RARE_EVERY == 0 or self._taken & (self._taken - 1) == 0
        found: dict[str, float] = {
            "at_ns": self._now(), "thread": thread, "run_ns": waited[0], "wait_ns": waited[1],
            **_read_faults(f"{own}/stat"), **_read_switches(f"{own}/status"), **self._read_cores(thread, rare=rare),
            **_read_used(f"{self._proc}/self/stat"), **self._read_allocations(),
        }  # fmt: skip
        if rare:
            found |= {**self._count_threads(), **_read_steal(f"{self._proc}/stat")}
        self._taken += 1
        return found

    def count_ranks_per_core(self, local_ranks: int) -> float:
        """How many of this host's ranks share a core, on average; at least one.

        Ranks that may not use the same cores as the process that started them are taken to have cores of their own.
        """
        own, starter = (self._read_cores(process, rare=False) for process in (0, os.getppid()))
        if not own or own["core_set"] != starter.get("core_set"):
            return 1.0
        return max(1.0, local_ranks / own["cores"])

    def _read_cores(self, thread: int, *, rare: bool) -> dict[str, float]:
        try:
            cores = sorted(self._affinity(thread)) if self._affinity is not None else []
        except OSError:
            cores = []
        if not cores:
            return {}
        quota = self._read_quota() if rare or self._limited else {}
        self._limited = bool(quota)
        found = {"cores": min(float(len(cores)), quota.pop("cores", float("inf")))}
        return {**found, "core_set": zlib.crc32(repr(cores).encode()), **quota}

    def _read_quota(self) -> dict[str, float]:
        """The tightest quota of the process' cgroup and those around it, in cores, and how long that was throttled."""
        found: dict[str, float] = {}
        for path in _list_groups(_read(f"{self._proc}/self/cgroup")):
            limit = _read_numbers(f"{self._cgroups}/{path}/cpu.max")
            if len(limit) < 2 or limit[1] <= 0 or limit[0] / limit[1] >= found.get("cores", float("inf")):
                continue
            counts = dict(row.split() for row in _read(f"{self._cgroups}/{path}/cpu.stat").splitlines() if " " in row)
            found = {"cores": limit[0] / limit[1]}
            if counts.get("throttled_usec", "").isdecimal():
                found["throttled_ns"] = 1000.0 * int(counts["throttled_usec"])
        return found

    def _count_threads(self) -> dict[str, float]:
        """How many threads computed since the last time; the first time, since they began."""
        used = {}
        try:
            threads = os.listdir(f"{self._proc}/self/task")
        except OSError:
            return {}
        for name in threads:
            fields = _read_stat(f"{self._proc}/self/task/{name}/stat")
            if len(fields) > 12:
                used[name] = fields[11] + fields[12]
        since = [ticks - self._used.get(name, 0) for name, ticks in used.items()]
        self._used = used
        most = max(since, default=0)
        return {} if most <= 0 else {"threads": sum(ticks >= MIN_SHARE_RATIO * most for ticks in since)}


@functools.lru_cache(maxsize=1)
def _list_groups(text: str) -> tuple[str, ...]:
    """The process' cgroup of version 2 and those around it, as paths, by its file."""
    line = next((line for line in text.splitlines() if line.startswith("0::")), "")
    inside = Path(os.path.normpath("/" + line[3:].lstrip("/"))).relative_to("/")
    return tuple(map(str, (inside, *inside.parents))) if line else ()


def _read(path: str) -> str:
    """A small file, or the begin of a longer one; empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _read_numbers(path: str) -> list[int]:
    """The whole numbers that a file begins with."""
    found: list[int] = []
    for word in _read(path).split():
        if not word.isdecimal():
            break
        found.append(int(word))
    return found


def _read_stat(path: str) -> list[int]:
    """The numbers of a thread's ``stat`` behind its name, which may hold anything, and its state; -1: negative."""
    words = _read(path).rpartition(")")[2].split()
    return [int(word) if word.isdecimal() else -1 for word in words]


def _read_used(path: str) -> dict[str, float]:
    """Of all threads of a process, also those that have ended."""
    fields = _read_stat(path)
    return {"used_ns": TICK_NS * (fields[11] + fields[12])} if len(fields) > 12 else {}


def _read_faults(path: str) -> dict[str, float]:
    fields = _read_stat(path)
    return {"major_faults": fields[9]} if len(fields) > 9 and fields[9] >= 0 else {}


def _read_switches(path: str) -> dict[str, float]:
    number = _read(path).partition("\nnonvoluntary_ctxt_switches:")[2].partition("\n")[0].strip()
    return {"preempted": int(number)} if number.isdecimal() else {}


def _read_steal(path: str) -> dict[str, float]:
    """Of all cores together: the line that ``/proc/stat`` begins with."""
    words = _read(path).partition("\n")[0].split()
    numbers = [int(word) for word in words[1:] if word.isdecimal()]
    if words[:1] != ["cpu"] or len(numbers) <= _STEAL:
        return {}
    return {"busy_ns": TICK_NS * sum(numbers[at] for at in _BUSY), "steal_ns": TICK_NS * numbers[_STEAL]}
