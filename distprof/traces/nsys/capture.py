"""Reads an nsys export as columns, all processes together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from distprof.errors import DataError
from distprof.facts.arrays import IntArray
from distprof.facts.trace import UNKNOWN, ActivityKind, CopyKind, RangeStyle
from distprof.traces.codes import factorize
from distprof.traces.nsys.columns import Rows, Texts, Wanted, is_repeated, pick, read_columns, repeat
from distprof.traces.nsys.database import Database, decode

Columns = dict[str, IntArray]
MAX_NS = 1 << 60
"""36 years: later times are impossible."""
CUPTI = "CUPTI_ACTIVITY_KIND_"
_WHERE = {"correlation": ("correlationId",), "device": ("deviceId",), "stream": ("streamId",)}
_LAUNCHED = ("start", "end", "globalPid")
_CALLED = ("start", "end", "globalTid", "nameId")
GPU_TABLES = (
    Wanted(table=f"{CUPTI}KERNEL", needed=(*_LAUNCHED, "demangledName"), optional=_WHERE),
    Wanted(
        table=f"{CUPTI}MEMCPY",
        needed=(*_LAUNCHED, "bytes", "copyKind"),
        optional={**_WHERE, "source": ("srcKind",), "target": ("dstKind",)},
    ),
    Wanted(table=f"{CUPTI}MEMSET", needed=(*_LAUNCHED, "bytes"), optional=_WHERE),
    Wanted(table=f"{CUPTI}GRAPH_TRACE", needed=_LAUNCHED, optional={**_WHERE, "graph": ("graphId",)}),
)
CALL_TABLES = tuple(
    Wanted(table=f"{CUPTI}{api}", needed=_CALLED, optional={"correlation": ("correlationId",)})
    for api in ("RUNTIME", "DRIVER")
)
OS_TABLE = Wanted(table="OSRT_API", needed=_CALLED, optional={"class": ("eventClass",)})
NVTX_TABLE = Wanted(
    table="NVTX_EVENTS",
    needed=("start", "eventType", "globalTid"),
    optional={
        "end": ("end",), "string": ("textId",), "domain": ("domainId",), "end_thread": ("endGlobalTid",),
        "payload": ("int64Value", "uint64Value", "int32Value", "uint32Value"),
    },
    text="text",
)  # fmt: skip
ALL_TABLES = (*GPU_TABLES, *CALL_TABLES, OS_TABLE, NVTX_TABLE)
TIMES = frozenset({"end", "string", "domain", "class", "graph"})
"""The optional columns that begins, ends and names need."""
OS_CALL_CLASS = 27
STYLES = {59: RangeStyle.PUSH_POP, 70: RangeStyle.PUSH_POP, 60: RangeStyle.START_END, 71: RangeStyle.START_END}
"""NVTX event types that are ranges."""
MARKS = (34, 65)
DOMAIN = 75
COPY_LABELS = (
    "Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array",
    "Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer",
    "Unified Host-to-Device", "Unified Device-to-Host", "Unified Device-to-Device",
)  # fmt: skip
"""nsys' own words, for files without ENUM_CUDA_MEMCPY_OPER."""
COPY_KINDS = (
    CopyKind.OTHER, CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST,
    CopyKind.DEVICE_TO_DEVICE, CopyKind.DEVICE_TO_DEVICE, CopyKind.DEVICE_TO_DEVICE, CopyKind.DEVICE_TO_DEVICE,
    CopyKind.HOST_TO_HOST, CopyKind.PEER_TO_PEER, CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST,
    CopyKind.DEVICE_TO_DEVICE,
)  # fmt: skip
ON_DEVICE = (CopyKind.DEVICE_TO_DEVICE, CopyKind.PEER_TO_PEER)
PAGEABLE = 0
LOST = b"(name not in the file)"
CROWDED = "(one of too many names)"
ASKED_AT_ONCE = 5_000


class Capture(Struct, frozen=True, kw_only=True):
    """Columns of all processes. ``process`` and ``thread`` are nsys' numbers: the process number combined with the
    machine's, and the thread number. Times are ns; impossible rows are left out."""

    gpu: Columns
    """begin_ns, end_ns, name, kind, device, stream, size_bytes, copy, pageable, correlation, process"""
    calls: Columns
    """begin_ns, end_ns, name, correlation, thread, process"""
    os_calls: Columns
    """The same, without correlation."""
    ranges: Columns
    """begin_ns, end_ns, name, style, thread, payload, end_thread, domain, process; ``domain``: the process' number"""
    marks: Columns
    """begin_ns, name, domain, process"""
    domains: Columns
    """begin_ns, name, domain, process"""
    names: tuple[str, ...]
    last_event_ns: int | None
    """The latest time in NVTX_EVENTS; None: the table is empty."""
    notes: tuple[str, ...]


def read_capture(database: Database, *, only_times: bool = False) -> Capture:
    """Reads all tables, several at once. ``only_times``: names, begins and ends; other optional columns stay unknown.

    Raises:
        DataError: It is not an nsys export, a table lacks a column, or the file is damaged or too large.
    """
    if not any(map(database.has, ("StringIds", "META_DATA_EXPORT", *(one.table for one in ALL_TABLES)))):
        raise DataError(f"{database.path}: an SQLite file, but not an Nsight Systems export: it has none of its tables")
    rows = database.count_rows([one.table for one in ALL_TABLES if database.has(one.table)])
    wanted = [_skim(one) if only_times else one for one in ALL_TABLES if one.table in rows]
    wanted.sort(key=lambda one: -rows[one.table] * (len(one.needed) + len(one.optional)))
    from concurrent.futures import ThreadPoolExecutor  # not to be had when Python ends

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        tables = pool.map(lambda one: read_columns(database, one), wanted)
        read = {one.table: table for one, table in zip(wanted, tables, strict=True)}
    return _Assembly(database, read).assemble()


def _skim(wanted: Wanted) -> Wanted:
    return replace(wanted, optional={name: of if name in TIMES else () for name, of in wanted.optional.items()})


class _Assembly:
    """Makes one capture from the tables read, and frees each table once its columns are made."""

    def __init__(self, database: Database, read: dict[str, Rows]) -> None:
        self._database, self._read = database, read
        nvtx = read.get(NVTX_TABLE.table)
        self._names = StringIds(database, nvtx.texts if nvtx else Texts(database.limits))
        self._notes = [
            f"{rows.dropped:,} rows of {table}: values of the wrong type"
            for table, rows in read.items()
            if rows.dropped
        ]

    def assemble(self) -> Capture:
        last_ns = self._read_last_time()
        gpu = _join([self._activities(one) for one in GPU_TABLES])
        calls = _join([self._calls(one) for one in CALL_TABLES])
        os_calls = self._calls(OS_TABLE)
        ranges, marks, domains = self._nvtx()
        names, renumber, notes = self._names.finish()
        for columns in (gpu, calls, os_calls, ranges, marks, domains):
            columns["name"] = renumber[columns["name"]]  # -1 selects the last element
        return Capture(
            gpu=gpu, calls=calls, os_calls=os_calls, ranges=ranges, marks=marks, domains=domains, names=names,
            last_event_ns=last_ns, notes=(*self._notes, *notes),
        )  # fmt: skip

    def _read_last_time(self) -> int | None:
        rows = self._read.get(NVTX_TABLE.table)
        if rows is None or not len(rows["start"]):
            return None
        return int(max(rows["start"].max(), rows["end"].max()))

    def _keep_sound(self, table: str, columns: Columns, *, open_ended: bool = False) -> Columns:
        """The rows that end after they begin, at possible times."""
        begin_ns, end_ns = columns["begin_ns"], columns["end_ns"]
        sound = (begin_ns >= 0) & (begin_ns < MAX_NS) & (end_ns < MAX_NS)
        sound &= (end_ns >= begin_ns) | ((end_ns == UNKNOWN) & open_ended)
        sound &= columns["process"] >= 0
        if wrong := len(sound) - int(np.count_nonzero(sound)):
            self._notes.append(f"{wrong:,} rows of {table}: they end before they begin, or have impossible times")
            return pick(columns, sound)
        return columns

    def _activities(self, wanted: Wanted) -> Columns:
        rows = self._read.pop(wanted.table, None)
        if rows is None:
            return _make_none("kind device stream size_bytes copy pageable correlation")
        count = len(rows["start"])
        unknown = repeat(UNKNOWN, count)
        columns = {
            "begin_ns": rows["start"], "end_ns": rows["end"], "process": rows["globalPid"] >> 24,
            "size_bytes": rows.columns.get("bytes", unknown), "copy": repeat(CopyKind.NONE, count),
            "pageable": unknown, **{name: rows[name] for name in _WHERE},
        }  # fmt: skip
        kind = wanted.table.removeprefix(CUPTI)
        if kind == "KERNEL":
            columns |= {
                "name": self._names.find(rows["demangledName"]),
                "kind": repeat(ActivityKind.KERNEL, count),
            }
        elif kind == "MEMCPY":
            columns |= self._describe_copies(rows)
        elif kind == "MEMSET":
            name = repeat(self._names.add("[CUDA memset]"), count)
            columns |= {"name": name, "kind": repeat(ActivityKind.MEMSET, count)}
        else:
            graphs, which = factorize(rows["graph"])
            numbers = [
                self._names.add("CUDA graph" if one == UNKNOWN else f"CUDA graph {one}") for one in graphs.tolist()
            ]
            columns |= {"name": np.array(numbers, np.int64)[which], "kind": repeat(ActivityKind.GRAPH, count)}
        return self._keep_sound(wanted.table, columns)

    def _describe_copies(self, rows: Rows) -> Columns:
        """Names, directions, and whether the host memory involved was pageable."""
        said = {
            code: label
            for code, label in self._database.read_few("ENUM_CUDA_MEMCPY_OPER", ("id", "label"))
            if isinstance(code, int) and isinstance(label, str)
        } or dict(enumerate(COPY_LABELS))
        codes, which = factorize(rows["copyKind"])
        labels = [said.get(code, f"kind {code}") for code in codes.tolist()]
        kinds = [COPY_KINDS[code] if 0 <= code < len(COPY_KINDS) else CopyKind.OTHER for code in codes.tolist()]
        names = [self._names.add(f"[CUDA memcpy {label}]") for label in labels]
        copy = np.array(kinds, np.int64)[which]
        ends = np.stack([rows["source"], rows["target"]])
        pageable = np.where((ends == PAGEABLE).any(axis=0), 1, np.where((ends == UNKNOWN).any(axis=0), UNKNOWN, 0))
        return {
            "name": np.array(names, np.int64)[which],
            "kind": repeat(ActivityKind.MEMCPY, len(copy)),
            "copy": copy,
            "pageable": np.where(np.isin(copy, ON_DEVICE), 0, pageable),
        }

    def _calls(self, wanted: Wanted) -> Columns:
        rows = self._read.pop(wanted.table, None)
        if rows is None:
            return _make_none("thread correlation")
        columns = {
            "begin_ns": rows["start"],
            "end_ns": rows["end"],
            "name": rows["nameId"],
            **_split_thread(rows["globalTid"]),
        }
        if wanted.table == OS_TABLE.table:  # rows of other classes tell when the tracing of a thread began
            columns = _take(columns, np.isin(rows["class"], (OS_CALL_CLASS, UNKNOWN)))
        else:
            columns["correlation"] = rows["correlation"]
        columns["name"] = self._names.find(columns["name"])
        return self._keep_sound(wanted.table, columns)

    def _nvtx(self) -> tuple[Columns, Columns, Columns]:
        """Ranges, marks and domains."""
        rows = self._read.pop(NVTX_TABLE.table, None)
        if rows is None:
            none = _make_none("style thread payload end_thread domain")
            return none, dict(none), dict(none)
        kind, name = rows["eventType"], rows["text"].copy()
        silent = np.flatnonzero(name == UNKNOWN)
        name[silent] = self._names.find(rows["string"][silent])
        columns = {
            "begin_ns": rows["start"], "end_ns": rows["end"], "name": name, "kind": kind, "payload": rows["payload"],
            "domain": np.maximum(rows["domain"], 0), **_split_thread(rows["globalTid"]),
            "end_thread": _mask_own_threads(rows["end_thread"], rows["globalTid"]),
        }  # fmt: skip
        ranges = self._keep_sound("NVTX_EVENTS", _take(columns, np.isin(kind, list(STYLES))), open_ended=True)
        ranges["style"] = np.where(
            np.isin(ranges["kind"], (60, 71)), RangeStyle.START_END.value, RangeStyle.PUSH_POP.value
        )
        ranges["end_ns"] = self._reopen(ranges["end_ns"])
        return ranges, _take(columns, np.isin(kind, MARKS)), _take(columns, kind == DOMAIN)

    def _reopen(self, end_ns: IntArray) -> IntArray:
        """Reopens ranges that were never closed: nsys ends them with the session."""
        stops = [
            row[0] for row in self._database.read_few("ANALYSIS_DETAILS", ("duration",)) if isinstance(row[0], int)
        ]
        return np.where(np.isin(end_ns, stops), UNKNOWN, end_ns) if stops else end_ns


class StringIds:
    """Codes for all names of a file. Codes of `Texts` stay unchanged; `finish` turns them into indexes of names."""

    def __init__(self, database: Database, texts: Texts) -> None:
        self._database, self._texts = database, texts
        self._lost = 0

    def add(self, text: str) -> int:
        """The code of a name of our own."""
        return self._texts[text.encode()]

    def find(self, strings: IntArray) -> IntArray:
        """Codes of the names with these numbers in StringIds; -1 gives the empty name."""
        different, which = factorize(strings)
        known = self._read(different[different != UNKNOWN])
        lost = self._texts[LOST] if len(known) < np.count_nonzero(different != UNKNOWN) else UNKNOWN
        numbers = [0 if one == UNKNOWN else known.get(one, lost) for one in different.tolist()]
        found = np.array(numbers, np.int64)[which]
        self._lost += int(np.count_nonzero(found == lost)) if lost != UNKNOWN else 0
        return found

    def _read(self, strings: IntArray) -> dict[int, int]:
        """Reads only the texts needed: StringIds also holds what programs printed."""
        found: dict[int, int] = {}
        for begin in range(0, len(strings), ASKED_AT_ONCE):
            self._database.check_time()
            asked = ", ".join(map(str, strings[begin : begin + ASKED_AT_ONCE].tolist()))
            for string, text in self._database.read_texts("StringIds", "id", "value", f"WHERE id IN ({asked})"):
                if string not in found:
                    found[string] = self._texts[text]
        return found

    def finish(self) -> tuple[tuple[str, ...], IntArray, list[str]]:
        """The names; for each code given so far, and finally for -1, its name's index; and notes about losses."""
        letters = self._database.limits.max_name_letters
        texts = [decode(text, letters) for text in self._texts] + [CROWDED]
        names = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        long = sum(len(text.decode("utf-8", "replace")) > letters for text in self._texts)
        notes = [
            f"{count:,} {what}"
            for count, what in (
                (long, f"names longer than {letters:,} letters: cut"),
                (self._texts.refused, f"rows whose names exceeded the total size limit: named {CROWDED!r}"),
                (self._lost, "rows whose names are not in StringIds"),
            )
            if count
        ]
        return tuple(names), np.array([names[text] for text in texts], np.int64), notes


def _split_thread(threads: IntArray) -> Columns:
    return {"thread": threads & 0xFFFFFF, "process": threads >> 24}


def _mask_own_threads(end_threads: IntArray, threads: IntArray) -> IntArray:
    """The thread that closed each range, if not the range's own thread; else -1."""
    if is_repeated(end_threads, UNKNOWN):
        return end_threads
    return np.where((end_threads == threads) | (end_threads == UNKNOWN), UNKNOWN, end_threads & 0xFFFFFF)


def _take(columns: Columns, rows: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Columns:
    return dict(columns) if rows.all() else pick(columns, rows)


def _make_none(names: str) -> Columns:
    return {name: np.empty(0, np.int64) for name in ("begin_ns", "end_ns", "name", "process", *names.split())}


def _join(parts: Iterable[Columns]) -> Columns:
    filled = [part for part in parts if len(part["begin_ns"])] or [next(iter(parts))]
    return filled[0] if len(filled) == 1 else {name: _append([part[name] for part in filled]) for name in filled[0]}


def _append(columns: Sequence[IntArray]) -> IntArray:
    """Concatenates columns; repetitions of one value stay a column that takes no memory."""
    first = int(columns[0][0])
    if all(is_repeated(column, first) for column in columns):
        return repeat(first, sum(map(len, columns)))
    return np.concatenate(columns)
