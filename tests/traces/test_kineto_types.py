"""Fields and arguments of unusual types: a number in another spelling is a number, and anything else is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from distprof.facts.trace import Trace
from distprof.traces.kineto.json_text import match_time_text, read_int
from distprof.traces.kineto.read_kineto import read_kineto
from tests.kineto_file import JsonObject, find_real, make_kernel, make_launch, make_op, write_kineto


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7), (7.0, 7), ("7", 7), (" 7 ", 7), ("-7", -7), ("0x0", 0), ("0x55674ecd4180", 0x55674ECD4180),
        ("0XfF", 255), ("007", 7), (2**62, 2**62), (str(2**62), 2**62),
        (None, None), (True, None), (7.5, None), (1e300, None), (float("nan"), None), (float("inf"), None),
        ("", None), ("seven", None), ("7.0", None), ("ff", None), ("0x", None), ("1_000", None), ("1e3", None),
        ("\u0667", None), (2**63, None), (str(2**70), None), ("0x" + "f" * 16, None), ("9" * 100_000, None),
        ([], None), ({}, None),
    ],
)  # fmt: skip
def test_whole_numbers(value: object, number: int | None) -> None:
    found = read_int(value)
    assert found == number and type(found) in (int, type(None))


def test_times_written_as_text() -> None:
    assert match_time_text("1682725898236567.123") == "1682725898236567.123" and match_time_text(" 5 ") == "5"
    for wrong in ("", "1e5", "nan", "inf", "5us", "0x5", "1." + "0" * 1000, "9" * 1000, 5, None):
        assert match_time_text(wrong) is None


def make_pair(**changes: Any) -> list[JsonObject]:
    """A call on ROCm, whose arguments are strings, the kernel it launches, and an operator."""
    launch = make_launch(10, 5, 9, "hipLaunchKernel", stream="0x0", kernel="Cijk")
    kernel = make_kernel("ncclDevKernel_Generic", 20, 30, 9, dtype="Float", In_msg_nelems=4, Out_msg_nelems=2)
    kernel["args"] |= {"Process Group Name": "dp", "Collective name": "allreduce", **changes}
    return [launch, kernel, make_op("aten::mm", 5, 60)]


def read(tmp_path: Path, events: list[Any]) -> Trace:
    return read_kineto(write_kineto(tmp_path / "t.json", events))


def describe(trace: Trace) -> dict[str, Any]:
    """The kernel's value for each argument."""
    gpu = trace.gpu
    assert gpu.collective is not None
    codes = {"Process Group Name": gpu.group[0], "Collective name": gpu.collective[0]}
    names = {name: None if code < 0 else trace.names[code] for name, code in codes.items()}
    numbers = {"stream": gpu.stream[0], "device": gpu.device[0], "bytes": gpu.size_bytes[0], "launch": gpu.call[0]}
    return names | {name: int(value) for name, value in numbers.items()}


def test_a_stream_that_is_text_costs_no_launch(tmp_path: Path) -> None:
    trace = read(tmp_path, make_pair())
    assert trace.gpu.call.tolist() == [0] and trace.head.notes == ()


@pytest.mark.parametrize("name", ["stream", "device", "correlation", "In msg nelems", "Out msg nelems"])
@pytest.mark.parametrize("spelled", [str, hex, float])
def test_numbers_in_another_spelling_change_nothing(tmp_path: Path, name: str, spelled: type) -> None:
    usual = describe(read(tmp_path, make_pair()))
    number = make_pair()[1]["args"][name]
    trace = read(tmp_path, make_pair(**{name: spelled(number)}))
    assert describe(trace) == usual and trace.head.notes == ()
    assert usual["launch"] == 0 and usual["bytes"] == 16


WORDS = ("Process Group Name", "Collective name", "dtype")
NOTE_NAMES = {
    "bytes": "size_bytes", "In msg nelems": "in_elements", "Out msg nelems": "out_elements",
    "Process Group Name": "group", "Collective name": "collective",
}  # fmt: skip
STRANGE = ("word", 0.5, True, [7], {"a": 7}, [[[]]], 10**30, -(2**63))


@pytest.mark.parametrize("name", ["stream", "device", "correlation", "In msg nelems", "Out msg nelems", *WORDS])
@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_an_argument_of_another_type_costs_itself_alone(tmp_path: Path, name: str, value: object) -> None:
    if name in WORDS and isinstance(value, str):
        return
    usual = describe(read(tmp_path, make_pair()))
    trace = read(tmp_path, make_pair(**{name: value}))
    found = describe(trace)
    touched = {"correlation": "launch", "In msg nelems": "bytes", "Out msg nelems": "bytes", "dtype": "bytes"}
    same = set(usual) - {touched.get(name, name)}
    assert {key: found[key] for key in same} == {key: usual[key] for key in same}
    assert trace.head.notes == (f"1 fields not understood: {NOTE_NAMES.get(name, name)}",)
    assert len(trace.ops.name) == 1 and trace.ops.begin_ns.tolist() == [5_000]


def test_arguments_that_are_missing_or_null_are_not_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, make_pair(**dict.fromkeys(("stream", "device", *WORDS), None)))
    assert trace.gpu.call.tolist() == [0] and trace.head.notes == ()
    assert (trace.gpu.stream.tolist(), trace.gpu.device.tolist()) == ([7], [0])  # of the thread and the process


def test_a_group_may_be_a_number(tmp_path: Path) -> None:
    trace = read(tmp_path, make_pair(**{"Process Group Name": 3}))
    assert trace.names[trace.gpu.group[0]] == "3" and trace.head.notes == ()


def test_a_calls_strange_correlation_is_counted_and_its_other_arguments_are_not(tmp_path: Path) -> None:
    launch, kernel, op = make_pair()
    launch["args"] |= {"stream": {"a": 1}, "correlation": ["9"]}
    trace = read(tmp_path, [launch, kernel, op])
    assert trace.gpu.call.tolist() == [-1] and len(trace.calls.name) == 1
    assert trace.head.notes == ("1 fields not understood: correlation",)


def test_times_threads_and_processes_may_be_text(tmp_path: Path) -> None:
    launch, kernel, op = make_pair()
    trace = read(tmp_path, [{**launch, "ts": "10.25", "dur": "5"}, kernel, {**op, "tid": "0x4d", "pid": "77"}])
    assert trace.calls.begin_ns.tolist() == [10_250] and trace.calls.end_ns.tolist() == [15_250]
    assert trace.ops.thread.tolist() == [77] and trace.head.pid == 77 and trace.head.notes == ()
    exact = read(tmp_path, [make_op("a", "1682725898236567.123", "0.001"), make_op("b", 1682725898236567, 1)])
    assert exact.ops.begin_ns.tolist() == [1_682_725_898_236_567_000, 1_682_725_898_236_567_123]
    for strange in ([], {}, True, 10**30):
        odd = read(tmp_path, [launch, kernel, {**op, "tid": strange, "pid": strange}])
        assert odd.ops.thread.tolist() == [-1] and odd.gpu.call.tolist() == [0]
        assert odd.head.notes == ("1 fields not understood: pid", "1 fields not understood: tid")


def test_memory_in_another_spelling(tmp_path: Path) -> None:
    words = {"Total Reserved": "4096", "Device Type": "1"}
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1, "args": words}
    assert read(tmp_path, [*make_pair(), memory]).head.memory_peak_bytes == 4096
    strange = {**memory, "args": {**words, "Total Reserved": [1]}}
    assert read(tmp_path, [*make_pair(), strange]).head.memory_peak_bytes is None


def test_every_launch_of_an_mi250_is_found() -> None:
    path = find_real("mi250_toy.json.gz")
    if path is None:
        pytest.skip("the real traces are not at hand")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    calls = {event["args"]["correlation"]: event["name"] for event in events if event.get("cat") == "cuda_runtime"}
    wanted = sorted(
        (event["name"], calls[event["args"]["correlation"]])
        for event in events if event.get("cat") in ("kernel", "gpu_memcpy")
    )  # fmt: skip
    trace = read_kineto(path)
    found = [
        (trace.names[name], trace.names[trace.calls.name[call]])
        for name, call in zip(trace.gpu.name, trace.gpu.call, strict=True)
    ]
    assert sorted(found) == wanted and (trace.gpu.call >= 0).all() and trace.head.notes == ()
