"""The six tables of `nsys stats`: numbers computed by hand, and properties for any durations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.facts.arrays import IntArray
from distprof.facts.trace import ActivityKind, CopyKind, RangeStyle, Trace
from distprof.traces.tables.groups import round_quotient, round_tenth, summarize_groups
from distprof.traces.tables.six_tables import TABLES, Table, make_table
from tests.traces.reduce.synthetic_traces import SyntheticTrace

TIME_HEADS = ("Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)")
COPY = "[CUDA memcpy Host-to-Device]"
SET = "[CUDA memset]"

Durations = Sequence[tuple[str, int]]


def make_kernels(durations: Durations, **head: object) -> Trace:
    """Kernels one after another."""
    made, now_ns = SyntheticTrace(), 0
    for name, duration_ns in durations:
        made.activity(name, now_ns, now_ns + duration_ns)
        now_ns += duration_ns
    return made.build(**head)


def window(*times_ns: tuple[int, int]) -> IntArray:
    return np.array(times_ns, dtype=np.int64).reshape(-1, 2)


def find_row(table: Table, text: str) -> tuple[object, ...]:
    return next(row for row in table.rows if row[-1] == text)


def test_kernels_by_their_whole_names() -> None:
    gemm = "gemm<float>"
    trace = make_kernels([(gemm, 30), ("add", 10), (gemm, 20), (gemm, 25), ("gemm<half>", 15)])
    table = make_table("cuda_gpu_kern_sum", [trace])
    assert table.heads == ("Time (%)", "Total Time (ns)", "Instances", *TIME_HEADS, "Name")
    assert table.rows == (
        (75.0, 75, 3, 25.0, 25.0, 20, 30, 5.0, gemm),
        (15.0, 15, 1, 15.0, 15.0, 15, 15, 0.0, "gemm<half>"),
        (10.0, 10, 1, 10.0, 10.0, 10, 10, 0.0, "add"),
    )


def test_a_graph_is_no_kernel_and_a_copy_is_none() -> None:
    made = SyntheticTrace()
    made.activity("graph", 0, 10, kind=ActivityKind.GRAPH)
    made.activity(COPY, 0, 10, kind=ActivityKind.MEMCPY, size_bytes=1)
    made.activity("gemm", 0, 10)
    assert [row[-1] for row in make_table("cuda_gpu_kern_sum", [made.build()]).rows] == ["gemm"]


def test_of_kernels_with_one_total_the_fewer_come_first_then_the_name() -> None:
    trace = make_kernels([("b", 5), ("b", 5), ("c", 10), ("a", 4), ("a", 6)])
    assert [row[-1] for row in make_table("cuda_gpu_kern_sum", [trace]).rows] == ["c", "a", "b"]


def test_ranges_by_domain_name_and_style() -> None:
    made = SyntheticTrace()
    made.range("step", 0, 100, domain="distprof")
    made.range("step", 100, 150, domain="distprof")
    made.range("step", 0, 30)
    made.range("step", 0, 20, style=RangeStyle.START_END)
    table = make_table("nvtx_sum", [made.build()])
    assert table.heads == ("Time (%)", "Total Time (ns)", "Instances", *TIME_HEADS, "Style", "Range")
    assert table.rows == (
        (75.0, 150, 2, 75.0, 75.0, 50, 100, 35.4, "PushPop", "distprof:step"),
        (15.0, 30, 1, 30.0, 30.0, 30, 30, 0.0, "PushPop", "step"),
        (10.0, 20, 1, 20.0, 20.0, 20, 20, 0.0, "StartEnd", "step"),
    )
    newer = make_table("nvtx_sum", [made.build(names_default_domain=True)])
    assert [row[-1] for row in newer.rows] == ["distprof:step", ":step", ":step"]


def test_a_range_never_closed_ends_with_the_last_event_of_the_file() -> None:
    made = SyntheticTrace()
    made.range("open", 40, None)
    made.range("closed", 0, 10)
    known, unknown = made.build(last_event_ns=100), made.build()
    assert find_row(make_table("nvtx_sum", [known]), "open")[1:3] == (60, 1)
    assert [row[-1] for row in make_table("nvtx_sum", [unknown]).rows] == ["closed"]


def test_api_calls_are_grouped_by_the_whole_name_and_shown_without_its_version() -> None:
    made = SyntheticTrace()
    names = ("cudaMemcpyAsync_v3020", "cudaMemcpyAsync", "cudaStreamIsCapturing_v10000", "_v7000", "v7000", "cuInit")
    for length_ns, name in zip((60, 50, 40, 30, 20, 10), names, strict=True):
        made.call(name, 0, length_ns)
    rows = make_table("cuda_api_sum", [made.build()]).rows
    assert [row[-1] for row in rows] == [
        "cudaMemcpyAsync", "cudaMemcpyAsync", "cudaStreamIsCapturing_v10000", "", "v7000", "cuInit",
    ]  # fmt: skip


def test_system_calls_of_one_total_keep_the_order_of_the_files_names() -> None:
    made, again = SyntheticTrace(), SyntheticTrace()
    for name in ("zero", "write", "read"):
        made.code(name)
        again.code(name)
    again.os_call("write", 0, 10)
    made.os_call("read", 0, 10)
    made.os_call("zero", 0, 10)
    table = make_table("osrt_sum", [made.build(), again.build()])
    assert table.heads == ("Time (%)", "Total Time (ns)", "Num Calls", *TIME_HEADS, "Name")
    assert [row[-1] for row in table.rows] == ["zero", "write", "read"]
    assert [row[0] for row in table.rows] == [33.3, 33.3, 33.3]


def test_memory_by_time_and_by_size() -> None:
    made = SyntheticTrace()
    for begin_ns, end_ns, size in ((0, 10, 1_500), (10, 40, 4_000_000), (40, 60, 2_000_500)):
        made.activity(COPY, begin_ns, end_ns, kind=ActivityKind.MEMCPY, size_bytes=size, copy=CopyKind.HOST_TO_DEVICE)
    made.activity(SET, 60, 100, kind=ActivityKind.MEMSET, size_bytes=10_000_000)
    by_time = make_table("cuda_gpu_mem_time_sum", [made.build()])
    assert by_time.heads == ("Time (%)", "Total Time (ns)", "Count", *TIME_HEADS, "Operation")
    assert by_time.rows == (
        (60.0, 60, 3, 20.0, 20.0, 10, 30, 10.0, COPY),
        (40.0, 40, 1, 40.0, 40.0, 40, 40, 0.0, SET),
    )
    by_size = make_table("cuda_gpu_mem_size_sum", [made.build()])
    heads = ("Total (MB)", "Count", "Avg (MB)", "Med (MB)", "Min (MB)", "Max (MB)", "StdDev (MB)", "Operation")
    assert by_size.heads == heads
    assert by_size.rows == (
        (10.0, 1, 10.0, 10.0, 10.0, 10.0, 0.0, SET),
        (6.002, 3, 2.001, 2.001, 0.002, 4.0, 1.999, COPY),
    )


def test_a_size_that_nobody_knows_is_not_in_the_sizes() -> None:
    made = SyntheticTrace()
    made.activity(COPY, 0, 10, kind=ActivityKind.MEMCPY)
    assert make_table("cuda_gpu_mem_size_sum", [made.build()]).rows == ()
    assert len(make_table("cuda_gpu_mem_time_sum", [made.build()]).rows) == 1


def test_rows_that_begin_outside_the_windows_are_left_out() -> None:
    made = SyntheticTrace()
    for begin_ns in (0, 9, 10, 19, 20, 29, 30, 31):
        made.activity("k", begin_ns, begin_ns + 100 + begin_ns)
    trace = made.build()
    table = make_table("cuda_gpu_kern_sum", [trace, trace], windows=[window((10, 20), (30, 31)), window()])
    assert table.rows == ((100.0, 110 + 119 + 130, 3, 119.7, 119.0, 110, 130, 10.0, "k"),)
    assert make_table("cuda_gpu_kern_sum", [trace], windows=[None]) == make_table("cuda_gpu_kern_sum", [trace])
    with pytest.raises(ValueError, match="zip"):
        make_table("cuda_gpu_kern_sum", [trace, trace], windows=[None])


@pytest.mark.parametrize("name", TABLES)
def test_nothing_makes_an_empty_table(name: str) -> None:
    assert make_table(name, []).rows == make_table(name, [SyntheticTrace().build()]).rows == ()
    assert len(make_table(name, []).heads) in (8, 9, 10)


def test_no_time_at_all_has_no_shares() -> None:
    assert make_table("cuda_gpu_kern_sum", [make_kernels([("k", 0)])]).rows == ((None, 0, 1, 0.0, 0.0, 0, 0, 0.0, "k"),)


def test_what_has_no_name_has_a_row_of_its_own() -> None:
    made = SyntheticTrace()
    made.activity("", 0, 10)
    made.activity("k", 0, 10)
    made.gpu[1]["name"] = -1
    assert [row[-1] for row in make_table("cuda_gpu_kern_sum", [made.build()]).rows] == [None, ""]


def test_an_unknown_table_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no such table"):
        make_table("cuda_kern_sum", [])


def test_sums_beyond_64_bits_are_exact() -> None:
    huge = 2**62
    sums = summarize_groups(np.zeros(5, dtype=np.int64), np.array([huge] * 4 + [1]), 1)
    assert (sums.total, sums.median_twice, sums.minimum) == ([4 * huge + 1], [2 * huge], [1])


@pytest.mark.parametrize(
    ("numerator", "denominator", "rounded"),
    [(1, 20, 0.1), (1, 21, 0.0), (12345 * 20 + 7, 20, 12345.4), (-1, 20, -0.1), (5, 0, None), (10**18 + 1, 2, 5e17)],
)
def test_halves_are_rounded_away_from_zero(numerator: int, denominator: int, rounded: float | None) -> None:
    assert round_quotient(numerator, denominator) == rounded


def test_a_float_is_rounded_as_it_is_written() -> None:
    values = (0.05, 0.15, 2.25, 12345.35, 7.04, 1e17)
    assert [round_tenth(value) for value in values] == [0.1, 0.2, 2.3, 12345.4, 7.0, 1e17]


NAMED = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 2**40)), min_size=1, max_size=60)


@given(durations=NAMED, wide=st.booleans())
def test_every_cell_is_what_the_plain_definition_gives(durations: Durations, wide: bool) -> None:
    scaled = [(name, duration_ns << 19 if wide else duration_ns) for name, duration_ns in durations]
    table = make_table("cuda_gpu_kern_sum", [make_kernels(scaled)])
    whole_ns = sum(duration_ns for _, duration_ns in scaled)
    assert {row[-1] for row in table.rows} == {name for name, _ in scaled}
    for row in table.rows:
        own = [duration_ns for name, duration_ns in scaled if name == row[-1]]
        assert row[1:3] == (sum(own), len(own)) and row[5:7] == (min(own), max(own))
        assert row[3] == pytest.approx(statistics.fmean(own), abs=0.051, rel=1e-12)
        assert row[4] == statistics.median(own)
        assert row[7] == pytest.approx(statistics.stdev(own) if len(own) > 1 else 0, abs=0.051, rel=1e-9)
        if whole_ns:
            assert row[0] == pytest.approx(100 * sum(own) / whole_ns, abs=0.051)


@given(durations=NAMED, cut=st.integers(0, 60))
def test_the_parts_of_a_trace_make_the_table_of_the_whole(durations: Durations, cut: int) -> None:
    parts = [make_kernels(part) for part in (durations[:cut], durations[cut:])]
    assert make_table("cuda_gpu_kern_sum", parts) == make_table("cuda_gpu_kern_sum", [make_kernels(durations)])


@given(durations=NAMED)
def test_shares_sum_to_the_whole(durations: Durations) -> None:
    rows = make_table("cuda_gpu_kern_sum", [make_kernels([*durations, ("a", 1)])]).rows
    assert sum(float(str(row[0])) for row in rows) == pytest.approx(100, abs=0.05 * len(rows) + 1e-9)
    totals = [row[1] for row in rows]
    assert totals == sorted(totals, key=lambda total: -int(str(total)))
