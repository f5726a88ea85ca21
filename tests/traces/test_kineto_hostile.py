"""PyTorch profiler traces that lie, are damaged or endless; and the parts in which a file is read do not matter."""

from __future__ import annotations

import gzip
import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distprof.errors import DataError
from distprof.facts.trace import Activities, Calls, Ranges, Trace
from distprof.storage.safe_open import Limits
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import trace_rank
from tests.kineto_file import (
    MAIN,
    PID,
    make_event,
    make_kernel,
    make_op,
    make_sound,
    write_kineto,
    write_text,
)


def spell(trace: Trace) -> dict[str, Any]:
    """Everything in a trace, with names instead of their codes."""
    tables: dict[str, Any] = {}
    for table in Trace.__struct_fields__[2:]:
        columns = getattr(trace, table)
        for column in columns.__struct_fields__:
            values = getattr(columns, column)
            values = values if values is None else values.tolist()
            if column in ("name", "domain", "group"):
                values = [trace.names[value] if value >= 0 else None for value in values]
            tables[f"{table}.{column}"] = values
    return {**tables, "head": structs.replace(trace.head, path=""), "names": sorted(trace.names)}


def name_all(trace: Trace, table: Activities | Calls | Ranges) -> list[str]:
    return [trace.names[code] for code in table.name]


event_names = st.sampled_from(["a", "},{", '", "ph": "X"}, {"', "é\\", "ProfilerStep#7", "", "[memory]", "x" * 50])
times = st.one_of(
    st.floats(0, 1e6),
    st.integers(0, 10**9),
    st.sampled_from([None, "7", -1, -0.5, 1e308, 2**63, True, [], 1e15 + 0.25]),
)
some_events = st.builds(
    make_event, st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "user_annotation", "gpu_memcpy", "other"]),
    st.one_of(event_names, st.none(), st.integers()), times, times,
    tid=st.sampled_from([1, 2, "stream 7", "b", 2**63]), pid=st.sampled_from([0, PID, "Spans"]),
    correlation=st.sampled_from([0, 1, 2, 3, "4", 2**70]), dtype=st.sampled_from(["Float", "?", None, 3]),
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(
    events=st.lists(st.one_of(some_events, st.sampled_from([1, None, "}, {", [{}], {}])), max_size=25),
    part_bytes=st.sampled_from([64, 512, 1024]), indent=st.sampled_from([None, 1]),
)  # fmt: skip
def test_a_trace_does_not_depend_on_how_the_file_is_cut(events: list[Any], part_bytes: int, indent: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps({"traceEvents": [*events, make_op("sound", 100, 1)]}, indent=indent)
        path = write_text(Path(folder) / "t.json", text)
        assert spell(read_kineto(path, part_bytes=part_bytes)) == spell(read_kineto(path))


SOUND = len(make_sound())
NO_BEGIN, WRONG = "no begin, or an impossible one", "fields of wrong types or beyond 64 bits"
NO_SPAN = "no duration, or an impossible one"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (make_op("a", 5, -1), "negative duration"),
        (make_op("a", -5, 1), NO_BEGIN),
        (make_op("a", None, 1), NO_BEGIN),
        (make_op("a", float("nan"), 1), NO_BEGIN),
        (make_op("a", 1e308, 1), NO_BEGIN),
        (make_op("a", 2**62, 1), NO_BEGIN),
        (make_op("a", 4e15, 1), "days away from the others"),
        (make_op("a", 5, float("inf")), NO_SPAN),
        (make_op("a", 5, 1e15), NO_SPAN),
        (make_op("a", 5, None), NO_SPAN),
        ({"ph": "X", "cat": "cpu_op", "name": "a", "ts": 5}, NO_SPAN),
        ({"ph": "X", "cat": "kernel"}, NO_BEGIN),
        ({"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}, "no name"),
        (make_op(None, 5, 1), "no name"),  # type: ignore[arg-type]
        (make_op(7, 5, 1), WRONG),  # type: ignore[arg-type]
        (make_op("a", "5 o'clock", 1), NO_BEGIN),
        (make_op("a", "1e5", 1), NO_BEGIN),
        (make_op("a", 5, "NaN"), NO_SPAN),
        (make_op("a", 2**63, 1), WRONG),
        (make_op("a", 10**400, 1), WRONG),
        (make_op("a", True, 1), WRONG),
        (17, WRONG),
        ("text", WRONG),
        ([[]], WRONG),
    ],
)
def test_one_hostile_event_is_dropped_and_counted(tmp_path: Path, event: Any, why: str) -> None:
    events = make_sound()
    trace = read_kineto(write_kineto(tmp_path / "t.json", [*events[:2], event, *events[2:]]))
    assert [len(table.name) for table in (trace.ranges, trace.ops, trace.calls, trace.gpu)] == [1] * SOUND
    assert trace.gpu.call.tolist() == [0]
    assert f"1 events dropped: {why}" in trace.head.notes


def test_what_is_no_json_is_mended_and_said(tmp_path: Path) -> None:
    text = json.dumps(
        {"traceEvents": [*make_sound(), make_event("gpu_memset", "Memset", 5, 1, bandwidth=float("inf"))]}
    )
    trace = read_kineto(write_text(tmp_path / "t.json", text.replace("Infinity", "inf").replace("gemm", "ge\\qm\x01")))
    assert len(trace.gpu.name) == 2 and "ge\\qm " in trace.names
    assert len(trace.head.notes) == 1 and "not strict JSON" in trace.head.notes[0]


def test_wrong_arguments_cost_the_arguments_only(tmp_path: Path) -> None:
    late = make_kernel("late", 140, 1, [9])  # type: ignore[arg-type]
    events = [*make_sound(), late, make_op("a", 3, 4), {**make_op("b", 3, 4), "args": [1]}]
    trace = read_kineto(write_kineto(tmp_path / "t.json", events))
    assert trace.gpu.call.tolist() == [0, -1] and trace.gpu.stream.tolist() == [7, 7] and len(trace.ops.name) == 3
    assert trace.head.notes == (
        "1 events whose arguments are not an object: read without them",
        "1 fields not understood: correlation",
    )


def test_begin_and_end_events_are_left_out_and_counted(tmp_path: Path) -> None:
    pair = [{"ph": ph, "cat": "cpu_op", "name": "a", "pid": PID, "tid": MAIN, "ts": 1} for ph in "BE"]
    trace = read_kineto(write_kineto(tmp_path / "t.json", [*pair, *make_sound()]))
    assert trace.head.notes == ("2 begin or end events left out",) and len(trace.ops.name) == 1


def test_long_and_too_many_names_are_cut_and_counted(tmp_path: Path) -> None:
    path = write_kineto(tmp_path / "t.json", [make_op("x" * 1_000_000, 1, 1), make_op("x" * 5000, 2, 1), *make_sound()])
    trace = read_kineto(path)
    assert max(map(len, trace.names)) == 4096 and name_all(trace, trace.ops)[:2] == ["x" * 4096] * 2
    assert trace.head.notes == ("2 names cut: too long",)
    path = write_kineto(tmp_path / "t.json", [make_op(f"name {number}", number, 1) for number in range(1000)])
    trace = read_kineto(path, Limits(max_names_letters=10_000))
    assert 100 < len(trace.names) < 200 and len(trace.ops.name) == 1000
    assert "names not kept" in trace.head.notes[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps({"traceEvents": []}), "no kernel, call"),
        (json.dumps({"traceEvents": [{"ph": "M"}]}), "no kernel, call"),
        (json.dumps({"traceEvents": [make_op("a", 1, -1)]}), "no kernel, call"),
        (json.dumps([make_op("a", 1, 1)]).replace('"dur"', "dur"), "byte 1: damaged JSON"),
        ('{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "byte 17: damaged JSON"),
        (json.dumps({"traceEvents": make_sound()})[:-40], "truncated"),
        ('{"traceEvents": [{"args": ' + '{"a": ' * 100_000 + "1" + "}" * 100_000 + "}]}", "too deeply"),
        ('{"traceEvents": [{"args": ' + "[" * 100_000 + "]" * 100_000 + "}]}", "too deeply"),
    ],
)
def test_files_without_use_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        read_kineto(write_text(tmp_path / "t.json", text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_numbers_of_five_thousand_digits(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [make_op("a", "@", 1), *make_sound()], "baseTimeNanoseconds": "@", "a": "@"})
    trace = read_kineto(write_text(tmp_path / "t.json", text.replace('"@"', "9" * 5000)))
    assert trace.head.notes == ("baseTimeNanoseconds cannot be read", f"1 events dropped: {WRONG}")


def test_too_many_events_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "many.json.gz"
    block = b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1},' * 10_000
    with gzip.open(path, "wb", 1) as file:
        file.write(b'{"traceEvents":[')
        for _ in range(8):
            file.write(block)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="more than 60000 events"):
            read_kineto(path, Limits(max_events=60_000))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 60 << 20


@pytest.mark.parametrize("stream", [-1, -7, -(2**62), "x"])
def test_fault_36_a_stream_of_any_number_names_no_group(stream: int | str, tmp_path: Path) -> None:
    nccl = make_event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 120, 10, tid=stream, pid=0, device=0)
    path = write_kineto(tmp_path / "a.json", [*make_sound(), nccl])
    (table,) = trace_rank(read_kineto(path), NameMap()).collectives
    assert [info.name for info in table.groups.values()] == ["communicator 0"]
