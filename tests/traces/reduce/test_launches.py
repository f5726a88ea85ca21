"""When activities were launched, and for which step: work launched before a step began is not that step's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.facts.arrays import IntArray
from distprof.facts.run import COLUMN
from distprof.facts.trace import Trace
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.reduce.device_work import describe_left_out, examine_device
from distprof.traces.reduce.launches import BEFORE_NS, NEVER_NS, compute_launch_times, find_cut_off, launch_times
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import TracedRank, trace_rank
from tests.traces.reduce.real_traces import find_shared
from tests.traces.reduce.synthetic_traces import SyntheticTrace

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def bounds(*pairs: tuple[int, int]) -> IntArray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def test_by_hand() -> None:
    made = SyntheticTrace()
    made.activity("before", 0, 40)
    made.activity("beside", 5, 300, stream=9)  # of a stream of which nobody knows anything
    made.activity("before", 40, 90)
    made.launch("gemm", 50, 90, 100, call_ns=10)
    made.activity("lost", 100, 110)  # launched after the gemm, and before the one that follows
    made.launch("gemm", 70, 110, 120)
    made.activity("lost", 130, 140)
    trace = made.build()
    assert launch_times(trace).tolist() == [BEFORE_NS, 5, BEFORE_NS, 50, 70, 70, 130]
    assert compute_launch_times(trace).tolist() == [NEVER_NS, NEVER_NS, NEVER_NS, 60, NEVER_NS, 71, NEVER_NS]


def test_launched_is_what_runs_and_a_call_begins_what_it_ends_with() -> None:
    made = SyntheticTrace()
    made.launch("early", 10, 15, 20, call_ns=30)
    graph = made.call("cudaGraphLaunch", 50, 90)
    made.activity("node", 60, 70, call=graph)
    made.activity("node", 95, 99, call=graph)
    assert compute_launch_times(made.build()).tolist() == [15, 60, 60]
    assert (
        launch_times(SyntheticTrace().build()).tolist() == compute_launch_times(SyntheticTrace().build()).tolist() == []
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.booleans()), max_size=12))
def test_like_a_plain_loop(done: list[tuple[int, int, bool]]) -> None:
    """Two streams on each of two devices; calls 1 to 3 ns before what they launch."""
    made, rows = SyntheticTrace(), []
    for number, (place, begin, known) in enumerate(sorted(done, key=lambda item: item[1])):
        call = made.call("launch", begin - 1 - number % 3, begin) if known else -1
        made.activity("gemm", begin, begin + 2, call=call, device=place // 2, stream=place % 2)
        rows.append((place, begin, begin - 1 - number % 3 if known else None))
    truth = []
    for at, (place, begin, call_ns) in enumerate(rows):
        before = [row[2] for row in rows[:at] if row[0] == place and row[2] is not None]
        after = [row[2] for row in rows[at + 1 :] if row[0] == place and row[2] is not None]
        early = bool(after) and not before
        truth.append(call_ns if call_ns is not None else BEFORE_NS if early else min([begin, *after[:1]]))
    assert launch_times(made.build()).tolist() == truth


def make_late_device() -> SyntheticTrace:
    """The device lags 500 ns behind when the trace begins; steps of 100 ns take 200 ns on the device.

    ===========  =================================================================
    0 - 510      three kernels, and one on another stream, launched before the trace began
    510 - 710    the first step's two kernels, and its all-reduce at 690 - 730
    710 - 720    launched between the steps
    720 - 920    the second step's
    ===========  =================================================================
    """
    made = SyntheticTrace()
    for begin_ns in (0, 200, 360):
        made.activity("gemm", begin_ns, begin_ns + 150)
    made.activity("gemm", 460, 470, stream=20)
    for number, at_ns in enumerate((510, 720)):
        begin_ns = 10 + 120 * number
        made.range(f"ProfilerStep#{number}", begin_ns, begin_ns + 100)
        made.range("forward", begin_ns + 10, begin_ns + 40)
        made.launch("gemm", begin_ns + 20, at_ns, at_ns + 100)
        made.launch("gemm", begin_ns + 50, at_ns + 100, at_ns + 200)
        made.launch(ALL_REDUCE, begin_ns + 60, at_ns + 180, at_ns + 220, stream=20)
    made.launch("gemm", 115, 710, 720)
    return made


def count_launches(rank: TracedRank) -> int:
    return sum(kernel.count for kernel in rank.activity.kernels)


def test_the_first_step_begins_on_the_device_when_earlier_work_is_done() -> None:
    found = trace_rank(make_late_device().build(), NameMap())
    assert found.rows[:, COLUMN["step_device_ns"]].tolist() == [200, 200]
    assert found.rows[:, COLUMN["forward_device_ns"]].tolist() == [100, 100]
    assert found.rows[:, COLUMN["all_reduce_count"]].tolist() == [1, 1]
    device = found.activity.device
    assert device is not None and device.span_ns == device.compute_ns == 400
    assert count_launches(found) == 6
    (note,) = (note for note in found.notes if "count for no step" in note)
    assert note == (
        "5 of 11 device activities count for no step, 4 launched before the trace began, 1 launched outside the "
        "steps; a step begins on the device when everything launched before it is done"
    )


def test_a_collective_launched_before_the_trace_is_no_steps() -> None:
    made = make_late_device()
    made.activity(ALL_REDUCE, 30, 60, stream=20)  # while the first step is open on the host
    found = trace_rank(made.build(), NameMap())
    assert [len(table.order) for table in found.collectives] == [1]
    assert found.rows[:, COLUMN["all_reduce_count"]].tolist() == [1, 1]


def test_what_a_warm_up_step_left_in_the_queue_is_not_the_measured_steps() -> None:
    made = make_late_device()
    made.range("warmup", 0, 115)
    found = trace_rank(made.build(), NameMap())
    assert found.rows[:, COLUMN["warmup"]].tolist() == [1, 0]
    assert found.activity.device is not None and found.activity.device.span_ns == 200
    assert count_launches(found) == 3


def test_steps_whose_kernels_are_cut_off_are_left_out() -> None:
    made = make_late_device()
    made.range("ProfilerStep#2", 250, 350)
    made.launch("gemm", 260, 930, 940)
    made.call("cudaLaunchKernel", 300, 310)  # the trace ends before it runs
    made.range("ProfilerStep#3", 350, 450)
    made.call("cudaLaunchKernel", 360, 370)
    made.call("cudaDeviceSynchronize", 460, 1_000)
    found = trace_rank(made.build(), NameMap())
    assert found.rows[:, COLUMN["step"]].tolist() == [0, 1]
    assert found.activity.num_steps == 2 and count_launches(found) == 6
    assert "the trace ends before the device has finished what was launched: the last 2 steps are left out" in (
        found.notes
    )


def test_a_synchronisation_at_the_end_cuts_nothing_off_and_a_lone_step_stays() -> None:
    made = SyntheticTrace()
    made.range("ProfilerStep#0", 0, 100)
    made.launch("gemm", 10, 20, 60)
    made.call("cudaMemcpyAsync", 70, 75)  # of nothing
    triton = made.call("cuLaunchKernel", 76, 77)
    made.activity("triton", 78, 79, call=triton)
    made.launch("gemm", 80, 85, 88, call_ns=5)
    made.call("cuLaunchKernel", 81, 84)  # the runtime's call is made of it
    made.call("cudaDeviceSynchronize", 86, 90)
    assert find_cut_off(made.build()) is None
    made.call("cudaLaunchKernel", 92, 95)
    assert find_cut_off(made.build()) == 92
    found = trace_rank(made.build(), NameMap())
    assert len(found.rows) == 1 and any("no step's device time is complete" in note for note in found.notes)


def test_work_without_a_known_launch_counts_where_it_runs() -> None:
    made = SyntheticTrace()
    made.launch("gemm", 20, 60, 100)
    made.activity("alone", 95, 97, stream=4)
    made.activity("alone", 110, 115, stream=4)
    trace: Trace = made.build()
    work = examine_device(trace)
    assigned = work.assign_windows(bounds((0, 50), (50, 80)), bounds((0, 100), (100, 140)))
    assert assigned.tolist() == [0, 0, 1]
    assert describe_left_out(work, assigned) is None


@pytest.mark.parametrize(
    ("name", "step_ns", "launches"),
    [
        ("mi300_resnet_checkpoint.json.gz", 18_839_201, 895),  # 28.9 ms with the work of the steps before
        ("h100_qwen_single.json.gz", 35_183_362, 1_198),  # 49.3 ms
    ],
)
def test_real_traces_that_begin_with_a_full_queue(name: str, step_ns: int, launches: int) -> None:
    path: Path = find_shared("data", "kineto", name)
    found = trace_rank(read_kineto(path), NameMap())
    assert found.rows[:, COLUMN["step_device_ns"]].mean() == pytest.approx(step_ns, abs=1)
    assert count_launches(found) == launches * found.activity.num_steps
