"""Exports of nsys of any content, against a naive reading row by row."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from distprof.traces.nsys import columns as nsys_columns
from distprof.traces.nsys import pages as nsys_pages
from distprof.traces.nsys.read_nsys import read_nsys
from tests.nsys_file import (
    EventType,
    Generation,
    SyntheticExport,
)  # fmt: skip
from tests.traces.test_nsys_import import list_activities, list_calls, list_ranges

times = st.integers(0, 2**59)
name = st.sampled_from(["a", "b", "", "ä\x1fö", "x" * 60])


@st.composite
def exports(draw: st.DrawFn) -> SyntheticExport:
    export = SyntheticExport(generation=draw(st.sampled_from(list(Generation))))
    for _ in range(draw(st.integers(1, 25))):
        pid, begin_ns, long_ns = draw(st.integers(1, 3)), draw(times), draw(st.integers(0, 10**6))
        end_ns, text = begin_ns + long_ns, draw(name)
        what = draw(st.integers(0, 3))
        if what == 0:
            domain, closed, registered = draw(st.sampled_from(["", "d", "e"])), draw(st.booleans()), draw(st.booleans())
            event = draw(st.sampled_from([EventType.PUSH_POP, EventType.START_END]))
            end = end_ns if closed else None
            export.add_range(pid, text, begin_ns, end, domain=domain, registered=registered, event=event)
        elif what == 1:
            export.add_call(pid, text, begin_ns, end_ns, thread=draw(st.integers(1, 3)))
        elif what == 2:
            export.add_kernel(pid, text, begin_ns, end_ns, correlation=draw(st.none() | st.integers(1, 4)))
        else:
            export.add_os_call(pid, text, begin_ns, end_ns)
    export.add_call(1, "last", 0, 1)
    return export


def refuse_pages(*_: object) -> None:
    raise nsys_pages.Unusual


@given(export=exports(), chunk_rows=st.sampled_from([None, 1, 3, 50_000]))
def test_every_row_is_read_as_a_naive_reading_has_it(
    export: SyntheticExport, chunk_rows: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for rows in export.rows.values():
        random.Random(1).shuffle(rows)
    path = export.write(tmp_path_factory.mktemp("nsys") / "x.sqlite")
    with pytest.MonkeyPatch.context() as patch:
        if chunk_rows:  # SQLite reads it, in chunks
            patch.setattr(nsys_columns, "ROWS_AT_ONCE", chunk_rows)
            patch.setattr(nsys_columns, "Pages", refuse_pages)
        traces = read_nsys(path, all_processes=True)
    with sqlite3.connect(path) as base:
        base.row_factory = sqlite3.Row
        strings = dict(base.execute("SELECT id, value FROM StringIds"))
        tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master")}
        rows_of = {
            table: base.execute(f"SELECT * FROM {table}").fetchall() if table in tables else []
            for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "OSRT_API")
        }
    assert len({trace.head.pid for trace in traces}) == len(traces)
    for trace in traces:
        naive = NaiveProcess(trace.head.pid, rows_of, strings)
        assert sorted(list_ranges(trace)) == sorted(naive.ranges())
        assert sorted(list_calls(trace, trace.calls)) == sorted(naive.calls("CUPTI_ACTIVITY_KIND_RUNTIME"))
        assert sorted(list_calls(trace, trace.os_calls)) == sorted(naive.calls("OSRT_API"))
        assert sorted(list_activities(trace)) == sorted(naive.kernels())
        for begin_ns in (trace.gpu.begin_ns, trace.calls.begin_ns, trace.os_calls.begin_ns, trace.ranges.begin_ns):
            assert np.all(np.diff(begin_ns) >= 0)
    assert sum(len(trace.os_calls.begin_ns) for trace in traces) == len(rows_of["OSRT_API"])


class NaiveProcess(Struct):
    """One process of an export, read row by row as the schema says."""

    pid: int
    rows_of: dict[str, list[sqlite3.Row]]
    strings: dict[int, str]

    def rows(self, table: str, column: str = "globalTid") -> Iterator[sqlite3.Row]:
        return (row for row in self.rows_of[table] if row[column] >> 24 & 0xFFFFFF == self.pid)

    def ranges(self) -> list[tuple[str, str, int, int]]:
        events = list(self.rows("NVTX_EVENTS"))
        domains = {row["domainId"]: row["text"] for row in events if row["eventType"] == 75}
        return [
            (
                domains.get(row["domainId"], ""),
                row["text"] if row["text"] is not None else self.strings[row["textId"]],
                row["start"],
                -1 if row["end"] is None else row["end"],
            )
            for row in events
            if row["eventType"] in (59, 60)
        ]

    def calls(self, table: str) -> list[tuple[str, int, int]]:
        return [(self.strings[row["nameId"]], row["start"], row["end"]) for row in self.rows(table)]

    def kernels(self) -> list[tuple[str, int, int, int]]:
        launched = {row["correlationId"]: row["start"] for row in self.rows("CUPTI_ACTIVITY_KIND_RUNTIME")}
        return [
            (self.strings[row["demangledName"]], row["start"], row["end"], launched.get(row["correlationId"], -1))
            for row in self.rows("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid")
        ]
