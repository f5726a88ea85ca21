"""Host and GPU time of ranges: by hand, against a slow and simple count, and with planted answers; folded names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.facts.trace import UNKNOWN, ActivityKind, RangeStyle, Trace
from distprof.facts.trace_summary import RangeTotal
from distprof.traces.reduce.device_work import examine_device
from distprof.traces.reduce.nesting import choose_longest_thread, locate_innermost, nest_ranges
from distprof.traces.reduce.ranges import LONGEST_FOLDED, fold_name, total_ranges
from distprof.traces.tables.projection import project
from tests.traces.reduce.synthetic_traces import MAIN, SyntheticTrace

OTHER = 2


def by_name(totals: Iterable[RangeTotal]) -> dict[str, RangeTotal]:
    return {f"{total.domain}:{total.name}": total for total in totals}


def make_example() -> SyntheticTrace:
    """Two threads, two domains, a graph, a range that is never closed, and a launch that is not in the trace."""
    made = SyntheticTrace()
    made.range("step", 0, 100)
    made.range("layer", 10, 40)
    made.range("layer", 50, 90)
    made.range("norm", 60, 70)
    made.range("open", 95, None)
    made.range("reduce", 5, 25, domain="NCCL", thread=OTHER)
    made.launch("matmul", 12, 20, 50)
    made.launch("matmul", 62, 70, 75)
    made.launch("add", 80, 75, 85)
    made.launch("copy", 99, 100, 110)
    made.launch("nccl", 7, 30, 60, thread=OTHER, stream=20)
    graph = made.call("cudaGraphLaunch", 51, 52)
    made.activity("matmul", 110, 120, call=graph)
    made.activity("add", 115, 130, call=graph, stream=9)
    made.activity("lost", 200, 300)
    made.launch("late", 100, 300, 310)
    return made


def test_ranges_by_hand() -> None:
    totals = by_name(total_ranges(examine_device(make_example().build()), window=None, other_threads=False))
    step, layer, norm, reduce = (totals[name] for name in (":step", ":layer", ":norm", "NCCL:reduce"))
    assert (step.count, step.host_ns, step.host_exclusive_ns) == (1, 100, 100 - 30 - 40)
    assert (layer.count, layer.host_ns, layer.host_exclusive_ns) == (2, 70, 60)
    # 20-50 and 70-75, 75-85, 110-130: the graph's kernels overlap, and the call of the copy lies in the step alone
    assert (layer.gpu_ns, layer.gpu_exclusive_ns, layer.activities) == (30 + 15 + 20, 30 + 10 + 20, 5)
    assert (step.gpu_ns, step.gpu_exclusive_ns, step.activities) == (30 + 15 + 30, 10, 6)
    assert (norm.gpu_ns, norm.gpu_exclusive_ns, norm.activities) == (5, 5, 1)
    assert (reduce.gpu_ns, reduce.activities) == (30, 1)
    assert (totals[":open"].count, totals[":open"].open_count, totals[":open"].host_ns) == (0, 1, 0)


def test_the_main_threads_ranges_hold_what_other_threads_launch_meanwhile() -> None:
    made = make_example()
    totals = by_name(total_ranges(examine_device(made.build()), window=None))
    assert totals[":step"].gpu_ns == 30 + 10 + 15 + 30  # 20-60: the other thread's kernel runs to 60
    assert (totals["NCCL:reduce"].gpu_ns, totals[":step"].gpu_exclusive_ns) == (30, 10)
    made.launch("backward", 45, 400, 450, thread=77)
    assert by_name(total_ranges(examine_device(made.build()), window=None))[":step"].gpu_exclusive_ns == 10 + 50
    made.range("of another", 0, 60, thread=OTHER)
    trace = made.build()
    assert choose_longest_thread(trace.ranges, nest_ranges(trace.ranges)) is None
    assert by_name(total_ranges(examine_device(trace), window=None))[":step"].gpu_exclusive_ns == 10


def test_what_ranges_of_one_name_hold_on_two_threads_counts_once() -> None:
    made = SyntheticTrace()
    made.range("reduce", 0, 100)
    made.range("reduce", 20, 30, thread=OTHER)
    made.launch("kernel", 25, 40, 50, thread=OTHER)
    trace = made.build()
    (total,) = total_ranges(examine_device(trace), window=None)
    assert (total.activities, total.gpu_ns, total.gpu_exclusive_ns) == (1, 10, 10)
    assert [cells[4:6] for cells in project([trace]).rows] == [(110, 2), (10, 1), (1, 1)]


def test_what_begins_before_the_window_is_warmup_and_what_begins_after_it_is_outside() -> None:
    made = SyntheticTrace()
    for begin_ns, long_ns in ((0, 1000), (2000, 10), (3000, 20), (4000, 40), (5500, 7)):
        made.range("layer", begin_ns, begin_ns + long_ns)
        made.launch("matmul", begin_ns + 1, begin_ns + 5, begin_ns + 5 + long_ns)
    (layer,) = total_ranges(examine_device(made.build()), window=[(3000, 4000), (2000, 3000), (5000, 5500)])
    assert (layer.count, layer.host_ns, layer.gpu_ns, layer.activities) == (2, 30, 30, 2)
    assert (layer.warmup_count, layer.warmup_host_ns) == (1, 1000)
    assert layer.outside_count == 2  # one between two steps, one behind the last
    (layer,) = total_ranges(examine_device(made.build()), window=np.empty((0, 2), dtype=np.int64))
    assert (layer.count, layer.warmup_count, layer.gpu_ns, layer.outside_count) == (0, 5, 0, 0)


def test_host_time_is_not_device_time() -> None:
    """The fault: attention is slow on the host, but the device works for the other; each clock must show its own."""
    made = SyntheticTrace()
    made.range("attention", 0, 690)
    made.range("ffn", 690, 1000)
    made.launch("softmax", 10, 20, 120)
    made.launch("gemm", 700, 710, 1610)
    totals = by_name(total_ranges(examine_device(made.build()), window=[(0, 1)]))
    assert totals[":ffn"].count == 0
    totals = by_name(total_ranges(examine_device(made.build()), window=[(0, 1000)]))
    assert [(totals[name].host_ns, totals[name].gpu_ns) for name in (":attention", ":ffn")] == [(690, 100), (310, 900)]


def test_what_is_not_known_is_none() -> None:
    made = SyntheticTrace()
    made.range("step", 0, 10)
    assert total_ranges(examine_device(made.build()), window=None)[0].gpu_ns is None
    made.activity("lost", 1, 2)
    assert total_ranges(examine_device(made.build()), window=None)[0].gpu_ns is None
    made.launch("found", 20, 21, 22)
    assert total_ranges(examine_device(made.build()), window=None)[0].gpu_ns == 0
    made.range("request", 5, 30, style=RangeStyle.START_END, end_thread=OTHER)
    totals = by_name(total_ranges(examine_device(made.build()), window=None))
    assert (totals[":request"].gpu_ns, totals[":request"].host_ns, totals[":request"].activities) == (None, 25, 0)
    assert total_ranges(examine_device(SyntheticTrace().build()), window=None) == ()


def test_start_end_ranges_lie_in_no_stack() -> None:
    made = SyntheticTrace()
    made.range("outer", 0, 100)
    made.range("crossing", 50, 150, style=RangeStyle.START_END)
    made.launch("one", 60, 70, 80)
    made.launch("two", 120, 130, 140)
    totals = by_name(total_ranges(examine_device(made.build()), window=None))
    assert (totals[":crossing"].gpu_ns, totals[":crossing"].gpu_exclusive_ns) == (20, 20)
    assert (totals[":crossing"].host_exclusive_ns, totals[":outer"].host_exclusive_ns) == (100, 100)
    assert (totals[":outer"].gpu_ns, totals[":outer"].gpu_exclusive_ns) == (10, 10)


def test_the_longest_names_are_kept() -> None:
    made = SyntheticTrace()
    for place in range(300):
        made.range(f"r{place}", 1000 * place, 1000 * place + place)
    totals = total_ranges(examine_device(made.build()), window=None)
    assert [total.name for total in totals] == [f"r{place}" for place in range(299, 99, -1)]


@pytest.mark.slow
def test_depth_and_crossing_ranges_cost_no_more_than_their_number() -> None:
    """Walking a stack for every range would take hours here."""
    deep = 200_000
    made = SyntheticTrace()
    made.range("one", 0, 1)
    made.launch("kernel", deep, deep, deep + 5)
    ranges = replace(
        made.build().ranges,
        begin_ns=np.arange(deep), end_ns=2 * deep - np.arange(deep), thread=np.full(deep, MAIN),
        name=np.zeros(deep, dtype=np.int64), domain=np.ones(deep, dtype=np.int64), end_thread=None,
        style=np.zeros(deep, dtype=np.int64), payload=np.full(deep, UNKNOWN),
    )  # fmt: skip
    trace = replace(made.build(), ranges=ranges)
    assert nest_ranges(trace.ranges).depth.tolist() == list(range(deep))
    assert [total.gpu_ns for total in total_ranges(examine_device(trace), window=None)] == [5]
    crossing = replace(ranges, end_ns=np.arange(deep) + deep)
    nest = nest_ranges(crossing)
    assert nest.until_ns[:-1].tolist() == crossing.begin_ns[1:].tolist()
    assert int(nest.exclusive_ns.sum()) == 2 * deep - 1
    work = examine_device(replace(trace, ranges=crossing))
    assert [total.activities for total in total_ranges(work, window=None)] == [1]


@st.composite
def made_traces(draw: st.DrawFn) -> SyntheticTrace:
    """Properly nested ranges on two threads and start/end ranges anywhere, with launches at random times."""
    made = SyntheticTrace()
    for thread in (MAIN, OTHER):
        _nest(draw, made, thread, 0, 60, 3)
    for begin_ns, long_ns in draw(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=3)):
        made.range(draw(NAMES), begin_ns, begin_ns + long_ns, style=RangeStyle.START_END, thread=MAIN)
    if draw(st.booleans()):
        made.range(draw(NAMES), draw(st.integers(0, 60)), None)
    device_ns = 0
    for called_ns, wait_ns, long_ns, thread in draw(st.lists(LAUNCHES, max_size=12)):
        device_ns = max(device_ns, called_ns) + wait_ns
        made.launch("kernel", called_ns, device_ns, device_ns + long_ns, thread=thread, call_ns=0)
        device_ns += long_ns
    return made


NAMES = st.sampled_from(["a", "b", "c"])
LAUNCHES = st.tuples(
    st.integers(0, 70), st.integers(0, 5), st.integers(1, 9), st.sampled_from([MAIN, OTHER, 3, UNKNOWN])
)


def _nest(draw: st.DrawFn, made: SyntheticTrace, thread: int, begin_ns: int, end_ns: int, depth: int) -> None:
    cuts = sorted(draw(st.lists(st.integers(begin_ns, end_ns), max_size=4)))
    for low, high in zip(cuts[::2], cuts[1::2], strict=False):
        made.range(draw(NAMES), low, high, thread=thread)
        if depth:
            _nest(draw, made, thread, low, high, depth - 1)


def count_slowly(trace: Trace) -> dict[str, tuple[int, int, int, int]]:
    """Per name: GPU time, exclusive GPU time, activities, host time; every launch is tried with every range."""
    ranges, gpu = trace.ranges, trace.gpu
    found: dict[str, tuple[set[int], set[int], int]] = {}
    rows = [row for row in range(len(ranges.begin_ns)) if ranges.end_ns[row] >= 0]
    for row in rows:
        held, own, _ = found.setdefault(trace.names[ranges.name[row]], (set(), set(), 0))
        for activity in range(len(gpu.begin_ns)):
            call = int(gpu.call[activity])
            around = [
                other for other in rows
                if trace.calls.thread[call] == ranges.thread[other]
                and ranges.begin_ns[other] <= trace.calls.begin_ns[call] < ranges.end_ns[other]
            ]  # fmt: skip
            stack = [other for other in around if ranges.style[other] == RangeStyle.PUSH_POP]
            if row in around:
                held.add(activity)
            if row in around and (row not in stack or row == max(stack)):  # rows come outer ones first
                own.add(activity)
        name = trace.names[ranges.name[row]]
        found[name] = (held, own, found[name][2] + int(ranges.end_ns[row] - ranges.begin_ns[row]))
    busy = [set(range(begin, end)) for begin, end in zip(gpu.begin_ns.tolist(), gpu.end_ns.tolist(), strict=True)]

    def unite(chosen: set[int]) -> int:
        return len(set().union(*(busy[activity] for activity in chosen)))

    return {name: (unite(held), unite(own), len(held), host_ns) for name, (held, own, host_ns) in found.items()}


@given(made_traces())
def test_ranges_match_a_slow_count(made: SyntheticTrace) -> None:
    trace = made.build()
    if not (trace.calls.thread[trace.gpu.call] != UNKNOWN).any():
        return
    totals = total_ranges(examine_device(trace), window=None, other_threads=False)
    counted = {
        total.name: (total.gpu_ns, total.gpu_exclusive_ns, total.activities, total.host_ns)
        for total in totals
        if total.count
    }
    assert counted == count_slowly(trace)


@given(made_traces(), st.booleans())
def test_parts_do_not_exceed_the_whole(made: SyntheticTrace, other_threads: bool) -> None:
    """One stream runs one activity at a time, so exclusive GPU times sum to at most its busy time."""
    made.ranges = [row for row in made.ranges if row["style"] == RangeStyle.PUSH_POP]
    trace = made.build()
    totals = total_ranges(examine_device(trace), window=None, other_threads=other_threads)
    busy_ns = int((trace.gpu.end_ns - trace.gpu.begin_ns).sum())
    assert sum(total.gpu_exclusive_ns or 0 for total in totals) <= busy_ns
    for total in totals:
        assert 0 <= (total.gpu_exclusive_ns or 0) <= (total.gpu_ns or 0) <= busy_ns
        assert 0 <= total.host_exclusive_ns <= total.host_ns
    open_ns = {(thread, at) for thread, begin, end in _closed(trace) for at in range(begin, end)}
    assert sum(total.host_exclusive_ns for total in totals) == len(open_ns)


def _closed(trace: Trace) -> list[tuple[int, int, int]]:
    ranges = trace.ranges
    rows = zip(ranges.thread.tolist(), ranges.begin_ns.tolist(), ranges.end_ns.tolist(), strict=True)
    return [row for row in rows if row[2] >= 0]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15)), max_size=12))
def test_crossing_ranges_are_cut_where_the_next_one_begins(pairs: list[tuple[int, int]]) -> None:
    """Push and pop cannot produce them, but a damaged file may: exclusive times still sum to the union."""
    made = SyntheticTrace()
    for begin_ns, long_ns in pairs:
        made.range("r", begin_ns, begin_ns + long_ns)
    ranges = made.build().ranges
    nest = nest_ranges(ranges)
    union = {at for begin, long in pairs for at in range(begin, begin + long)}
    assert (nest.exclusive_ns >= 0).all()
    assert int(nest.exclusive_ns.sum()) == len(union)
    at_ns = np.arange(50)
    found = locate_innermost(ranges, nest, np.full(50, MAIN), at_ns)
    assert set(at_ns[found >= 0].tolist()) == union
    assert all(ranges.begin_ns[row] <= at < ranges.end_ns[row] for at, row in enumerate(found.tolist()) if row >= 0)


@pytest.mark.parametrize("kind", [ActivityKind.GRAPH, ActivityKind.MEMCPY])
def test_graphs_as_a_whole_and_copies_count_as_well(kind: ActivityKind) -> None:
    made = SyntheticTrace()
    made.range("step", 0, 10)
    made.activity("x", 20, 50, call=made.call("cudaGraphLaunch", 1, 2), kind=kind)
    assert total_ranges(examine_device(made.build()), window=None)[0].gpu_ns == 30


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("ProfilerStep#551", "ProfilerStep#*"), ("step#42", "step#*"), ("global_step_12", "global_step_*"),
        ("iteration 7", "iteration *"), ("iter=0003", "iter=*"), ("train_step 4 of 99", "train_step * of 99"),
        ("epoch 1, batch 12", "epoch *, batch *"), ("micro_batch_3", "micro_batch_*"),
        ("layer_17 id=123", "layer_17 id=*"), ("request_id: 88", "request_id: *"),
        ("aten::mm, seq = 1234, op_id = 5678", "aten::mm, seq = *, op_id = *"),
        ("alloc at 0x7f3a00ff10", "alloc at *"), ("fetch 123e4567-e89b-12d3-a456-426614174000", "fetch *"),
        ("object_9f86d081884c7d659a2feaa0c55ad015", "object_*"), ("sent 1732233601123456", "sent *"),
    ],
)  # fmt: skip
def test_what_tells_instances_apart_is_folded(name: str, folded: str) -> None:
    assert fold_name(name) == folded
    assert fold_name(folded) == folded


@pytest.mark.parametrize(
    "name",
    [
        "layer_17", "transformer.h.3.mlp", "Linear_100", "BatchNorm2d_4", "bucket 3", "rank 2", "stage 1", "gemm4096",
        "conv2d_3x3", "Optimizer.step#AdamW.step", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "attention", "grid 4", "valid 3", "batch_norm_2", "step2vec", "stepwise_3", "identity_4", "size 16777216",
        "Torch-Compiled Region: 0/1", "facade", "deadbeefdeadbeefdead", "forward 1.0000000001", "",
        "id=1" + " " * LONGEST_FOLDED,
    ],
)  # fmt: skip
def test_what_tells_parts_apart_stays(name: str) -> None:
    assert fold_name(name) == name


def test_instances_of_folded_names_are_one_range_with_the_union_of_their_work() -> None:
    made = SyntheticTrace()
    for number in range(3):
        made.range(f"iteration {number}", 100 * number, 100 * number + 90)
        made.range("layer_0", 100 * number, 100 * number + 50)
        made.launch("gemm", 100 * number + 10, 100 * number + 20, 100 * number + 60)
    totals = {total.name: total for total in total_ranges(examine_device(made.build()), window=[(100, 300)])}
    assert set(totals) == {"iteration *", "layer_0"}
    steps = totals["iteration *"]
    assert (steps.count, steps.host_ns, steps.gpu_ns, steps.warmup_count) == (2, 180, 80, 1)
    assert (steps.host_exclusive_ns, steps.activities) == (80, 2)
