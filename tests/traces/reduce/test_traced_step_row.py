"""Steps of traces as rows: a partition on both timelines, with exposed communication taken out of its phase."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, PHASES, Phase
from distprof.facts.trace import RangeStyle, Trace
from distprof.traces.reduce.device_work import examine_device
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.steps import detect_steps, partition_steps
from distprof.traces.reduce.traced_step_row import derive_device_clock, fill_rows
from tests.traces.reduce.synthetic_jobs import (
    BACKWARD_NS,
    FORWARD_NS,
    LAUNCH_NS,
    MS,
    OPTIMIZER_NS,
    TRANSFER_NS,
    make_job,
)
from tests.traces.reduce.synthetic_traces import SyntheticTrace

TIMES = st.integers(0, 900)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def read_rows(trace: Trace) -> FloatArray:
    names = NameMap()
    steps, work = detect_steps(trace, names), examine_device(trace)
    segments, clock = partition_steps(trace, steps, names), derive_device_clock(work)
    return fill_rows(work, steps, segments, clock, origin_ns=int(steps.begin_ns[0]))


def read_phases(row: FloatArray, clock: str) -> dict[Phase, float]:
    values = {phase: row[COLUMN[f"{phase}_{clock}_ns"]] for phase in PHASES}
    return {phase: value for phase, value in values.items() if value}


def test_host_phases_by_hand_the_innermost_counts_and_other_is_the_rest() -> None:
    made = SyntheticTrace()
    made.range("ProfilerStep#3", 0, 100)
    made.range("forward", 10, 40)
    made.range("layer_0", 12, 30)  # no phase: part of forward
    made.range("backward", 50, 80)
    made.range("all_reduce", 70, 78, domain="distprof", style=RangeStyle.START_END, thread=9)
    made.range("optimizer", 60, 65, thread=9)  # another thread's: not this one's time
    (row,) = read_rows(made.build())
    assert read_phases(row, "host") == {
        Phase.FORWARD: 30, Phase.BACKWARD: 22, Phase.ALL_REDUCE: 8, Phase.OTHER: 40
    }  # fmt: skip
    assert row[COLUMN["step"]] == 3 and row[COLUMN["step_host_ns"]] == 100
    assert np.isnan(row[COLUMN["step_device_ns"]])  # nothing ran on a device


def test_without_a_range_that_stands_for_a_phase_phases_are_not_measured() -> None:
    made = SyntheticTrace()
    made.range("ProfilerStep#3", 0, 100)
    made.range("layer_0", 12, 30)
    (row,) = read_rows(made.build())
    assert np.isnan(row[COLUMN["other_host_ns"]])


def test_device_phases_are_where_the_work_was_launched_and_waiting_is_gradient_synchronisation() -> None:
    fast, slow = make_job(num_ranks=2, num_steps=3, delay_ns={1: 20 * MS})
    first, second = read_rows(fast)[1], read_rows(slow)[1]
    step_ns = LAUNCH_NS + FORWARD_NS + 20 * MS + BACKWARD_NS + TRANSFER_NS + OPTIMIZER_NS
    for row, forward_ns, waited_ns in ((first, FORWARD_NS, 20 * MS), (second, FORWARD_NS + 20 * MS, 0)):
        assert row[COLUMN["step_device_ns"]] == step_ns
        assert read_phases(row, "device") == {
            Phase.FORWARD: forward_ns + LAUNCH_NS, Phase.BACKWARD: BACKWARD_NS,
            Phase.ALL_REDUCE: TRANSFER_NS + waited_ns, Phase.OPTIMIZER: OPTIMIZER_NS,
        }  # fmt: skip
        assert row[COLUMN["all_reduce_exposed_device_ns"]] == TRANSFER_NS + waited_ns
        assert row[COLUMN["all_reduce_count"]] == 1 and row[COLUMN["all_reduce_bytes"]] == 1 << 20
    assert read_phases(first, "host")[Phase.FORWARD] == 2_000  # what the host took to launch it: another story


@pytest.mark.parametrize(
    ("phase", "kernel", "column"),
    [
        ("forward", "ncclDevKernel_AllGather_RING_LL", "all_gather_device_ns"),
        ("backward", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "all_reduce_device_ns"),
        ("forward", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "forward_wait_device_ns"),
        ("clip_grad_norm_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "grad_norm_wait_device_ns"),
        ("forward", "ncclDevKernel_SendRecv", "forward_wait_device_ns"),
    ],
)  # fmt: skip
def test_what_exposed_communication_counts_as(phase: str, kernel: str, column: str) -> None:
    made = SyntheticTrace()
    made.range("ProfilerStep#0", 0, 1_000)
    made.range(phase, 100, 900)
    made.launch("gemm", 100, 110, 200)
    call = made.call("cudaLaunchKernel", 120, 130)
    made.activity(kernel, 150, 450, call=call, stream=20)  # 250 ns of it alone
    made.launch("gemm", 140, 450, 600)
    (row,) = read_rows(made.build())
    assert row[COLUMN[column]] == 250
    assert sum(read_phases(row, "device").values()) == row[COLUMN["step_device_ns"]] == 1_000


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(TIMES, st.integers(1, 300), st.sampled_from(["forward", "backward", "optimizer"])), max_size=8),
    st.lists(st.tuples(TIMES, st.integers(1, 200), st.integers(1, 300), st.booleans()), max_size=10),
)
def test_phases_partition_every_step_on_both_timelines(
    ranges: list[tuple[int, int, str]], kernels: list[tuple[int, int, int, bool]]
) -> None:  # fmt: skip
    made = SyntheticTrace()
    made.range("ProfilerStep#0", 0, 500)
    made.range("ProfilerStep#1", 520, 1_000)
    made.range("forward", 0, 1)  # so that phases are measured
    for begin_ns, long_ns, name in ranges:
        made.range(name, begin_ns, begin_ns + long_ns)
    for called_ns, late_ns, long_ns, collective in kernels:
        begin_ns = called_ns + late_ns
        name, stream = (ALL_REDUCE, 20) if collective else ("gemm", 7)
        made.launch(name, called_ns, begin_ns, begin_ns + long_ns, stream=stream)
    for row in read_rows(made.build()):
        assert sum(read_phases(row, "host").values()) == row[COLUMN["step_host_ns"]]
        if np.isfinite(row[COLUMN["step_device_ns"]]):
            phases = [row[COLUMN[f"{phase}_device_ns"]] for phase in PHASES]
            assert sum(phases) == row[COLUMN["step_device_ns"]]
            assert min(phases) >= 0
            assert row[COLUMN["forward_wait_device_ns"]] <= row[COLUMN["forward_device_ns"]]


def test_a_kernel_for_any_collective_is_what_its_operation_is_called() -> None:
    made = SyntheticTrace()
    made.range("ProfilerStep#0", 0, 1_000)
    made.range("backward", 100, 900)
    made.launch("gemm", 100, 110, 200)
    made.launch("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", 120, 200, 300, stream=20)
    trace = made.build()
    told = np.full(len(trace.gpu.name), -1)
    told[1] = len(trace.names)
    named = structs.replace(
        trace, names=(*trace.names, "_reduce_scatter_base"), gpu=structs.replace(trace.gpu, collective=told)
    )
    unsaid, said = read_rows(trace)[0], read_rows(named)[0]
    assert (unsaid[COLUMN["other_count"]], said[COLUMN["reduce_scatter_count"]]) == (1, 1)
    assert (unsaid[COLUMN["backward_wait_device_ns"]], said[COLUMN["all_reduce_device_ns"]]) == (100, 100)
