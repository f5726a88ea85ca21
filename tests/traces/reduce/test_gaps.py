"""Launch gaps by hand, and what lies before the first kernel of a trace that was cut out of a longer one."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.facts.arrays import IntArray
from distprof.facts.trace import ActivityKind, Trace
from distprof.facts.trace_summary import LaunchGap, LaunchGaps, TraceSummary
from distprof.traces.reduce.device_work import examine_device
from distprof.traces.reduce.gaps import LATENCY_NS, MAX_LONGEST, UNSEEN_NS
from distprof.traces.reduce.traced_rank import reduce_trace
from tests.traces.reduce.synthetic_traces import SyntheticTrace

US = 1_000
MS = 1_000_000


def reduce(trace: Trace, *windows: tuple[int, int]) -> TraceSummary:
    """All times are those of one clock, so a step is as long on the host as on the device."""
    bounds = np.array(windows, dtype=np.int64).reshape(-1, 2) if windows else None
    work = examine_device(trace)
    return reduce_trace(work, rank=0, num_steps=len(windows), host_windows=bounds, device_windows=bounds)


def find_gaps(trace: Trace, *windows: tuple[int, int]) -> LaunchGaps:
    found = reduce(trace, *windows).gaps
    assert found is not None
    return found


def test_gaps_by_hand() -> None:
    """Ended by a kernel 30 after its launch, by one on another stream 20 after, and by one that was launched before."""
    made = SyntheticTrace()
    made.launch("first", 0, 10, 100)
    made.launch("second", 119, 150, 200)
    made.launch("third", 229, 250, 300, stream=9)
    made.launch("fourth", 40, 350, 400)
    made.activity("of unknown launch", 500, 510, stream=11)
    found = find_gaps(made.build())
    assert found == LaunchGaps(
        count=3, median_ns=30, p90_ns=50, short_ns=100, graph_ns=0,
        longest=(
            LaunchGap(length_ns=50, name="fourth", stream=7, graph=False),
            LaunchGap(length_ns=30, name="second", stream=7, graph=False),
            LaunchGap(length_ns=20, name="third", stream=9, graph=False),
        ),
    )  # fmt: skip
    cut = find_gaps(made.build(), (10, 140), (145, 330))
    assert [gap.length_ns for gap in cut.longest] == [30, 25, 20]  # the second is cut in the middle, the last at 330
    assert reduce(made.build(), (260, 280)).gaps is None


def test_whether_the_device_has_one_stream_alone() -> None:
    made = SyntheticTrace()
    made.launch("first", 0, 10, 100)
    made.launch("second", 119, 150, 200)
    assert find_gaps(made.build()).one_stream
    made.activity("a copy", 500, 510, stream=11)
    assert not find_gaps(made.build()).one_stream


def test_one_gap_that_holds_nearly_all_is_no_mean() -> None:
    """557 gaps of 1 ns and one of 463 ms are 830 us each on average, which none of them is near."""
    made = SyntheticTrace()
    made.launch("start", 0, 10, 20)
    for number in range(1, 558):
        made.launch("kernel", number * 2, 10 + number * 11, 20 + number * 11)
    made.launch("late", 1_200, 463 * MS, 463 * MS + 10)
    found = find_gaps(made.build())
    assert (found.count, found.median_ns, found.p90_ns) == (558, 1, 1)
    assert len(found.longest) == MAX_LONGEST == 10
    assert [(gap.name, gap.length_ns) for gap in found.longest[:2]] == [
        ("late", 463 * MS - 20 - 557 * 11), ("kernel", 1),
    ]  # fmt: skip
    assert found.short_ns == 557


def test_nodes_of_cuda_graphs_are_told_apart() -> None:
    made = SyntheticTrace()
    made.launch("first", 0, 10, 20)
    graph = made.call("cudaGraphLaunch", 15, 25)
    made.activity("node", 30, 40, call=graph)
    made.activity("node", 90, 100, call=graph)
    whole = made.call("cuGraphLaunch_ptsz", 100, 105)
    made.activity("graph", 115, 120, call=whole, kind=ActivityKind.GRAPH)
    made.launch("after", 118, 130, 140)
    found = find_gaps(made.build())
    assert [(gap.length_ns, gap.graph) for gap in found.longest] == [(50, True), (10, True), (10, False), (5, True)]
    assert found.graph_ns == 50 + 10 + 5


@pytest.mark.parametrize("wait_ns", [LATENCY_NS, LATENCY_NS + 1])
def test_gaps_up_to_the_latency_of_a_launch_are_short(wait_ns: int) -> None:
    made = SyntheticTrace()
    made.launch("first", 0, 10, 20)
    made.launch("second", 19, 20 + wait_ns, 30 + wait_ns)
    assert find_gaps(made.build()).short_ns == (wait_ns if wait_ns <= LATENCY_NS else 0)


def test_where_nothing_ran_there_is_no_launch_gap() -> None:
    made = SyntheticTrace()
    made.launch("of no length", 0, 10, 10)
    found = reduce(made.build(), (0, 50), (60, 90))
    assert (found.device, found.gaps, found.idle_host_in, found.unobserved_ns) == (None, None, {}, 0)


@pytest.mark.parametrize("windows", [np.empty((0, 2), np.int64), np.array([[300, 300], [300, 300]])])
def test_steps_that_take_no_time_on_the_device_have_no_gaps(windows: IntArray) -> None:
    """All steps are warm-up, or all that was launched in them was done before they began."""
    made = SyntheticTrace()
    made.launch("kernel", 0, 10, 100)
    made.launch("kernel", 119, 150, 200)
    work = examine_device(made.build())
    found = reduce_trace(work, rank=0, num_steps=len(windows), host_windows=windows, device_windows=windows)
    assert (found.device, found.queue, found.gaps, found.idle_host_in, found.unobserved_ns) == (None, None, None, {}, 0)


def make_served(wait_ns: int = 463 * MS) -> SyntheticTrace:
    """A trace that begins in the middle of a request: its first kernel is launched at 1 ms, and begins much later."""
    made = SyntheticTrace()
    made.range("ProfilerStep#1", 0, 10 * MS)
    made.launch("decode", 1 * MS - 1, 1 * MS + wait_ns, 3 * MS + wait_ns)
    made.launch("decode", 2 * MS, 4 * MS + wait_ns, 5 * MS + wait_ns)
    return made


def test_what_ran_before_the_first_kernel_of_a_trace_cut_out_is_not_known() -> None:
    found = reduce(make_served().build(), (0, 468 * MS))
    assert found.device is not None and found.queue is not None and found.gaps is not None
    assert found.unobserved_ns == 464 * MS
    assert (found.device.span_ns, found.device.compute_ns, found.device.idle_launch_ns) == (4 * MS, 3 * MS, 1 * MS)
    assert (found.device.idle_host_ns, found.idle_host_in, found.gaps.count) == (0, {}, 1)
    assert found.queue.empty_ratio == 0
    assert [note for note in found.head.notes if "before its first kernels" in note]


def test_a_kernel_that_began_as_soon_as_it_could_tells_of_an_idle_device() -> None:
    found = reduce(make_served(UNSEEN_NS).build(), (0, 5 * MS + UNSEEN_NS))
    assert found.device is not None
    assert (found.unobserved_ns, found.device.idle_host_ns) == (0, 1 * MS)
    assert reduce(make_served(UNSEEN_NS + 1).build(), (0, 6 * MS)).unobserved_ns == 1 * MS + UNSEEN_NS + 1


def test_without_launches_it_is_idle_for_unknown_reasons() -> None:
    made = SyntheticTrace()
    made.activity("decode", 464 * MS, 466 * MS)
    found = reduce(made.build(), (0, 466 * MS))
    assert found.device is not None
    assert (found.unobserved_ns, found.device.idle_unknown_ns) == (0, 464 * MS)


def test_a_first_kernel_launched_before_the_trace_hides_what_was_before_it() -> None:
    made = SyntheticTrace()
    made.activity("before", 5 * MS, 6 * MS)
    made.launch("decode", 1 * MS, 7 * MS, 8 * MS)
    assert reduce(made.build(), (0, 8 * MS)).unobserved_ns == 5 * MS


def test_copies_before_the_first_kernel_are_seen_and_do_not_tell_of_kernels() -> None:
    made = make_served()
    copy = made.call("cudaMemcpyAsync", 10, 20)
    made.activity("Memcpy HtoD", 30, 130, call=copy, kind=ActivityKind.MEMCPY, stream=9)
    for windows in ((), ((30, 468 * MS),)):
        found = reduce(made.build(), *windows)
        assert found.device is not None
        assert (found.unobserved_ns, found.device.memory_ns) == (464 * MS - 130, 100)


@pytest.mark.parametrize(("begin_ms", "unobserved_ms"), [(1, 463), (500, 0)])
def test_another_streams_first_wait_counts_if_it_is_most_of_the_time(begin_ms: int, unobserved_ms: int) -> None:
    """Later in a trace a stream may wait for others as well as for what nobody saw."""
    made = SyntheticTrace()
    made.range("range", 0, 1 * MS)
    made.launch("fill", begin_ms * MS - 20, begin_ms * MS - 10, begin_ms * MS, stream=20)
    made.launch("decode", begin_ms * MS - 1, (begin_ms + 463) * MS, (begin_ms + 464) * MS)
    found = reduce(made.build())
    assert found.device is not None
    assert found.unobserved_ns == unobserved_ms * MS
    assert found.device.idle_launch_ns == (463 - unobserved_ms) * MS
    assert found.device.span_ns == (464 - unobserved_ms) * MS + 10
