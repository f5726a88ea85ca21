"""A synthetic nsys export: an SQLite file of chosen rows, as two generations of nsys would have written it.

Columns that are not given are NULL. Times are ns on the file's clock. Threads are the system's thread ids; None is the
main thread, whose id is the process id.
"""

from __future__ import annotations

import contextlib
import enum
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.synthetic_nsys_schema import COPY_LABELS, MEMORY_LABELS, TABLES, Generation

VM = 1
"""nsys numbers the machines that it traces; ours is number one."""
SCHEMA_VERSIONS = {Generation.OLD: "2.15.1", Generation.PRESENT: "3.16.1"}
OS_CALL_CLASS = 27
CUDA_CALL_CLASS = 0


class EventType(enum.IntEnum):
    """Kinds of rows in NVTX_EVENTS."""

    CATEGORY = 33
    MARK = 34
    PUSH_POP = 59
    START_END = 60
    DOMAIN = 75


class Copy(enum.IntEnum):
    """Kinds of copies, as CUPTI numbers them."""

    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 8
    PEER_TO_PEER = 10


class Memory(enum.IntEnum):
    """Kinds of memory at the ends of a copy."""

    PAGEABLE = 0
    PINNED = 1
    DEVICE = 2


def pack_pid(pid: int) -> int:
    """nsys' number for a process: machine, process, and no thread."""
    return VM << 48 | pid << 24


def pack_thread(pid: int, thread: int | None) -> int:
    """nsys' number for a thread."""
    return pack_pid(pid) | (pid if thread is None else thread)


class SyntheticExport:
    """Collects rows, and writes them as an export. Empty tables are omitted, as nsys does."""

    def __init__(self, *, generation: Generation = Generation.PRESENT, host: str = "synthetic-host") -> None:
        self.generation = generation
        self.rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES[generation]}
        self._strings: dict[str, int] = {}
        self._domains: dict[tuple[int, str], int] = {}
        self._calls: dict[int, int] = {}
        version = SCHEMA_VERSIONS[generation]
        self.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value=generation.value)
        for name, part in zip(("", "_MAJOR", "_MINOR", "_MICRO"), (version, *version.split(".")), strict=True):
            self.add("META_DATA_EXPORT", name=f"EXPORT_SCHEMA_VERSION{name}", value=part)
        state = {"globalVid": VM << 48, "devStateName": "Local (CLI)"}
        self.add("TARGET_INFO_SYSTEM_ENV", **state, name="Hostname", nameEnum=619, value=host)
        for table, labels in (("ENUM_CUDA_MEMCPY_OPER", COPY_LABELS), ("ENUM_CUDA_MEM_KIND", MEMORY_LABELS)):
            for code, label in enumerate(labels):
                self.add(table, id=code, name=f"KIND_{code}", label=label)

    def add(self, table: str, **values: Any) -> None:
        """Adds one row by column names; columns that the generation lacks are left out."""
        self.rows[table].append(tuple(values.get(column) for column in TABLES[self.generation][table]))

    def add_columns(self, table: str, columns: Mapping[str, Sequence[Any] | int | None]) -> None:
        """Adds many rows at once: lists of equal length; a number or None applies to all rows."""
        count = max(len(values) for values in columns.values() if isinstance(values, list))
        wide = [columns.get(name) for name in TABLES[self.generation][table]]
        self.rows[table] += zip(*(one if isinstance(one, list) else [one] * count for one in wide), strict=True)

    def intern(self, text: str) -> int:
        """The number of a text in StringIds."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def add_process(self, pid: int, *, name: str = "python3") -> None:
        """Names a process. Processes with rows need not be named."""
        self.add("PROCESSES", globalPid=pack_pid(pid), pid=pid, name=name)

    def end_session(self, at_ns: int) -> None:
        """Ends the capture. nsys ends ranges then that were never closed, so they are written with that end."""
        self.add("ANALYSIS_DETAILS", globalVid=VM << 48, duration=at_ns, startTime=10**9, stopTime=10**9 + at_ns)

    def add_gpu(self, device: int, *, name: str, memory_bytes: int, capability: tuple[int, int]) -> None:
        """Adds one device of the machine."""
        major, minor = capability
        versions = {"computeMajor": major, "computeMinor": minor, "smMajor": major, "smMinor": minor}
        identity = {"vmId": VM << 48, "id": device, "cuDevice": device, "name": name, "chipName": "GX000"}
        self.add("TARGET_INFO_GPU", **identity, totalMemory=memory_bytes, **versions)

    def add_domain(self, pid: int, name: str, *, begin_ns: int = 0) -> int:
        """A process' number for a domain, which is created when first named. Empty: the default domain."""
        if not name:
            return 0
        if (pid, name) not in self._domains:
            code = self._domains[pid, name] = 1 + sum(owner == pid for owner, _ in self._domains)
            kind = EventType.DOMAIN.value
            thread = pack_thread(pid, None)
            self.add("NVTX_EVENTS", start=begin_ns, eventType=kind, text=name, globalTid=thread, domainId=code)
        return self._domains[pid, name]

    def add_range(
        self,
        pid: int,
        name: str,
        begin_ns: int,
        end_ns: int | None,
        *,
        domain: str = "",
        payload: int | None = None,
        thread: int | None = None,
        end_thread: int | None = None,
        event: EventType = EventType.PUSH_POP,
        registered: bool = True,
    ) -> None:
        """Adds an NVTX range.

        Args:
            pid: The process id.
            name: The message.
            begin_ns: When it was opened.
            end_ns: When it was closed. None: never.
            domain: Empty: the default domain.
            payload: A payload, as a signed 64-bit integer.
            thread: Where it was opened.
            end_thread: Where a start/end range was closed, if that was another thread.
            event: The type of range.
            registered: The message is a registered string, so it is in StringIds instead of the row.
        """
        message = {"textId": self.intern(name)} if registered else {"text": name}
        threads = {"globalTid": pack_thread(pid, thread)}
        if end_thread is not None:
            threads["endGlobalTid"] = pack_thread(pid, end_thread)
        what = {"eventType": event.value, "domainId": self.add_domain(pid, domain), "int64Value": payload}
        self.add("NVTX_EVENTS", start=begin_ns, end=end_ns, **what, **threads, **message)

    def name_rank(self, pid: int, *, rank: int, world_size: int, host: str = "synthetic-host", at_ns: int = 0) -> None:
        """Adds the mark that distprof's own recorder writes at its start."""
        text = f"rank={rank} world={world_size} host={host} pid={pid}"
        self.add_range(pid, text, at_ns, None, domain="distprof", event=EventType.MARK)

    def add_call(self, pid: int, name: str, begin_ns: int, end_ns: int, *, thread: int | None = None) -> int:
        """Adds a CUDA API call. Returns its correlation id, which every process counts separately."""
        correlation = self._calls[pid] = self._calls.get(pid, 0) + 1
        where = {"globalTid": pack_thread(pid, thread), "correlationId": correlation, "nameId": self.intern(name)}
        what = {"eventClass": CUDA_CALL_CLASS, "returnValue": 0}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=begin_ns, end=end_ns, **what, **where)
        return correlation

    def add_os_call(self, pid: int, name: str, begin_ns: int, end_ns: int, *, thread: int | None = None) -> None:
        """Adds a call of the operating system's runtime."""
        where = {"globalTid": pack_thread(pid, thread), "nameId": self.intern(name)}
        what = {"eventClass": OS_CALL_CLASS, "nestingLevel": 0, "returnValue": 0}
        self.add("OSRT_API", start=begin_ns, end=end_ns, **what, **where)

    def add_activity(
        self,
        table: str,
        pid: int,
        begin_ns: int,
        end_ns: int,
        *,
        correlation: int | None,
        device: int = 0,
        stream: int = 7,
        **more: Any,
    ) -> None:
        """Adds a device activity. ``correlation``: of the call that launched it; ``more``: other columns."""
        where = {"deviceId": device, "contextId": 1, "streamId": stream, "globalPid": pack_pid(pid)}
        self.add(f"CUPTI_ACTIVITY_KIND_{table}", start=begin_ns, end=end_ns, correlationId=correlation, **where, **more)

    def add_kernel(self, pid: int, name: str, begin_ns: int, end_ns: int, **where: Any) -> None:
        """Adds a kernel by demangled name. ``where``: as for `add_activity`; ``graphNodeId``: part of a graph."""
        names = {
            "demangledName": self.intern(name),
            "shortName": self.intern(name.split("(")[0].split("<")[0].split(" ")[-1]),
            "mangledName": self.intern(f"_Z{name}"),
        }
        shape = dict.fromkeys(("gridX", "gridY", "gridZ", "blockY", "blockZ"), 1) | {"blockX": 128}
        self.add_activity("KERNEL", pid, begin_ns, end_ns, **names, **shape, **where)

    def add_copy(
        self,
        pid: int,
        kind: Copy,
        size_bytes: int,
        begin_ns: int,
        end_ns: int,
        *,
        source: Memory = Memory.PINNED,
        target: Memory = Memory.DEVICE,
        **where: Any,
    ) -> None:
        """Adds a copy, with the kinds of memory at its ends. ``where``: as for `add_activity`."""
        what = {"bytes": size_bytes, "copyKind": kind.value, "srcKind": source.value, "dstKind": target.value}
        self.add_activity("MEMCPY", pid, begin_ns, end_ns, **what, **where)

    def add_memset(self, pid: int, size_bytes: int, begin_ns: int, end_ns: int, **where: Any) -> None:
        """Adds a memset of device memory. ``where``: as for `add_activity`."""
        what = {"bytes": size_bytes, "value": 0, "memKind": Memory.DEVICE.value}
        self.add_activity("MEMSET", pid, begin_ns, end_ns, **what, **where)

    def add_graph(self, pid: int, graph: int, begin_ns: int, end_ns: int, **where: Any) -> None:
        """Adds a CUDA graph that was traced as a whole. ``where``: as for `add_activity`."""
        self.add_activity("GRAPH_TRACE", pid, begin_ns, end_ns, graphId=graph, graphExecId=graph + 1, **where)

    def launch(self, pid: int, name: str, called_ns: int, begin_ns: int, end_ns: int, **where: Any) -> int:
        """Adds a kernel and the call that launched it, which took 5 us. Returns their correlation id."""
        thread = where.pop("thread", None)
        correlation = self.add_call(pid, "cudaLaunchKernel_v7000", called_ns, called_ns + 5_000, thread=thread)
        self.add_kernel(pid, name, begin_ns, end_ns, correlation=correlation, **where)
        return correlation

    def write(self, path: Path) -> Path:
        """Writes a new file, and returns its path."""
        path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as base, base:
            base.execute("PRAGMA synchronous=OFF")
            for table, columns in TABLES[self.generation].items():
                if rows := self.rows[table]:
                    base.execute(f"CREATE TABLE {table} ({', '.join(map(' '.join, columns.items()))})")
                    base.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows)
        return path
