"""Self and total time by module, from a small trace whose sums are worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distprof.analyze import analyze
from distprof.facts.trace import Trace
from distprof.facts.trace_summary import ModuleTotal
from distprof.render.files.module_files import list_module_tables
from distprof.render.html.html import render_html
from distprof.render.sections.sections import list_sections
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce import module_calls, modules
from distprof.traces.reduce.device_work import examine_device
from distprof.traces.reduce.modules import drop_module_ranges, total_modules
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import trace_rank
from tests.kineto_file import (
    BACKWARD,
    JsonObject,
    make_event,
    make_kernel,
    make_launch,
    make_op,
    make_step,
    write_kineto,
)

US = 1_000
FRAME = "autograd::engine::evaluate_function: "
MODULES = {"": "GPT", "body": "Block", "body.fc": "Linear"}
NUMBERED = {"": "GPT_0", "body": "Block_0", "body.fc": "Linear_7"}
Label = Callable[[str], tuple[str, str]]


def label_own(module: str) -> tuple[str, str]:
    return "user_annotation", f"distprof.module.{module}:{MODULES[module]}"


def label_torch(module: str) -> tuple[str, str]:
    return "python_function", f"nn.Module: {NUMBERED[module]}"


def make_one_step(number: int, label: Label = label_own) -> list[JsonObject]:
    """A model whose block is recomputed in backward, which has a thread of its own; with a loss and a gradient."""
    t, k = 1_000 * number, 100 * number
    seq = 10 * number

    def module(name: str, begin: float, dur: float, tid: int = 77) -> JsonObject:
        cat, text = label(name)
        return make_event(cat, text, t + begin, dur, tid=tid)

    def op(name: str, begin: float, dur: float, tid: int = 77, seq: int | None = None, of: int = 0) -> JsonObject:
        more: dict[str, Any] = {} if seq is None else {"Sequence_number": seq, "Fwd_thread_id": of}
        return make_op(name, t + begin, dur, tid=tid, **more)

    def run(number: int, at: float, dur: float, tid: int = 77, name: str = "gemm") -> list[JsonObject]:
        return [make_launch(t + at, 2, k + number, tid=tid), make_kernel(name, t + 40 + at, dur, k + number)]

    there = BACKWARD
    return [
        make_step(number, t, 900),
        module("", 10, 390), op("aten::mul", 20, 20, seq=seq + 5), *run(1, 25, 30),
        module("body", 50, 250), op("aten::add", 60, 20, seq=seq + 6), *run(2, 65, 10),
        module("body.fc", 100, 100), op("aten::linear", 110, 70, seq=seq + 7),
        op("aten::addmm", 120, 50, seq=seq + 7), *run(3, 125, 50),
        op("c10d::allreduce_", 210, 20), *run(4, 215, 500, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        op("aten::sum", 410, 10, seq=seq + 8), *run(5, 415, 5),
        op(f"{FRAME}AddmmBackward0", 500, 100, there), op("AddmmBackward0", 510, 80, there, seq + 7, 1),
        op("aten::mm", 520, 60, there), *run(6, 525, 100, there),
        op(f"{FRAME}torch::autograd::AccumulateGrad", 600, 20, there),
        op("torch::autograd::AccumulateGrad", 605, 10, there), *run(7, 606, 7, there),
        op(f"{FRAME}AddBackward0", 630, 10, there), op("AddBackward0", 632, 6, there, seq + 6, 1),
        op(f"{FRAME}MulBackward0", 650, 110, there), op("MulBackward0", 655, 100, there, seq + 5, 1),
        module("body", 660, 40, there), op("aten::add", 670, 20, there, 3), *run(8, 675, 10, there),
        op("aten::mul", 710, 30, there), *run(9, 715, 20, there),
    ]  # fmt: skip


def read(tmp_path: Path, events: list[JsonObject]) -> Trace:
    return read_kineto(write_kineto(tmp_path / "rank0.json", events))


def total(trace: Trace) -> dict[str, ModuleTotal]:
    rows = trace_rank(trace, NameMap()).activity.modules
    return {row.name or row.kind: row for row in rows}


def in_us(*stages: int) -> tuple[int, ...]:
    return tuple(2 * US * stage for stage in stages)


HOST = {
    "": ((10, 20, 0), (140, 200, 20)), "GPT": ((20, 70, 0), (130, 180, 20)),
    "body": ((40, 10, 20), (110, 110, 20)), "body.fc": ((70, 100, 0), (70, 100, 0)),
}  # fmt: skip
"""Self and total of a step: forward, backward, recomputed, us. The last node takes 30 beside what it recomputes and
multiplies, and the time in which a recomputed module runs no operator belongs to nobody."""
DEVICE = {
    "": ((5, 7, 0), (95, 127, 10)), "GPT": ((30, 20, 0), (90, 120, 10)),
    "body": ((10, 0, 10), (60, 100, 10)), "body.fc": ((50, 100, 0), (50, 100, 0)),
}  # fmt: skip
"""The collective is left out."""


def test_self_and_total_in_forward_backward_and_recomputation(tmp_path: Path) -> None:
    rows = total(read(tmp_path, [*make_one_step(1), *make_one_step(2), make_op("aten::zero_", 5_000, 99)]))
    assert {name: (row.self_host_ns, row.total_host_ns) for name, row in rows.items()} == {
        name: (in_us(*own), in_us(*both)) for name, (own, both) in HOST.items()
    }
    assert {name: (row.self_device_ns, row.total_device_ns) for name, row in rows.items()} == {
        name: (in_us(*own), in_us(*both)) for name, (own, both) in DEVICE.items()
    }
    assert [(row.name, row.kind, row.parent, row.calls) for row in rows.values()] == [
        ("", "", None, 0), ("", "GPT", 0, 2), ("body", "Block", 1, 2), ("body.fc", "Linear", 2, 2),
    ]  # fmt: skip


def test_modules_that_the_profiler_itself_annotates(tmp_path: Path) -> None:
    rows = total(read(tmp_path, [*make_one_step(1, label_torch), *make_one_step(2, label_torch)]))
    assert [(row.name, row.kind, row.parent) for row in rows.values()] == [
        ("", "", None), ("GPT_0", "GPT", 0), ("Block_0", "Block", 1), ("Linear_7", "Linear", 2),
    ]  # fmt: skip
    assert rows["Linear_7"].total_host_ns == in_us(*HOST["body.fc"][1])
    assert rows["GPT_0"].self_device_ns == in_us(*DEVICE["GPT"][0])
    assert rows["GPT_0"].total_device_ns == in_us(*DEVICE["GPT"][1])


def test_a_trace_without_launches_does_not_measure_the_device(tmp_path: Path) -> None:
    events = [event for event in make_one_step(1) if event["cat"] not in ("kernel", "cuda_runtime")]
    rows = total(read(tmp_path, events))
    assert rows["body"].self_device_ns is None and rows["body"].total_device_ns is None
    assert rows["body"].self_host_ns == (40 * US, 10 * US, 20 * US)


def test_a_trace_without_modules_has_no_table(tmp_path: Path) -> None:
    events = [event for event in make_one_step(1) if "module" not in event["name"]]
    assert trace_rank(read(tmp_path, events), NameMap()).activity.modules == ()


def test_own_ranges_of_modules_are_no_ranges_of_the_user(tmp_path: Path) -> None:
    trace = read(tmp_path, make_one_step(1))
    assert [item.name for item in trace_rank(trace, NameMap()).activity.ranges] == ["ProfilerStep#*"]
    assert len(drop_module_ranges(trace).ranges.name) == 1
    plain = read(tmp_path, make_one_step(1, label_torch))
    assert drop_module_ranges(plain) is plain


def test_modules_with_the_least_time_are_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MAX_MODULES", 2)
    trace = read(tmp_path, make_one_step(1))
    rows, left_out = total_modules(examine_device(trace), None, None)
    assert [row.name for row in rows] == ["", "", "body"] and left_out == 1
    assert "the table of modules leaves out those with the least time: 1" in trace_rank(trace, NameMap()).notes


def test_calls_nested_beyond_the_limit_count_for_what_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_calls, "MAX_DEPTH", 2)
    for label in (label_own, label_torch):
        rows = total(read(tmp_path, make_one_step(1, label)))
        outer, inner = list(rows.values())[2:]
        assert outer.self_host_ns == (110 * US, 110 * US, 20 * US) and inner.total_host_ns == (0, 0, 0)


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    for rank in range(2):
        events = [*make_one_step(1), *make_one_step(2)]
        if rank:
            events += [make_op("aten::relu", 2_240, 30)]  # in the block, in one of two steps
        write_kineto(tmp_path / f"rank{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
    report = analyze(read_paths([tmp_path], NameMap()))
    assert report.activity is not None and report.activity.modules is not None
    found = report.activity.modules
    assert found.ranks == (0, 1) and found.per_step
    block = next(row for row in found.rows if row.name == "body")
    assert (block.total_host_ns.min, block.total_host_ns.max) == (240 * US, 255 * US)
    assert (block.total_host_ns.min_rank, block.total_host_ns.max_rank) == (0, 1)
    assert (block.forward_host_ns.max, block.backward_host_ns.max) == (125 * US, 110 * US)
    assert block.recomputed_device_ns.median == 10 * US and block.calls.median == 1
    section = next(each for each in list_sections(report, max_notes=9, note_limit=99) if each.key == "traced_modules")
    cells = {row[0].strip(): dict(zip([each.head for each in section.columns], row, strict=True))
             for row in section.rows}  # fmt: skip
    assert list(cells) == ["(everything)", "(model)", "body", "fc"]
    assert cells["body"]["host most"] == "255.0 us, rank 1" and cells["body"]["device total"] == "170.0 us"
    assert cells["body"]["forward"] == "60.0 us" and cells["fc"]["recomputed"] == ""
    assert "<summary><span>(everything)</span>" in render_html(report)
    columns = list_module_tables(report)["kernel_modules"]
    assert columns["module"] == ["(everything)", "", "body", "body.fc"]
    assert columns["parent"] == [None, "(everything)", "", "body"]
    assert columns["total_device_max_ns"][2] == 170 * US and columns["backward_host_median_ns"][3] == 100 * US
