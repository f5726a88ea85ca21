"""Traces of several ranks merged into one answer."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.traces.findings.evidence import sum_steps_ns
from distprof.analyze.traces.merge_traces import LONGEST_NAME, MAX_KERNELS, MAX_RANGES, report_activity
from distprof.facts.run import COLUMN, Run
from distprof.facts.trace_summary import Category, TraceSummary
from distprof.report.trace_report import DeviceReport, KernelReport, TraceReport
from tests.factories import MS, make_run
from tests.traces.traced_ranks import DEVICE, make_activity, make_kernel, make_range


def add_activity(*items: TraceSummary, run: Run | None = None) -> Run:
    return structs.replace(run or make_run(), activity=items)


def report(*items: TraceSummary, run: Run | None = None) -> TraceReport:
    found = report_activity(add_activity(*items, run=run))
    assert found is not None
    return found


def test_without_traces_there_is_no_report() -> None:
    assert report_activity(make_run()) is None
    assert analyze(make_run()).activity is None


def test_devices_are_per_step_or_whole() -> None:
    per_step, whole = report(make_activity(0), make_activity(1, num_steps=0, queue=None)).devices
    assert per_step == DeviceReport(
        rank=0, source="kineto: rank0.json", steps=2, span_ns=100, compute_ns=50, memory_ns=5, idle_communication_ns=15,
        idle_host_ns=12, idle_launch_ns=8, idle_unknown_ns=10, unobserved_ns=0, communication_busy_ns=20,
        overlap_ratio=0.25, queue_mean=1.5, queue_max=7, queue_empty_ratio=0.25,
    )  # fmt: skip
    assert (whole.steps, whole.span_ns, whole.queue_mean, whole.queue_max) == (0, 200, None, None)
    assert (whole.queue_empty_ratio, whole.overlap_ratio) == (None, 0.25)


def test_a_rank_without_a_device_is_left_out_and_silence_overlaps_nothing() -> None:
    quiet = structs.replace(DEVICE, communication_busy_ns=0, idle_communication_ns=0, compute_ns=130)
    (device,) = report(make_activity(0, device=None), make_activity(1, device=quiet)).devices
    assert (device.rank, device.overlap_ratio) == (1, None)


def test_kernels_are_merged_by_name() -> None:
    slow = make_kernel(total_ns=300, min_ns=20, max_ns=200)
    copy = make_kernel("Memcpy HtoD", 50, category=Category.COPY, precision=None, count=5)
    found = report(make_activity(0, kernels=(make_kernel(), copy)), make_activity(1, kernels=(slow,)))
    assert found.kernels[0] == KernelReport(
        name="gemm", category="matmul", precision="bf16", count=4, total_ns=400, share_ratio=400 / 450, min_ns=20,
        max_ns=200, max_rank=1, max_rank_ns=300, ranks=2,
    )  # fmt: skip
    assert [(item.category, item.count, item.total_ns) for item in found.categories] == [
        ("matmul", 4, 400),
        ("copy", 5, 50),
    ]
    assert sum(item.share_ratio for item in found.categories) == 1
    assert found.kernels[1].ranks == 1


def test_the_same_name_of_another_kind_stays_apart() -> None:
    other = make_kernel(category=Category.COPY, precision=None)
    assert len(report(make_activity(0, kernels=(make_kernel(), other))).kernels) == 2


def test_of_equal_ranks_the_first_has_the_largest_total() -> None:
    found = report(make_activity(0), make_activity(1))
    assert (found.kernels[0].max_rank, found.kernels[0].max_rank_ns) == (0, 100)


def test_lists_and_names_are_bounded() -> None:
    kernels = tuple(make_kernel(f"k{number}", number + 1) for number in range(MAX_KERNELS + 20))
    ranges = tuple(make_range(f"r{number}", number + 1) for number in range(MAX_RANGES + 20))
    long = make_range("x" * 1_000_000, 10**9)
    found = report(make_activity(0, kernels=kernels, ranges=(*ranges, long)))
    assert (len(found.kernels), len(found.ranges)) == (MAX_KERNELS, MAX_RANGES)
    assert found.kernels[0].name == f"k{MAX_KERNELS + 19}"
    assert found.categories[0].count == 2 * (MAX_KERNELS + 20), "categories hold all of them"
    assert len(found.ranges[0].name) == LONGEST_NAME + 3


def test_ranges_are_merged_and_shares_are_of_their_own_clock() -> None:
    backward = make_range("backward", 20 * MS, gpu_ns=30, open_count=2, warmup_count=0)
    found = report(make_activity(0, ranges=(make_range(), backward)), make_activity(1))
    forward, late = found.ranges
    assert (forward.name, forward.count, forward.host_ns, forward.gpu_ns) == ("forward", 6, 100 * MS, 140)
    assert (forward.host_exclusive_ns, forward.gpu_exclusive_ns, forward.warmup_count) == (50 * MS, 70, 2)
    assert forward.gpu_over_host_ratio == 140 / (100 * MS)
    assert forward.host_share_ratio == pytest.approx(100 / 400), "two ranks with two steps of 100 ms each"
    assert forward.gpu_share_ratio == 140 / (2 * 140), "the devices were busy for 140 each"
    assert (late.name, late.open_count) == ("backward", 2)
    assert late.host_share_ratio == pytest.approx(20 / 200), "of the one rank that has it"
    assert late.gpu_share_ratio == 30 / 140


def test_what_is_not_known_of_a_range_is_none() -> None:
    unknown = make_range(gpu_ns=None, gpu_exclusive_ns=None)
    (found,) = report(make_activity(0, num_steps=0, ranges=(unknown,), device=None)).ranges
    assert (found.gpu_ns, found.gpu_exclusive_ns, found.gpu_over_host_ratio) == (None, None, None)
    assert (found.host_share_ratio, found.gpu_share_ratio) == (None, None)
    (mixed,) = report(make_activity(0, ranges=(unknown,)), make_activity(1)).ranges
    assert (mixed.gpu_ns, mixed.gpu_over_host_ratio) == (70, 70 / (50 * MS)), "of the rank whose device is known"
    (empty,) = report(make_activity(0, ranges=(make_range(host_ns=0, count=0, gpu_ns=0),))).ranges
    assert (empty.gpu_over_host_ratio, empty.host_share_ratio) == (None, None)


def test_what_stays_open_behind_all_steps_is_no_share_of_them() -> None:
    just, more = make_range("a", 2 * 200 * MS, count=2), make_range("b", 2 * 200 * MS + 2, count=2)
    found = report(make_activity(0, ranges=(just, more))).ranges
    assert {item.name: item.host_share_ratio for item in found} == {"a": 2.0, "b": None}, "of 200 ms measured"


def test_steps_are_those_that_the_traces_tell_of() -> None:
    run = make_run(num_steps=4, num_warmup=1)
    item = make_activity(1)
    assert sum_steps_ns(run, item) == 200 * MS
    traced = np.full_like(run.rows, np.nan)
    for name, value in (("step_host_ns", 30 * MS), ("warmup", 0), ("failed", 0)):
        traced[1, 2:, COLUMN[name]] = value
    assert sum_steps_ns(structs.replace(run, traced_rows=traced), item) == 60 * MS
    assert sum_steps_ns(structs.replace(run, traced_rows=traced), make_activity(0)) is None
    window = make_run(columns={"window": [0, 0, 1, 1], "step_host_ns": [1, 10, 40, 60]})
    assert sum_steps_ns(window, item) == 100
    assert sum_steps_ns(run, make_activity(1, num_steps=0)) is None
    assert sum_steps_ns(run, make_activity(9)) is None


def test_the_order_of_ranks_does_not_matter_for_sums() -> None:
    items = [
        make_activity(rank, kernels=(make_kernel(total_ns=10 * rank + 1), make_kernel(f"own {rank}", 5)))
        for rank in range(4)
    ]
    one, other = report(*items), report(*reversed(items))
    assert (one.kernels, one.categories, one.ranges) == (other.kernels, other.categories, other.ranges)
