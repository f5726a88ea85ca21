"""Device time by cause and by kind of collective, and the length of the queue, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.facts.arrays import IntArray
from distprof.facts.run import KINDS, CollectiveKind
from distprof.facts.trace import ActivityKind, Trace
from distprof.facts.trace_summary import DeviceTime, QueueLength
from distprof.traces.reduce.device_time import measure_queue
from distprof.traces.reduce.device_work import code_collectives, describe_other_devices, examine_device
from tests.traces.reduce.synthetic_traces import SyntheticTrace, measure_begun, measure_trace

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"


def bounds(*pairs: tuple[int, int]) -> IntArray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def make_timeline() -> SyntheticTrace:
    """
    ===========  =====================================================================
    100 - 200    a kernel, whose launch returned at 40
    150 - 300    an all-reduce: 200 - 300 is exposed but for the copy at 220 - 240
    300 - 350    idle; the next kernel's launch returns at 320: 20 the host's, 30 the launch's
    350 - 400    a kernel, beside it a copy at 380 - 420
    420 - 450    idle; the next kernel was launched at 330, before the gap: the launch's
    450 - 500    a kernel
    500 - 560    idle; of the memset that follows no launch is known
    560 - 570    a memset
    ===========  =====================================================================
    """
    made = SyntheticTrace()
    made.launch("gemm", 33, 100, 200, call_ns=7)
    made.launch(REDUCE, 50, 150, 300, stream=20)
    made.activity("Memcpy DtoD", 220, 240, kind=ActivityKind.MEMCPY, stream=9)
    made.launch("gemm", 305, 350, 400, call_ns=15)
    made.activity("Memcpy HtoD", 380, 420, kind=ActivityKind.MEMCPY, stream=9)
    made.launch("gemm", 330, 450, 500)
    made.activity("Memset", 560, 570, kind=ActivityKind.MEMSET)
    return made


WHOLE = DeviceTime(
    span_ns=470, compute_ns=200, memory_ns=20 + 20 + 10, idle_communication_ns=80, idle_host_ns=20,
    idle_launch_ns=30 + 30, idle_unknown_ns=60, memory_busy_ns=20 + 40 + 10, communication_busy_ns=150,
)  # fmt: skip


def test_by_hand() -> None:
    trace = make_timeline().build()
    assert measure_trace(trace, None) == WHOLE
    kinds = measure_begun(trace, bounds((0, 1_000)))
    reduce = KINDS.index(CollectiveKind.ALL_REDUCE)
    assert kinds.count.tolist() == [[int(place == reduce) for place in range(len(KINDS))]]
    assert (kinds.busy_ns[0, reduce], kinds.exposed_ns[0, reduce], kinds.size_bytes[0, reduce]) == (150, 80, -1)
    assert kinds.busy_ns.sum() == 150


def test_windows_cut_activities_but_not_the_causes_of_gaps() -> None:
    trace = make_timeline().build()
    found = measure_trace(trace, bounds((0, 60), (310, 330), (440, 530), (565, 600)))
    assert found == DeviceTime(
        span_ns=60 + 20 + 90 + 35,
        compute_ns=50,
        memory_ns=5,
        idle_communication_ns=0,
        idle_host_ns=40 + 10,  # up to the first launch, and in the gap that began before its window
        idle_launch_ns=20 + 10 + 10,
        idle_unknown_ns=30 + 30,
        memory_busy_ns=5,
        communication_busy_ns=0,
    )
    assert measure_trace(trace, bounds((0, 40))) is None, "nothing runs there"
    assert measure_trace(trace, bounds()) is None


def test_collectives_by_window() -> None:
    made = SyntheticTrace()
    made.activity(REDUCE, 0, 100, size_bytes=1000)
    made.activity(GATHER, 50, 120, stream=8, size_bytes=7)
    made.activity(REDUCE, 130, 150, size_bytes=1000)
    made.activity(REDUCE, 131, 135)
    made.activity("gemm", 90, 140, stream=9)
    found = measure_begun(made.build(), bounds((0, 80), (80, 135)))
    reduce, gather = KINDS.index(CollectiveKind.ALL_REDUCE), KINDS.index(CollectiveKind.ALL_GATHER)
    columns = found.count, found.size_bytes, found.busy_ns, found.exposed_ns
    assert [column[:, reduce].tolist() for column in columns] == [[1, 2], [1000, -1], [80, 25], [80, 10]]
    assert [column[:, gather].tolist() for column in columns] == [[1, 0], [7, 0], [30, 40], [30, 10]]


def test_a_graph_is_compute_and_a_copy_is_never_a_collective() -> None:
    made = SyntheticTrace()
    made.activity("cudaGraph", 0, 10, kind=ActivityKind.GRAPH)
    made.activity(REDUCE, 20, 25, kind=ActivityKind.MEMCPY)
    made.activity(REDUCE, 30, 37)
    found = measure_trace(made.build(), None)
    assert found is not None
    assert (found.compute_ns, found.memory_ns, found.communication_busy_ns) == (10, 5, 7)


def test_the_first_launch_of_those_that_begin_together_counts() -> None:
    made = SyntheticTrace()
    made.launch("gemm", 5, 55, 58, stream=4)  # launched first, but it does not end the gap
    made.launch("gemm", 6, 50, 50, stream=5)  # takes no time
    made.activity("gemm", 0, 10)
    made.launch("gemm", 39, 50, 60, stream=1)
    made.launch("gemm", 14, 50, 55, stream=2, call_ns=6)
    made.activity("gemm", 50, 52, stream=3)
    found = measure_trace(made.build(), None)
    assert found is not None
    assert (found.idle_host_ns, found.idle_launch_ns, found.idle_unknown_ns) == (10, 30, 0)


def test_a_launch_after_its_kernel_is_clamped() -> None:
    made = SyntheticTrace()
    made.activity("gemm", 0, 10)
    made.launch("gemm", 90, 50, 60)
    found = measure_trace(made.build(), None)
    assert found is not None
    assert (found.span_ns, found.idle_host_ns, found.idle_launch_ns) == (60, 40, 0)


def test_the_device_that_works_longest_is_looked_at() -> None:
    made = make_timeline()
    made.activity("gemm", 0, 170, device=5)
    made.activity("gemm", 900, 910, device=3)
    trace = made.build()
    assert measure_trace(trace, None) == WHOLE
    assert describe_other_devices(trace) == (
        "the process used 3 devices: device time is that of device 0, which worked longest, and leaves out 3, 5"
    )
    assert describe_other_devices(make_timeline().build()) is None


def test_nothing_at_all() -> None:
    trace = SyntheticTrace().build()
    assert measure_trace(trace, None) is None
    assert measure_trace(trace, bounds((0, 10))) is None
    assert measure_begun(trace, bounds((0, 10))).count.tolist() == [[0] * len(KINDS)]
    assert measure_begun(trace, bounds((0, 1_000))).count.sum() == 0
    assert describe_other_devices(trace) is None


def test_idle_time_under_an_open_launch_is_the_hosts() -> None:
    """The device stops at 10. The call opens at 20 and is held up until 1,000; the kernel begins at 900 already."""
    made = SyntheticTrace()
    made.activity("gemm", 0, 10)
    made.launch("gemm", 20, 900, 950, call_ns=980)
    made.launch("gemm", 960, 1_100, 1_200, call_ns=50)  # it returns at 1,010
    found = measure_trace(made.build(), None)
    assert found is not None
    assert (found.idle_host_ns, found.idle_launch_ns) == (890 + 60, 90)


def test_what_else_a_call_launches_has_been_launched_once_the_first_of_it_runs() -> None:
    made = SyntheticTrace()
    made.activity("gemm", 0, 10)
    graph = made.call("cudaGraphLaunch", 20, 500)
    made.activity("node", 100, 110, call=graph)
    made.activity("node", 140, 150, call=graph)  # the graph is on the device: this gap is not the host's
    made.activity("node", 700, 710, call=graph)
    found = measure_trace(made.build(), None)
    assert found is not None
    assert (found.idle_host_ns, found.idle_launch_ns) == (90, 30 + 550)


def test_only_collectives_have_a_code() -> None:
    assert code_collectives(make_timeline().build()).tolist().count(-1) == 6


def read_queue(trace: Trace, windows: IntArray | None) -> QueueLength | None:
    work = examine_device(trace)
    return measure_queue(work, work.frame(windows))


def test_the_queue_by_hand() -> None:
    made = SyntheticTrace()
    made.launch("a", 0, 20, 60, call_ns=10)  # in the queue 10 - 60
    made.launch("b", 20, 60, 80, call_ns=10)  # 30 - 80
    made.activity("c", 70, 75)  # nobody launched it: 70 - 75
    made.launch("d", 85, 90, 100, call_ns=30)  # its call returns late: 90 - 100
    found = read_queue(made.build(), None)
    assert found is not None
    assert (found.mean, found.max) == ((40 + 50 + 5 + 10) / 80, 2)
    assert found.empty_ratio == 10 / 80
    part = read_queue(made.build(), np.array([[0, 20], [65, 72]]))
    assert part is not None
    assert (part.mean, part.max, part.empty_ratio) == ((10 + 7 + 2) / 27, 2, 10 / 27)


def test_without_launches_nobody_knows_the_queue() -> None:
    made = SyntheticTrace()
    made.activity("a", 0, 10)
    assert read_queue(made.build(), None) is None
    assert read_queue(SyntheticTrace().build(), None) is None
    made.launch("b", 0, 10, 20)
    assert read_queue(made.build(), np.empty((0, 2), dtype=np.int64)) is None
    idle = read_queue(made.build(), np.array([[100, 200]]))
    assert idle is not None
    assert (idle.mean, idle.max, idle.empty_ratio) == (0, 0, 1)


@given(
    done=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(0, 9), st.booleans()), min_size=1),
    window=st.tuples(st.integers(-5, 40), st.integers(1, 40)),
)
def test_every_nanosecond_of_the_queue(done: list[tuple[int, int, int, bool]], window: tuple[int, int]) -> None:
    made = SyntheticTrace()
    queued = []
    for begin, early, length, known in done:
        if known:
            made.launch("a", begin - early - 2, begin, begin + length, call_ns=2)
        else:
            made.activity("a", begin, begin + length)
        queued.append(range(begin - early if known else begin, begin + length))
    found = read_queue(made.build(), np.array([[window[0], sum(window)]]))
    if not any(known for *_, known in done):
        assert found is None
        return
    assert found is not None
    depths = [sum(time in span for span in queued) for time in range(window[0], sum(window))]
    assert found.mean == pytest.approx(sum(depths) / len(depths))
    assert found.max == max(depths)
    assert found.empty_ratio == pytest.approx(depths.count(0) / len(depths))
