"""Exports of nsys as traces: against figures that the builder knows, and against a reading row by row."""

from __future__ import annotations

import dataclasses
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import DataError
from distprof.facts.trace import UNKNOWN, ActivityKind, Calls, CopyKind, RangeStyle, Trace
from distprof.traces.limits import Limits
from distprof.traces.nsys import columns as nsys_columns
from distprof.traces.nsys import nsys_tool
from distprof.traces.nsys import pages as nsys_pages
from distprof.traces.nsys.export import export_report
from distprof.traces.nsys.read_nsys import looks_like_sqlite, read_nsys
from tests.nsys_file import (
    ADD,
    GEMM,
    GPU_MEMORY_BYTES,
    MS,
    NCCL,
    PIDS,
    Copy,
    EventType,
    Generation,
    Memory,
    SyntheticExport,
    make_training_export,
)  # fmt: skip
from tests.ranks import make_environment

both_generations = pytest.mark.parametrize("generation", list(Generation))


def list_ranges(trace: Trace) -> list[tuple[str, str, int, int]]:
    """Domain, name, begin and end of every range."""
    ranges, names = trace.ranges, trace.names
    columns = (ranges.domain, ranges.name, ranges.begin_ns, ranges.end_ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(names[domain], names[name], begin, end) for domain, name, begin, end in rows]


def list_calls(trace: Trace, calls: Calls) -> list[tuple[str, int, int]]:
    columns = zip(calls.name.tolist(), calls.begin_ns.tolist(), calls.end_ns.tolist(), strict=True)
    return [(trace.names[name], begin, end) for name, begin, end in columns]


def list_activities(trace: Trace) -> list[tuple[str, int, int, int]]:
    """Name, begin, end, and when the launching call began."""
    gpu = trace.gpu
    called = [UNKNOWN if call == UNKNOWN else int(trace.calls.begin_ns[call]) for call in gpu.call.tolist()]
    columns = zip(gpu.name.tolist(), gpu.begin_ns.tolist(), gpu.end_ns.tolist(), called, strict=True)
    return [(trace.names[name], begin, end, at) for name, begin, end, at in columns]


@both_generations
def test_a_job_of_two_ranks_comes_out_as_it_was_made(tmp_path: Path, generation: Generation) -> None:
    path = make_training_export(generation=generation).write(tmp_path / "job.sqlite")
    first, second = read_nsys(path)
    assert (first.head.path, first.head.tool) == (str(path), "nsys")
    assert [(one.head.rank, one.head.pid, one.head.world_size) for one in (first, second)] == [
        (0, PIDS[0], 2), (1, PIDS[1], 2)
    ]  # fmt: skip
    for rank, trace in enumerate((first, second)):
        head = trace.head
        assert (head.rank_source, head.host) == ("the mark of distprof", "synthetic-host")
        assert (head.device_name, head.device_memory_bytes) == ("NVIDIA H100 80GB HBM3", GPU_MEMORY_BYTES)
        assert (head.compute_capability, head.backend) == ((9, 0), None)
        assert set(trace.gpu.device.tolist()) == {rank}
        assert set(trace.gpu.group.tolist()) == {UNKNOWN}
        assert len(trace.ops.begin_ns) == 0
    assert "are not ranks (1)" in first.head.notes[0] and second.head.notes == ()  # torchrun, which polled


@both_generations
def test_activities_know_what_they_are_and_which_call_launched_them(tmp_path: Path, generation: Generation) -> None:
    trace = read_nsys(make_training_export(num_steps=1, generation=generation).write(tmp_path / "job.sqlite"))[1]
    host_to_device = "[CUDA memcpy Host-to-Device]"
    in_ms = [(name, begin / MS - 100, end / MS - 100, at / MS - 100) for name, begin, end, at in list_activities(trace)]
    assert in_ms == [
        (host_to_device, 2, 3, 1), (host_to_device, 5, 6, 4), (GEMM, 12, 32, 11), (ADD, 32, 34, 20), (GEMM, 34, 74, 31),
        (NCCL, 60, 84, 40), ("[CUDA memset]", 84, 85, 81), ("CUDA graph 1", 86, 90, 85),
    ]  # fmt: skip
    kinds = [ActivityKind.MEMCPY] * 2 + [ActivityKind.KERNEL] * 4 + [ActivityKind.MEMSET, ActivityKind.GRAPH]
    assert trace.gpu.kind.tolist() == kinds
    assert trace.gpu.copy.tolist() == [CopyKind.HOST_TO_DEVICE] * 2 + [CopyKind.NONE] * 6
    assert trace.gpu.pageable.tolist() == [1, 0] + [UNKNOWN] * 6
    assert trace.gpu.size_bytes.tolist() == [4096, 4096, *[UNKNOWN] * 4, 1024, UNKNOWN]
    assert trace.gpu.stream.tolist() == [7, 7, 7, 7, 7, 20, 7, 7]
    assert [name for name, _, _ in list_calls(trace, trace.calls)] == [
        "cudaMemcpyAsync_v3020", "cudaMemcpyAsync_v3020", *["cudaLaunchKernel_v7000"] * 4,
        "cudaStreamSynchronize_v3020", "cudaMemsetAsync_v3020", "cudaGraphLaunch_v10000",
    ]  # fmt: skip
    assert list_calls(trace, trace.os_calls) == [("read", 107 * MS, 109 * MS)]


@both_generations
def test_ranges_keep_domain_order_thread_style_and_payload(tmp_path: Path, generation: Generation) -> None:
    trace = read_nsys(make_training_export(num_steps=2, generation=generation).write(tmp_path / "job.sqlite"))[0]
    rows = list_ranges(trace)
    assert rows[:4] == [
        ("", "open", 50 * MS, UNKNOWN), ("distprof", "step", 100 * MS, 200 * MS),
        ("distprof", "data", 100 * MS, 110 * MS), ("distprof", "forward", 110 * MS, 130 * MS),
    ]  # fmt: skip
    assert [row[:2] for row in rows[4:8]] == [
        ("app", "model"), ("distprof", "backward"), ("distprof", "all_reduce"), ("distprof", "optimizer")
    ]  # fmt: skip
    assert trace.ranges.payload.tolist() == [UNKNOWN, 0, 0, 0, UNKNOWN, 0, 0, 0, 1, 1, 1, UNKNOWN, 1, 1, 1]
    assert trace.ranges.style.tolist() == [RangeStyle.START_END if row[1] == "all_reduce" else 0 for row in rows]
    assert len(set(trace.ranges.thread[1:].tolist())) == 1 and trace.ranges.thread[0] != trace.ranges.thread[1]
    assert trace.ranges.thread[1] == trace.calls.thread[0] == trace.os_calls.thread[0]
    assert trace.head.last_event_ns == 300 * MS and not trace.head.names_default_domain


def test_times_and_names_are_the_same_without_the_rest(tmp_path: Path) -> None:
    path = make_training_export().write(tmp_path / "job.sqlite")
    for whole, part in zip(read_nsys(path), read_nsys(path, only_times=True), strict=True):
        assert list_ranges(part) == list_ranges(whole) and part.ranges.style.tolist() == whole.ranges.style.tolist()
        assert list_calls(part, part.calls) == list_calls(whole, whole.calls)
        assert list_calls(part, part.os_calls) == list_calls(whole, whole.os_calls)
        assert [row[:3] for row in list_activities(part)] == [row[:3] for row in list_activities(whole)]
        assert part.gpu.size_bytes.tolist() == whole.gpu.size_bytes.tolist()
        assert set(part.gpu.call.tolist()) == set(part.gpu.stream.tolist()) == {UNKNOWN}
        assert part.head.rank == whole.head.rank and part.head.last_event_ns == whole.head.last_event_ns


def test_correlations_count_in_their_process_only(tmp_path: Path) -> None:
    export = SyntheticExport()
    for pid, at_ns in ((10, 1000), (11, 501_000)):
        for number in range(3):
            export.launch(pid, f"kernel_{number}", at_ns + 10_000 * number, at_ns + 90_000 + number, at_ns + 99_000)
    export.add_kernel(11, "lonely", 1, 2, correlation=None)
    export.add_kernel(11, "lost", 3, 4, correlation=77)
    for trace, at_ns in zip(read_nsys(export.write(tmp_path / "x.sqlite")), (1000, 501_000), strict=True):
        launched = {name: called for name, _, _, called in list_activities(trace)}
        assert launched == {f"kernel_{number}": at_ns + 10_000 * number for number in range(3)} | (
            {"lonely": UNKNOWN, "lost": UNKNOWN} if at_ns > 1000 else {}
        )


def test_kernels_of_a_graph_share_its_launch(tmp_path: Path) -> None:
    export = SyntheticExport()
    call = export.add_call(10, "cudaGraphLaunch_v10000", 100, 200)
    for node in range(3):
        export.add_kernel(10, f"node_{node}", 300 + node, 400, correlation=call, graphNodeId=node)
    trace = read_nsys(export.write(tmp_path / "x.sqlite"))[0]
    assert trace.gpu.call.tolist() == [0, 0, 0] and set(trace.gpu.kind.tolist()) == {ActivityKind.KERNEL}


def test_copies_by_direction_and_by_the_memory_at_their_ends(tmp_path: Path) -> None:
    export = SyntheticExport()
    cases = [
        (Copy.HOST_TO_DEVICE, Memory.PAGEABLE, Memory.DEVICE, CopyKind.HOST_TO_DEVICE, 1),
        (Copy.DEVICE_TO_HOST, Memory.DEVICE, Memory.PAGEABLE, CopyKind.DEVICE_TO_HOST, 1),
        (Copy.DEVICE_TO_HOST, Memory.DEVICE, Memory.PINNED, CopyKind.DEVICE_TO_HOST, 0),
        (Copy.DEVICE_TO_DEVICE, Memory.DEVICE, Memory.DEVICE, CopyKind.DEVICE_TO_DEVICE, 0),
        (Copy.PEER_TO_PEER, Memory.DEVICE, Memory.DEVICE, CopyKind.PEER_TO_PEER, 0),
    ]
    for at, (kind, source, target, _, _) in enumerate(cases):
        export.add_copy(10, kind, 64, at, at + 1, source=source, target=target, correlation=None)
    export.add_activity("MEMCPY", 10, 50, 51, correlation=None, bytes=1, copyKind=99)  # a kind of tomorrow
    trace = read_nsys(export.write(tmp_path / "x.sqlite"))[0]
    assert trace.gpu.copy.tolist() == [*(case[3] for case in cases), CopyKind.OTHER]
    assert trace.gpu.pageable.tolist() == [*(case[4] for case in cases), UNKNOWN]
    assert trace.names[trace.gpu.name[4]] == "[CUDA memcpy Peer-to-Peer]"
    assert trace.names[trace.gpu.name[5]] == "[CUDA memcpy kind 99]"


def test_domains_are_numbered_by_every_process_for_itself(tmp_path: Path) -> None:
    export = SyntheticExport()
    export.add_range(10, "a", 1, 2, domain="one")
    export.add_range(10, "b", 3, 4, domain="two")
    export.add_range(11, "a", 1, 2, domain="two")
    export.add_range(11, "c", 5, 6)
    strange = {"eventType": EventType.PUSH_POP.value, "globalTid": 11 << 24 | 11, "domainId": 9}
    export.add("NVTX_EVENTS", start=7, end=8, text="d", **strange)
    first, second, third = read_nsys(export.write(tmp_path / "x.sqlite"))
    assert list_ranges(first) == [("", "d", 7, 8)]  # of another machine, by its number
    assert list_ranges(second) == [("one", "a", 1, 2), ("two", "b", 3, 4)]
    assert list_ranges(third) == [("two", "a", 1, 2), ("", "c", 5, 6)]


def test_a_range_that_nsys_ended_with_the_session_was_never_closed(tmp_path: Path) -> None:
    export = SyntheticExport()
    export.end_session(9_000)
    export.add_range(10, "closed", 100, 8_999)
    export.add_range(10, "open", 50, 9_000)
    export.add_range(10, "open too", 60, None, event=EventType.START_END)
    trace = read_nsys(export.write(tmp_path / "x.sqlite"))[0]
    assert list_ranges(trace) == [("", "open", 50, -1), ("", "open too", 60, -1), ("", "closed", 100, 8_999)]
    assert trace.head.last_event_ns == 9_000


def test_outer_ranges_come_first_where_both_begin_together(tmp_path: Path) -> None:
    export = SyntheticExport()
    for name, end_ns in (("inner", 20), ("outer", 30), ("open", None), ("empty", 10)):
        export.add_range(10, name, 10, end_ns)
    export.add_range(10, "across", 11, 15, thread=1, end_thread=2, event=EventType.START_END)
    trace = read_nsys(export.write(tmp_path / "x.sqlite"))[0]
    assert [name for _, name, _, _ in list_ranges(trace)] == ["open", "outer", "inner", "empty", "across"]
    assert trace.ranges.end_thread is not None
    assert trace.ranges.end_thread.tolist() == [UNKNOWN] * 4 + [2]


def test_ranks_without_marks_are_counted_by_process_number(tmp_path: Path) -> None:
    path = make_training_export(num_ranks=3, marks=False).write(tmp_path / "x.sqlite")
    heads = [trace.head for trace in read_nsys(path)]
    assert [(head.rank, head.pid, head.world_size) for head in heads] == [
        (rank, PIDS[rank], 3) for rank in range(3)
    ]  # fmt: skip
    assert {head.rank_source for head in heads} == {"process order"}


def test_marks_win_over_process_order_and_the_unmarked_are_no_ranks(tmp_path: Path) -> None:
    export = SyntheticExport(host="")
    for pid, rank in ((10, 1), (11, 0)):
        export.name_rank(pid, rank=rank, world_size=4, host="nodeß 7")
        export.add_range(pid, "step", 1, 2)
    export.add_range(12, "a loader's", 1, 2)
    export.add_range(11, "rank=3 world=4 host=x pid=11", 0, None, event=EventType.MARK, domain="someone else's")
    path = export.write(tmp_path / "x.sqlite")
    heads = [trace.head for trace in read_nsys(path)]
    assert [(head.pid, head.rank, head.world_size, head.host) for head in heads] == [
        (11, 0, 4, "nodeß 7"), (10, 1, 4, "nodeß 7")
    ]  # fmt: skip
    assert heads[0].notes == ("processes without distprof's mark, which others have, are not ranks (12)",)
    assert [(trace.head.pid, trace.head.rank) for trace in read_nsys(path, all_processes=True)] == [
        (11, 0), (10, 1), (12, None)
    ]  # fmt: skip


def test_all_processes_are_there_when_asked_for(tmp_path: Path) -> None:
    traces = read_nsys(make_training_export().write(tmp_path / "x.sqlite"), all_processes=True)
    assert [(trace.head.pid, trace.head.rank) for trace in traces] == [(4101, 0), (4102, 1), (4000, None)]
    assert list_calls(traces[2], traces[2].os_calls) == [("poll", 1 * MS, 2 * MS)]


def test_columns_that_a_release_lacks_are_not_known(tmp_path: Path) -> None:
    path = make_training_export(num_steps=1).write(tmp_path / "x.sqlite")
    with sqlite3.connect(path) as base:
        for table, column in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "streamId"), ("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind"),
            ("NVTX_EVENTS", "int64Value"), ("NVTX_EVENTS", "endGlobalTid"), ("OSRT_API", "eventClass"),
        ):  # fmt: skip
            base.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        for table in (
            "ENUM_CUDA_MEMCPY_OPER",
            "TARGET_INFO_GPU",
            "TARGET_INFO_SYSTEM_ENV",
            "CUPTI_ACTIVITY_KIND_MEMSET",
        ):
            base.execute(f"DROP TABLE {table}")
    trace = read_nsys(path)[0]
    assert trace.gpu.stream.tolist() == [7, 7, *[UNKNOWN] * 4, 7]
    assert trace.gpu.pageable.tolist()[:2] == [UNKNOWN, UNKNOWN]
    assert set(trace.ranges.payload.tolist()) == {UNKNOWN}
    assert trace.names[trace.gpu.name[0]] == "[CUDA memcpy Host-to-Device]"
    assert (trace.head.device_name, trace.head.device_memory_bytes, trace.head.host) == (None, None, "synthetic-host")


def test_a_device_is_found_through_the_process_own_number_for_it(tmp_path: Path) -> None:
    export = SyntheticExport()
    for device, name in enumerate(("first", "second")):
        export.add_gpu(device, name=name, memory_bytes=2**30, capability=(8, device))
    for pid, gpu in ((10, 1), (11, 0)):
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
        export.launch(pid, "kernel", 0, 1, 2, device=0)
    heads = [trace.head for trace in read_nsys(export.write(tmp_path / "x.sqlite"))]
    assert [(head.device_name, head.compute_capability) for head in heads] == [("second", (8, 1)), ("first", (8, 0))]


def test_nothing_of_the_environment_is_read(tmp_path: Path) -> None:
    canary = "hf_canary_5317"
    export = make_training_export()
    state = {"globalVid": 1 << 48, "devStateName": "x", "nameEnum": 1}
    export.add("TARGET_INFO_SYSTEM_ENV", name="EnvironmentVariables", value=f"HF_TOKEN={canary}", **state)
    export.add("META_DATA_EXPORT", name="EXPORT_USER", value=canary)
    export.intern(f"printed {canary}")  # what a program printed stands in StringIds, and no row of ours names it
    path = export.write(tmp_path / "x.sqlite")
    assert canary.encode() in path.read_bytes()
    assert canary not in repr(read_nsys(path, all_processes=True))


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
            patch.setattr(nsys_columns, "CHUNK_ROWS", chunk_rows)
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


@dataclasses.dataclass
class NaiveProcess:
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


def write_tool(folder: Path, *lines: str) -> str:
    """A script that stands in for nsys: ``$5`` is the file it is to make."""
    tool = folder / "nsys-stand-in"
    tool.write_text("\n".join(("#!/bin/sh", *lines)))
    tool.chmod(0o755)
    return str(tool)


def test_a_capture_is_exported_by_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_training_export().write(tmp_path / "made")
    report, out = tmp_path / "job 1.nsys-rep", tmp_path / "out"
    report.write_bytes(b"anything")
    out.mkdir()
    monkeypatch.setenv("NSYS", write_tool(tmp_path, f'cp "{made}" "$5"', "exit 3"))  # its code is not believed
    assert export_report(report, out) == out / "job 1.sqlite"
    assert len(read_nsys(out / "job 1.sqlite")) == 2
    beside = make_training_export().write(tmp_path / "job 1.sqlite")
    os.utime(beside, ns=(10, 10))
    assert export_report(report, out) == out / "job 1.sqlite", "the export beside it is older than the capture"
    os.utime(beside, ns=(2**62, 2**62))
    assert export_report(report, out) == beside


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["exit 0"], r"made no file \(exit code 0\)"),
        (["echo first", "echo 'disk is \033[31mfull' >&2", "exit 1"], r"exit code 1: disk is \[31mfull"),
        (['[ "$1" = --version ] || : > "$5"'], "made no file"),
        (['[ "$1" = --version ] || sleep 60'], "longer than 0.2 s"),
    ],
)
def test_nsys_is_judged_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], said: str
) -> None:
    (tmp_path / "job.nsys-rep").write_bytes(b"anything")
    monkeypatch.setenv("NSYS", write_tool(tmp_path, *lines))
    monkeypatch.setattr(nsys_tool, "EXPORT_TIMEOUT_S", 0.2 if lines[-1].endswith("sleep 60") else 60.0)
    with pytest.raises(DataError, match=said) as caught:
        export_report(tmp_path / "job.nsys-rep", tmp_path)
    assert "\n" not in str(caught.value) and "\033" not in str(caught.value)


def test_without_nsys_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.nsys-rep").write_bytes(b"anything")
    monkeypatch.setenv("NSYS", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nsys export --type sqlite job\.nsys-rep"):
        export_report(tmp_path / "job.nsys-rep", tmp_path)
    with pytest.raises(DataError, match="not a file"):
        export_report(tmp_path / "other.nsys-rep", tmp_path)


PROGRAM = """
import os, subprocess, sys, nvtx
if len(sys.argv) == 1:
    sys.exit(any([child.wait() for child in [subprocess.Popen([sys.executable, __file__, str(r)]) for r in (0, 1)]]))
rank = int(sys.argv[1])
nvtx.mark(f"rank={rank} world=2 host=here pid={os.getpid()}", domain="distprof", category="meta")
for step in range(3):
    nvtx.push_range("step", domain="distprof", category="step", payload=step)
    with nvtx.annotate("inner", domain="other"):
        nvtx.end_range(nvtx.start_range("mark", domain="distprof", payload=step))
    nvtx.pop_range(domain="distprof")
nvtx.push_range("never closed")
"""


@pytest.mark.nsys
@pytest.mark.skipif(metadata.version("nvtx") > "0.2.11", reason="nvtx after 0.2.11 is silent under older nsys")
def test_a_real_capture_of_two_processes(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    nsys = os.environ.get("NSYS", "nsys")
    command = [
        nsys,
        "profile",
        "-t",
        "nvtx",
        "-s",
        "none",
        "--cpuctxsw",
        "none",
        "-o",
        "job",
        sys.executable,
        "program.py",
    ]
    subprocess.run(command, cwd=tmp_path, env=make_environment(), check=True, capture_output=True, timeout=120)
    path = export_report(tmp_path / "job.nsys-rep", tmp_path)
    assert looks_like_sqlite(path)
    traces = read_nsys(path)
    assert [(trace.head.rank, trace.head.world_size) for trace in traces] == [(0, 2), (1, 2)]
    for trace in traces:
        rows = list_ranges(trace)
        expected = [("distprof", "step"), ("other", "inner"), ("distprof", "mark")] * 3 + [("", "never closed")]
        assert [row[:2] for row in rows] == expected
        assert trace.ranges.payload.tolist() == [0, UNKNOWN, 0, 1, UNKNOWN, 1, 2, UNKNOWN, 2, UNKNOWN]
        assert trace.ranges.style.tolist() == [0, 0, 1] * 3 + [0]
        assert rows[-1][3] == UNKNOWN and all(begin <= end for _, _, begin, end in rows[:-1])
        assert all(
            outer[2] < inner[2] <= inner[3] < outer[3] for outer, inner in zip(rows[:-1:3], rows[1::3], strict=True)
        )


def test_names_are_cut_and_bounded(tmp_path: Path) -> None:
    export = SyntheticExport()
    for number in range(4):
        export.add_range(10, f"{number}" + "ä" * 30, number, 9, registered=number % 2 == 0)
    path = export.write(tmp_path / "x.sqlite")
    cut = read_nsys(path, Limits(max_name_letters=8))[0]
    assert [row[1] for row in list_ranges(cut)] == [f"{number}äääääää" for number in range(4)]
    assert "4 names longer than 8 letters: cut" in cut.head.notes
    crowded = read_nsys(path, Limits(max_names_letters=130))[0]
    assert [row[1] for row in list_ranges(crowded)].count("(one of too many names)") == 2
    assert "2 rows whose names exceeded the total size limit: named '(one of too many names)'" in crowded.head.notes
