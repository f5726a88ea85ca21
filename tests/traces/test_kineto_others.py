"""Traces from other times and devices: old profilers' annotations, unknown categories, AMD's agents."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL, DataError
from distprof.facts.trace import Trace
from distprof.traces.kineto.read_kineto import read_kineto
from tests.kineto_file import (
    JsonObject,
    find_real,
    make_event,
    make_kernel,
    make_launch,
    make_op,
    make_sound,
    make_step,
    write_kineto,
)

DATA_LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def name_ranges(trace: Trace) -> list[str]:
    return [trace.names[code] for code in trace.ranges.name]


def name_ops(trace: Trace) -> list[str]:
    return [trace.names[code] for code in trace.ops.name]


def make_old(name: str, ts: float, dur: float) -> JsonObject:
    return make_event("Operator", name, ts, dur, pid="77", tid="77")


def test_an_old_profilers_annotations_are_told_from_its_operators(tmp_path: Path) -> None:
    events = [
        make_old("ProfilerStep#5", 0, 100), make_old(DATA_LOADER, 1, 10), make_old("aten::mm", 20, 5),
        make_old("Optimizer.step#SGD.step", 60, 30), make_old("my block", 15, 30), make_old("detach_", 17, 1),
        make_old("NllLossBackward", 50, 2), make_old("torch::autograd::AccumulateGrad", 53, 1),
        make_old("ProfilerStep#6", 110, 90),
    ]  # fmt: skip
    trace = read_kineto(write_kineto(tmp_path / "t.json", events))
    assert name_ranges(trace) == [
        "ProfilerStep#5", DATA_LOADER, "my block", "Optimizer.step#SGD.step", "ProfilerStep#6",
    ]  # fmt: skip
    assert trace.ranges.payload.tolist() == [5, -1, -1, -1, 6] and set(trace.ranges.thread.tolist()) == {77}
    assert {trace.names[code] for code in trace.ranges.domain} == {""}
    assert sorted(name_ops(trace)) == ["NllLossBackward", "aten::mm", "detach_", "torch::autograd::AccumulateGrad"]


@pytest.mark.parametrize("category", [
    "user_annotation", "User_Annotation", "USER ANNOTATION", "UserAnnotation", "user-annotation", "cpu_op", "CPU_OP",
    "Operator", "operator", "something new", None,
])  # fmt: skip
def test_steps_are_steps_whatever_their_category(tmp_path: Path, category: str | None) -> None:
    steps = [{**make_step(number, 100 * number, 90), "cat": category} for number in (3, 4)]
    trace = read_kineto(write_kineto(tmp_path / "t.json", [*steps, make_op("aten::mm", 310, 5)]))
    assert name_ranges(trace) == ["ProfilerStep#3", "ProfilerStep#4"] and trace.ranges.payload.tolist() == [3, 4]
    assert name_ops(trace) == ["aten::mm"] and trace.head.unknown_events is None


def test_steps_are_not_counted_twice_nor_taken_from_the_device(tmp_path: Path) -> None:
    copies = [{**make_step(3, 100, 90), "cat": category} for category in ("gpu_user_annotation", "cpu_op")]
    trace = read_kineto(write_kineto(tmp_path / "t.json", [make_step(3, 100, 90), *copies]))
    assert name_ranges(trace) == ["ProfilerStep#3"]


def test_todays_operators_are_no_annotations(tmp_path: Path) -> None:
    events = [make_step(3, 100, 90), make_op("MyFunction", 110, 5), make_op("Torch-Compiled Region: 0/1", 120, 5)]
    trace = read_kineto(write_kineto(tmp_path / "t.json", events))
    assert name_ranges(trace) == ["ProfilerStep#3"] and len(trace.ops.name) == 2


def test_a_user_names_the_steps_of_an_old_trace(tmp_path: Path) -> None:
    events = [make_old(f"batch {number}", 100 * number, 90) for number in (1, 2)]
    trace = write_kineto(tmp_path / "t.json", [*events, make_old("aten::mm", 110, 5)])
    out = tmp_path / "out"
    assert run_verb(["report", str(trace), "--out", str(out), "--step", "batch *"]) == EXIT_OK
    report = json.loads((out / "report.json").read_text())
    assert (report["coverage"]["steps_measured"], report["ranks"][0]["last_step"]) == (2, 2)


@pytest.mark.slow
def test_the_steps_of_a_real_trace_of_torch_1_9(tmp_path: Path) -> None:
    path = find_real("v100_resnet50_torch19.pt.trace.json.gz")
    if path is None:
        pytest.skip("the real traces are not at hand")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    assert run_verb(["report", str(path), "--out", str(tmp_path)]) == EXIT_OK
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["coverage"]["steps_measured"] == len(steps) == 6
    step_ns = report["steps"][-1] if report["steps"][-1]["clock"] == "host" else report["steps"][0]
    assert step_ns["mean_ns"][0] == pytest.approx(sum(event["dur"] for event in steps) * 1000 / 6)
    phases = {phase["phase"]: phase["mean_ns"][0] for phase in report["phases"] if phase["clock"] == "host"}
    loads = [event["dur"] for event in events if event["name"] == DATA_LOADER]
    assert phases["data"] == pytest.approx(sum(loads) * 1000 / 6)
    assert all(item["rule"] != "host_is_not_gpu" for item in report["activity"]["not_checked"])


def make_strange(category: str | None, count: int) -> list[JsonObject]:
    return [{**make_event("", "a", 300 + place, 1), "cat": category} for place in range(count)]


def test_what_nobody_understands_is_named_with_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "<script>\x1b[31m" + "x" * 1000
    counts: dict[str | None, int] = {"mtia_ccp_events": 40, "mtia_runtime": 7, hostile: 5, None: 3, "hpu_op": 2}
    counts |= {f"more {place}": 1 for place in range(6)}
    events = [event for category, count in counts.items() for event in make_strange(category, count)]
    known = ("gpu_user_annotation", "overhead", "Trace", "cuda_sync", "external_correlation")
    events += [event for category in known for event in make_strange(category, 2)]
    steps = [make_step(number, 100 * number, 90) for number in (1, 2, 3)]
    path = write_kineto(tmp_path / "t.json", [*steps, *events])
    said = read_kineto(path).head.unknown_events
    shown = f"'<script>\\x1b[31m{'x' * 27}...'"
    assert said == (
        f"40 'mtia_ccp_events', 7 'mtia_runtime', 5 {shown}, 3 without a category, 2 'hpu_op', 6 of 6 more categories"
    )
    assert run_verb(["report", str(path), "--out", str(tmp_path / "out")]) == EXIT_PARTIAL
    printed = capsys.readouterr()
    assert f"63 events, perhaps of a device, were not understood: {said}" in printed.err
    text = (tmp_path / "out" / "report.json").read_text() + printed.out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert f"events of unknown kinds, which no figure includes: {said}" in report["coverage"]["notes"]
    assert "no device activity was traced" not in text and "no calls of the device's API were traced" not in text
    why = {item["rule"]: item["why"] for item in report["activity"]["not_checked"]}
    assert why["host_is_not_gpu"] == "no device activity was understood (the coverage says what there is)"
    assert (report["device_type"], report["ranks"][0]["device_name"]) == (None, None)
    html = (tmp_path / "out" / "report.html").read_text()
    assert "<script>\\x1b" not in html and "&lt;script&gt;\\x1b[31m" in html


def test_where_there_are_kernels_strangers_are_a_note_and_nothing_else(tmp_path: Path) -> None:
    events = [make_step(1, 100, 50), make_launch(102, 1, 9), make_kernel("gemm", 110, 20, 9), *make_strange("new", 3)]
    assert run_verb(["report", str(write_kineto(tmp_path / "t.json", events)), "--out", str(tmp_path)]) == EXIT_OK
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["device_type"] == "cuda" and any("3 'new'" in note for note in report["coverage"]["notes"])


def test_many_categories_cost_no_more_than_a_few(tmp_path: Path) -> None:
    events = [event for place in range(3_000) for event in make_strange(f"category {place}", 1)]
    said = read_kineto(write_kineto(tmp_path / "t.json", [make_step(1, 100, 50), *events])).head.unknown_events
    assert said is not None and said.startswith("2,000 '(other categories)', 1 'category 0'") and len(said) < 300


def test_a_file_of_strangers_alone_says_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_kineto(tmp_path / "t.json", make_strange("glow_runtime", 3))
    with pytest.raises(DataError, match="but 3 'glow_runtime': not a trace of the PyTorch profiler"):
        read_kineto(path)
    assert run_verb(["report", str(path)]) == EXIT_FAILED
    assert capsys.readouterr().err.count("\n") == 1


MI250 = {"name": "AMD Instinct MI250X", "totalGlobalMem": 2**36, "computeMajor": 9, "computeMinor": 0}
MI300 = {**MI250, "name": "AMD Instinct MI300X"}
H100 = {"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 2**36, "computeMajor": 9, "computeMinor": 0}


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        ([{"id": 0, **MI250}, {"id": 1, **MI250}], "AMD Instinct MI250X"),  # agent 5 is one of them
        ([{"id": 0, **MI250}], "AMD Instinct MI250X"),
        ([{"id": 4, **MI250}, {"id": 5, **MI300}], None),  # agents are not numbered as these are
        ([{"id": 0, **H100}], "NVIDIA H100 80GB HBM3"),
        ([{"id": 4, **MI250}, {"id": 5, **H100}], None),
        ([{"id": 4, **H100}, {"id": "5", **H100, "name": "NVIDIA A100"}], "NVIDIA A100"),
        ([{"id": 4, **H100}, {"id": 6, **H100, "name": "NVIDIA A100"}], None),
        ([], None),
    ],
)
def test_a_device_is_named_where_it_can_be_told(tmp_path: Path, devices: list[Any], name: str | None) -> None:
    events = [make_launch(1, 1, 9), make_kernel("gemm", 3, 1, 9, device=5)]
    head = read_kineto(write_kineto(tmp_path / "t.json", events, deviceProperties=devices)).head
    assert head.device_name == name
    assert head.compute_capability == (None if name is None else (9, 0))
    without = read_kineto(write_kineto(tmp_path / "u.json", [make_step(1, 1, 1)], deviceProperties=devices)).head
    assert without.device_name is None  # nothing ran on a device


@pytest.mark.parametrize(
    ("head", "more", "kind", "name"),
    [
        (
            {"deviceProperties": [{"id": 0, "name": "Intel(R) Data Center GPU Max 1550"}]},
            ["gemm"],
            "xpu",
            "Intel(R) Data",
        ),
        ({"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}}, [], "cuda", "GPU"),
        ({"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}, [], None, None),
        ({}, ["ncclDevKernel_AllReduce_Sum_f32_RING_LL"], "cuda", "GPU"),
        ({}, ["gemm"], None, None),
        ({}, [], "cpu", "CPU"),
    ],
    ids=["Intel", "nccl", "a device that is only listed", "a kernel of nccl", "kernels of nobody", "nothing"],
)
def test_the_device_is_named_rightly_or_not_at_all(
    tmp_path: Path, head: dict[str, Any], more: list[str], kind: str | None, name: str | None
) -> None:
    kernels = [make_kernel(kernel, 110, 20, 0) for kernel in more]
    path = write_kineto(tmp_path / "t.json", [make_step(1, 100, 50), make_op("aten::mm", 101, 10), *kernels], **head)
    assert run_verb(["report", str(path), "--out", str(tmp_path)]) == EXIT_OK
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["device_type"] == kind
    assert (report["ranks"][0]["device_name"] or "").startswith(name or "") and bool(name) == bool(
        report["ranks"][0]["device_name"]
    )


def test_a_lone_rank_that_is_not_the_first_says_how_many_there_are_at_least(tmp_path: Path) -> None:
    path = write_kineto(tmp_path / "t.json", make_sound(), distributedInfo={"backend": "nccl", "rank": 1})
    assert run_verb(["report", str(path), "--out", str(tmp_path)]) == EXIT_PARTIAL
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["coverage"]["ranks_missing"] == [0] and report["coverage"]["ranks_present"] == [1]
    assert "no file says how many ranks the job had: 2 or more, since rank 1 is there" in report["coverage"]["notes"]
    assert not any("assumed to be all" in note for note in report["coverage"]["notes"])
