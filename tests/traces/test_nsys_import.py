"""Exports of nsys as traces, against figures that the builder knows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from distprof.facts.trace import UNKNOWN, ActivityKind, Calls, CopyKind, RangeStyle, Trace
from distprof.storage.safe_open import Limits
from distprof.traces.nsys.read_nsys import read_nsys
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
