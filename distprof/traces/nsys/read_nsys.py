"""Reads an SQLite export of an Nsight Systems capture: one trace per rank in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from distprof.errors import DataError
from distprof.facts.arrays import IntArray
from distprof.facts.trace import UNKNOWN, Activities, Calls, Operators, Ranges, Trace
from distprof.storage.safe_open import USUAL_LIMITS, Limits
from distprof.traces.codes import factorize, match_calls
from distprof.traces.nsys.capture import Capture, Columns, read_capture
from distprof.traces.nsys.columns import pick
from distprof.traces.nsys.database import Database
from distprof.traces.nsys.heads import Heads

MAX_PROCESSES = 4096


def read_nsys(
    path: Path, limits: Limits = USUAL_LIMITS, *, all_processes: bool = False, only_times: bool = False
) -> list[Trace]:
    """One trace per process that is a rank, ordered by rank: every process with device activity, CUDA calls or NVTX
    ranges or, if some processes carry distprof's mark, only those. Notes about the file as a whole, such as dropped
    rows, are those of the first trace.

    Ranks without a mark are numbered by process number, the order in which launchers start them.

    Args:
        path: Output of `nsys export --type sqlite`.
        limits: When to refuse the file.
        all_processes: Add a trace for every other process, without a rank, after the ranks: nsys' own tables include
            them all.
        only_times: Leave out what those tables do not show, which is faster: devices, streams, launching calls, kinds
            of memory and payloads are then unknown.

    Raises:
        DataError: The file is not such an export, is damaged or too large, or contains no rank.
    """
    database = Database(path, limits)
    return split_capture(database, read_capture(database, only_times=only_times), all_processes=all_processes)


def split_capture(database: Database, capture: Capture, *, all_processes: bool) -> list[Trace]:
    """One trace per process that is a rank, ordered by rank. ``all_processes``: then one for each other process.

    Raises:
        DataError: There are no processes, or too many.
    """
    parts = [_Parts(columns) for columns in (capture.gpu, capture.calls, capture.ranges, capture.os_calls)]
    active = np.unique(np.concatenate([part.processes for part in parts[:3]]))
    idle = np.setdiff1d(parts[3].processes, active).tolist()
    if not len(active) and not (idle and all_processes):
        raise DataError(f"{database.path}: no CUDA call, kernel or NVTX range: capture with nsys profile -t cuda,nvtx")
    if len(active) + len(idle) > MAX_PROCESSES:
        raise DataError(f"{database.path}: {len(active) + len(idle):,} processes: at most {MAX_PROCESSES:,} are read")
    heads = Heads(database, capture, active.tolist(), idle)
    kept = (*heads.ranked, *heads.unranked) if all_processes else heads.ranked
    notes = [*capture.notes, *heads.notes]
    if idle:
        notes.append(f"processes that only made operating system calls are not ranks ({len(idle):,})")
    return [
        _build(capture, heads, parts, process, notes if not at else [], all_names=all_processes)
        for at, process in enumerate(kept)
    ]


class _Parts:
    """Finds the rows of each process in a table."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.processes, which = factorize(columns["process"])
        self._order: IntArray | None = None
        """None: each process' rows are contiguous already."""
        if (which[1:] < which[:-1]).any():
            small = len(self.processes) < 1 << 16  # NumPy radix-sorts 16-bit integers
            self._order = np.argsort(which.astype(np.uint16) if small else which, kind="stable")
        sizes = np.bincount(which, minlength=len(self.processes))
        self._ends = np.cumsum(sizes)
        self._begins = self._ends - sizes

    def find(self, process: int) -> Columns:
        """The process' rows."""
        at = int(np.searchsorted(self.processes, process))
        if at == len(self.processes) or self.processes[at] != process:
            return {name: values[:0] for name, values in self._columns.items()}
        here = slice(self._begins[at], self._ends[at])
        if self._order is not None:
            return pick(self._columns, self._order[here])
        return {name: values[here] for name, values in self._columns.items()}


def _build(
    capture: Capture, heads: Heads, parts: Sequence[_Parts], process: int, notes: Sequence[str], *, all_names: bool
) -> Trace:
    """One process' trace. ``all_names``: keep all names of the file in order, as tables of several traces need."""
    gpu, calls, ranges, os_calls = (part.find(process) for part in parts)
    gpu, calls, os_calls = _sort(gpu), _sort(calls), _sort(os_calls)
    ranges = _sort_nested(ranges)
    ranges["domain"] = heads.look_up_domains(process, ranges["domain"])
    names = capture.names if all_names else _shrink_names(capture.names, (gpu, calls, os_calls, ranges))
    return Trace(
        head=heads.describe(process, gpu["device"], notes),
        names=names,
        gpu=Activities(
            begin_ns=gpu["begin_ns"], end_ns=gpu["end_ns"], name=gpu["name"], kind=gpu["kind"], device=gpu["device"],
            stream=gpu["stream"], size_bytes=gpu["size_bytes"], copy=gpu["copy"], pageable=gpu["pageable"],
            call=match_calls(gpu["correlation"], calls["correlation"]), group=np.full(len(gpu["kind"]), UNKNOWN),
        ),
        calls=_make_calls(calls),
        os_calls=_make_calls(os_calls),
        ops=Operators(**{name: os_calls[name][:0] for name in ("begin_ns", "end_ns", "name", "thread")}),
        ranges=Ranges(
            begin_ns=ranges["begin_ns"], end_ns=ranges["end_ns"], name=ranges["name"], domain=ranges["domain"],
            style=ranges["style"], thread=ranges["thread"], payload=ranges["payload"], end_thread=ranges["end_thread"],
        ),
    )  # fmt: skip


def _shrink_names(names: Sequence[str], tables: Sequence[Columns]) -> tuple[str, ...]:
    """The names that the tables use; the tables' codes are renumbered in place."""
    columns = [(table, column) for table in tables for column in ("name", "domain") if column in table]
    used = np.zeros(len(names), bool)
    for table, column in columns:
        used[table[column]] = True
    renumber = np.cumsum(used) - 1
    for table, column in columns:
        table[column] = renumber[table[column]]
    return tuple(names[at] for at in np.flatnonzero(used).tolist())


def _make_calls(columns: Columns) -> Calls:
    return Calls(
        begin_ns=columns["begin_ns"], end_ns=columns["end_ns"], name=columns["name"], thread=columns["thread"]
    )  # fmt: skip


def _sort(columns: Columns) -> Columns:
    """Sorts by begin, the order in which nsys wrote its tables until 2025.5."""
    begin_ns = columns["begin_ns"]
    if np.all(begin_ns[1:] >= begin_ns[:-1]):
        return columns
    return pick(columns, np.argsort(begin_ns, kind="stable"))


def _sort_nested(columns: Columns) -> Columns:
    """Sorts by begin, an outer range before an inner one; ranges that were never closed are outermost."""
    begin_ns = columns["begin_ns"]
    if np.all(begin_ns[1:] > begin_ns[:-1]):
        return columns
    end_ns = np.where(columns["end_ns"] == UNKNOWN, np.iinfo(np.int64).max, columns["end_ns"])
    return pick(columns, np.lexsort((-end_ns, begin_ns)))
