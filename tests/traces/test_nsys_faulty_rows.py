"""Exports of nsys with rows at fault: they are dropped and counted, and cost no other row and no memory."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from distprof.traces.nsys import columns as nsys_columns
from distprof.traces.nsys.read_nsys import read_nsys
from tests.nsys_file import GEMM, SyntheticExport
from tests.traces.test_nsys_hostile import KERNEL, change, refuse, write_job

BAD_VALUES: list[object] = [None, "text", "1,2", "", 1.5, b"7,8", float("inf"), float("nan"), -1, 2**63 - 1]


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
@pytest.mark.parametrize("column", ["start", "end", "globalPid", "demangledName"])
def test_rows_at_fault_are_dropped_and_counted(tmp_path: Path, column: str, value: object) -> None:
    path = write_job(tmp_path)
    usual = read_nsys(path)[0]
    with sqlite3.connect(path) as base:
        base.execute(f"UPDATE {KERNEL} SET {column} = ? WHERE rowid = 2", (value,))
    trace = read_nsys(path)[0]
    notes = " ".join(trace.head.notes)
    if column == "demangledName" and isinstance(value, int):
        assert len(trace.gpu.begin_ns) == len(usual.gpu.begin_ns)
        assert ("1 rows whose names are not in StringIds" in notes) == (value != -1)
    else:
        assert len(trace.gpu.begin_ns) == len(usual.gpu.begin_ns) - 1
        assert f"1 rows of {KERNEL}: " in notes or (column, value) == ("globalPid", 2**63 - 1)  # of no process of ours
        assert (trace.gpu.end_ns >= trace.gpu.begin_ns).all() and (trace.gpu.begin_ns >= 0).all()


def test_a_faulty_row_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_columns, "ROWS_AT_ONCE", 100)
    export = SyntheticExport()
    for number in range(1000):
        export.launch(10, GEMM, number, number + 5, number + 9)
    path = export.write(tmp_path / "x.sqlite")
    chosen = random.Random(3).sample(range(1, 1001), 60)
    with sqlite3.connect(path) as base:
        for place in chosen:
            base.execute(
                f"UPDATE {KERNEL} SET start = ? WHERE rowid = ?", (random.Random(place).choice(BAD_VALUES), place)
            )
    trace = read_nsys(path)[0]
    kept = [number for number in range(1000) if number + 1 not in chosen]
    assert trace.gpu.begin_ns.tolist() == [number + 5 for number in kept]
    assert trace.gpu.call.tolist() == kept
    assert sum(int(note.split()[0]) for note in trace.head.notes) == 60


def test_ranges_that_end_before_they_begin_are_counted_not_taken_for_open(tmp_path: Path) -> None:
    export = SyntheticExport()
    for name, begin_ns, end_ns in (("good", 5, 6), ("back", 9, 3), ("late", 2**61, 2**62), ("open", 7, None)):
        export.add_range(10, name, begin_ns, end_ns)
    trace = read_nsys(export.write(tmp_path / "x.sqlite"))[0]
    assert [trace.names[name] for name in trace.ranges.name] == ["good", "open"]
    assert "2 rows of NVTX_EVENTS: they end before they begin, or have impossible times" in trace.head.notes


@pytest.mark.parametrize("registered", [True, False])
def test_any_name_of_a_range_will_do(tmp_path: Path, registered: bool) -> None:
    names = [
        "</script><script>alert(1)</script>",
        "\x1b[31m",
        "a\x1fb",
        "\u202eabc",
        "=1+1",
        "",
        "x" * 1_000_000,
        "1,2",
    ]
    export = SyntheticExport()
    for place, name in enumerate(names):
        export.add_range(10, name, place, place + 1, registered=registered)
    trace = read_nsys(export.write(tmp_path / "x.sqlite"))[0]
    assert [trace.names[name] for name in trace.ranges.name] == [name[:4096] for name in names]
    assert "1 names longer than 4,096 letters: cut" in trace.head.notes


def test_text_that_is_no_text_does_not_stop_the_others(tmp_path: Path) -> None:
    export = SyntheticExport()
    for place in range(3):
        export.add_range(10, "range", place, 9, registered=False)
    path = export.write(tmp_path / "x.sqlite")
    change(
        path,
        "UPDATE NVTX_EVENTS SET text = CAST(x'ff41eda080' AS TEXT) WHERE rowid = 1",  # bad UTF-8, a lone surrogate
        "UPDATE NVTX_EVENTS SET text = x'1f00' WHERE rowid = 2",
    )
    trace = read_nsys(path)[0]
    shown = [trace.names[name] for name in trace.ranges.name]
    assert shown[0].startswith("\ufffdA\ufffd") and shown[1:] == ["\x1f\x00", "range"]
    assert all(name.encode() is not None for name in trace.names), "what is kept can be written"


def test_row_numbers_far_apart_are_read(tmp_path: Path) -> None:
    path = change(
        write_job(tmp_path),
        f"UPDATE {KERNEL} SET rowid = 9223372036854775807 WHERE rowid = 1",
        f"UPDATE {KERNEL} SET rowid = -9223372036854775807 WHERE rowid = 2",
    )
    assert len(read_nsys(path)[0].gpu.begin_ns) == 8


def make_many_processes(export: SyntheticExport) -> None:
    for pid in range(1, 4200):
        export.add_range(pid, "x", 1, 2)


def make_far_correlations(export: SyntheticExport) -> None:
    export.add_call(10, "call", 5, 6)
    export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"] = [
        tuple(2**62 if value == 1 else value for value in row) for row in export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    ]
    export.add_kernel(10, "kernel", 7, 8, correlation=2**62)


@pytest.mark.parametrize(("make", "said"), [(make_many_processes, "4,199 processes"), (make_far_correlations, "")])
def test_numbers_of_any_size_cost_no_memory(tmp_path: Path, make: Callable[[SyntheticExport], None], said: str) -> None:
    export = SyntheticExport()
    make(export)
    path = export.write(tmp_path / "x.sqlite")
    if said:
        assert said in refuse(path)
    else:
        assert read_nsys(path)[0].gpu.call.tolist() == [0]
