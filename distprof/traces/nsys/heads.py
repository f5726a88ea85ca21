"""Identifies the processes of a capture: rank, host and device."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from distprof.facts.arrays import IntArray
from distprof.facts.range_names import OWN_DOMAIN
from distprof.facts.run import MAX_WORLD
from distprof.facts.trace import TraceHead
from distprof.traces.codes import factorize
from distprof.traces.nsys.capture import Capture, Columns
from distprof.traces.nsys.database import Database
from distprof.traces.one_job import BY_ORDER, UNIX_NS

MARK = re.compile(r"rank=(\d{1,9}) world=(\d{1,9}) host=(.*) pid=\d{1,10}")
LATEST_NS = 4_200_000_000_000_000_000
"""The year 2103."""
BY_MARK = "the mark of distprof"
SHOWN = 8


class Heads:
    """Reads what concerns the whole file once, then describes one process after another."""

    def __init__(self, database: Database, capture: Capture, processes: Sequence[int], others: Sequence[int]) -> None:
        """Assigns ranks to the processes.

        Args:
            database: The file.
            capture: Its columns.
            processes: Those that may be ranks, ascending.
            others: Those that have a trace but are never ranks.
        """
        self._path = str(database.path)
        self._names = capture.names
        self._last_event_ns = capture.last_event_ns
        self._domains = _map_domains(capture)
        self._marks = self._read_marks(capture.marks)
        self._hosts = _read_hosts(database)
        self._session_start_ns = _read_session_start(database)
        self._devices = {
            row[0]: row[1:] for row in database.read_few("TARGET_INFO_GPU", _GPU) if isinstance(row[0], int)
        }
        links = database.read_few("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
        self._links = {(pid, device): gpu for pid, device, gpu in links}
        self.notes: list[str] = []
        ranked = sorted((key for key in processes if key in self._marks), key=lambda key: (self._marks[key][0], key))
        unmarked = [key for key in processes if key not in self._marks]
        self._order = {} if ranked else {key: position for position, key in enumerate(unmarked)}
        self.ranked: tuple[int, ...] = tuple(ranked or unmarked)
        """The processes that are ranks, ordered by rank."""
        self.unranked: tuple[int, ...] = (*(unmarked if ranked else ()), *others)
        if ranked and unmarked:
            pids = ", ".join(str(key & 0xFFFFFF) for key in unmarked[:SHOWN])
            more = ", ..." if len(unmarked) > SHOWN else ""
            self.notes.append(f"processes without distprof's mark, which others have, are not ranks ({pids}{more})")

    def _read_marks(self, marks: Columns) -> dict[int, tuple[int, int, str]]:
        """Rank, world size and host by process, from each process' first mark."""
        found: dict[int, tuple[int, int, str]] = {}
        order = np.argsort(marks["begin_ns"], kind="stable")
        texts = {code: MARK.fullmatch(self._names[code]) for code in np.unique(marks["name"]).tolist()}
        wanted = np.isin(marks["name"], [code for code, match in texts.items() if match])
        for at in order[wanted[order]].tolist():
            process, match = int(marks["process"][at]), texts[int(marks["name"][at])]
            domain = self._domains.get((process, int(marks["domain"][at])))
            if match and process not in found and (domain is None or self._names[domain] == OWN_DOMAIN):
                rank, world_size = int(match[1]), int(match[2])
                if rank < world_size <= MAX_WORLD:
                    found[process] = (rank, world_size, match[3])
        return found

    def look_up_domains(self, process: int, numbers: IntArray) -> IntArray:
        """Codes of the names of a process' domains; the empty name for unknown ones."""
        different, which = factorize(numbers)
        empty = self._names.index("")
        names = [self._domains.get((process, number), empty) for number in different.tolist()]
        return np.array(names, np.int64)[which]

    def describe(self, process: int, devices: IntArray, notes: Sequence[str]) -> TraceHead:
        """The head of a process' trace; ``devices``: of all its activities."""
        pid = process & 0xFFFFFF
        rank, world_size, host, source = self._identify(process)
        name, memory_bytes, *version = self._look_up_device(pid, devices)
        major, minor = version[:2] if version[0] is not None else version[2:]
        default = self._domains.get((process, 0))
        return TraceHead(
            path=self._path, tool="nsys", pid=pid, rank=rank, rank_source=source, world_size=world_size,
            host=self._hosts.get(process >> 24, host) or host or None,
            device_name=name if isinstance(name, str) and name else None,
            device_memory_bytes=memory_bytes if isinstance(memory_bytes, int) and memory_bytes > 0 else None,
            compute_capability=(major, minor) if isinstance(major, int) and isinstance(minor, int) else None,
            last_event_ns=self._last_event_ns, session_start_ns=self._session_start_ns,
            names_default_domain=default is not None and not self._names[default], notes=tuple(notes),
        )  # fmt: skip

    def _identify(self, process: int) -> tuple[int | None, int | None, str | None, str]:
        """Rank, world size, host, and the source of the rank."""
        if process in self._marks:
            return *self._marks[process], BY_MARK
        if process in self._order:
            return self._order[process], len(self._order), None, BY_ORDER
        return None, None, None, "nothing"

    def _look_up_device(self, pid: int, devices: IntArray) -> Sequence[object]:
        """What the file says about the device that a process used most."""
        different, which = factorize(devices[devices >= 0])
        if not len(different):
            return NO_DEVICE
        device = int(different[np.argmax(np.bincount(which))])
        return self._devices.get(self._links.get((pid, device), device), NO_DEVICE)


NO_DEVICE = (None,) * 6
_GPU = ("id", "name", "totalMemory", "computeMajor", "computeMinor", "smMajor", "smMinor")


def _map_domains(capture: Capture) -> dict[tuple[int, int], int]:
    """The name's code by process and by the process' number for the domain; the first entry counts."""
    rows = capture.domains
    order = np.argsort(rows["begin_ns"], kind="stable")
    columns = (rows[name][order].tolist() for name in ("process", "domain", "name"))
    found: dict[tuple[int, int], int] = {}
    for process, domain, name in zip(*columns, strict=True):
        found.setdefault((process, domain), name)
    return found


def _read_session_start(database: Database) -> int | None:
    """The Unix time at which the session began; all times count from there."""
    found = [row[0] for row in database.read_few("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",), most=2)]
    known = len(found) == 1 and isinstance(found[0], int) and UNIX_NS < found[0] < LATEST_NS
    return found[0] if known else None


def _read_hosts(database: Database) -> dict[int, str]:
    """Host names by machine. Nothing else of that table is read: it holds the environment of the person capturing."""
    rows = database.read_few("TARGET_INFO_SYSTEM_ENV", ("globalVid", "value"), "WHERE name = 'Hostname'")
    return {vid >> 48: host for vid, host in rows if isinstance(vid, int) and isinstance(host, str) and host}
