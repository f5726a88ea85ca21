"""When did nothing run on the device, what ended that, and when was it launched?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.intervals import NONE, Intervals, join, measure_within, unite
from distprof.facts.trace import UNKNOWN, ActivityKind, Trace
from distprof.facts.trace_summary import LaunchGap, LaunchGaps
from distprof.traces.codes import select_names
from distprof.traces.reduce.device_work import TracedWork
from distprof.traces.reduce.launches import BEFORE_NS, NEVER_NS

LATENCY_NS = 20_000
"""A launch reaches the device in about 10 us, so longer gaps have another cause."""
UNSEEN_NS = 100_000
"""No activity begins so long after its launch on a device that is free."""
MAX_LONGEST = 10
_GRAPH_LAUNCH = "GraphLaunch"
"""In the names of the calls that launch a CUDA graph, of the runtime, the driver, or HIP."""


class Gaps(Struct, frozen=True, kw_only=True):
    """The times between, before and after activities, in order, ``[num_gaps]`` each, ns."""

    begin_ns: IntArray
    launched_ns: IntArray
    """From when on what ends the gap had been launched; the begin, if it was earlier. The end, where it is unknown."""
    end_ns: IntArray
    row: IntArray
    """The activity that ends the gap; -1: its launch is unknown, or nothing follows."""

    @property
    def host(self) -> Intervals:
        """When the next activity had not been launched."""
        known = self.row != UNKNOWN
        return unite(self.begin_ns[known], self.launched_ns[known])

    @property
    def launch(self) -> Intervals:
        """When it had been."""
        known = self.row != UNKNOWN
        return unite(self.launched_ns[known], self.end_ns[known])

    @property
    def unknown(self) -> Intervals:
        """When that is unknown."""
        unknown = self.row == UNKNOWN
        return unite(self.begin_ns[unknown], self.end_ns[unknown])


def compute_gaps(work: TracedWork, window: Intervals) -> Gaps:
    """The gaps between the device's activities, and those between them and the borders of the window.

    If several activities begin together, the first launched counts. Activities of zero length do not end a gap.
    """
    busy = join(work.working, work.collectives)
    if not len(busy[0]) or not len(window[0]):
        return Gaps(begin_ns=window[0], launched_ns=window[1], end_ns=window[1], row=np.full(len(window[0]), UNKNOWN))
    begin_ns = np.concatenate((np.minimum(window[0][:1], busy[0][:1]), busy[1]))
    end_ns = np.concatenate((busy[0], np.maximum(window[1][-1:], busy[1][-1:])))
    row = np.append(_match_first_launched(work, busy[0]), UNKNOWN)
    launched_ns = np.append(work.launched_ns, NEVER_NS)[row]
    return Gaps(begin_ns=begin_ns, launched_ns=np.clip(launched_ns, begin_ns, end_ns), end_ns=end_ns, row=row)


def _match_first_launched(work: TracedWork, starts_ns: IntArray) -> IntArray:
    """The activity launched first of those that begin at each start, ``[num_starts]``; -1: no launch is known."""
    gpu = work.trace.gpu
    rows = np.flatnonzero(work.chosen & (gpu.end_ns > gpu.begin_ns) & (gpu.call != UNKNOWN))
    index = np.searchsorted(starts_ns, gpu.begin_ns[rows], side="right") - 1
    first = starts_ns[index] == gpu.begin_ns[rows]
    rows, index = rows[first], index[first]
    order = np.lexsort((work.launched_ns[rows], index))
    found = np.full(len(starts_ns), UNKNOWN)
    starts, first_launched = np.unique(index[order], return_index=True)
    found[starts] = rows[order][first_launched]
    return found


def count_gaps(trace: Trace, gaps: Gaps, window: Intervals) -> LaunchGaps | None:
    """How long the launch gaps are, as far as they lie in the window. None: there are none."""
    known = np.flatnonzero(gaps.row != UNKNOWN)
    long_ns = measure_within(window, (gaps.launched_ns[known], gaps.end_ns[known]))
    rows, long_ns = gaps.row[known][long_ns > 0], long_ns[long_ns > 0]
    if not len(rows):
        return None
    graph = _mark_graphs(trace)[rows]
    longest = np.argsort(-long_ns, kind="stable")[:MAX_LONGEST]
    streams = trace.gpu.stream[trace.gpu.device == trace.gpu.device[rows[0]]]
    return LaunchGaps(
        count=len(rows), median_ns=float(np.median(long_ns)), p90_ns=int(np.sort(long_ns)[-(-9 * len(rows) // 10) - 1]),
        short_ns=int(long_ns[long_ns <= LATENCY_NS].sum()), graph_ns=int(long_ns[graph].sum()),
        longest=tuple(
            LaunchGap(
                length_ns=int(long_ns[index]), name=_name(trace, int(rows[index])),
                stream=int(trace.gpu.stream[rows[index]]), graph=bool(graph[index]),
            ) for index in longest.tolist()
        ),
        one_stream=bool((streams == streams[0]).all()),
    )  # fmt: skip


def _mark_graphs(trace: Trace) -> BoolArray:
    """Which activities are CUDA graphs or their nodes, ``[num_activities]``."""
    of_graph = np.append(select_names(trace.calls.name, trace.names, lambda name: _GRAPH_LAUNCH in name), np.False_)
    graphs: BoolArray = of_graph[trace.gpu.call] | (trace.gpu.kind == ActivityKind.GRAPH)
    return graphs


def _name(trace: Trace, row: int) -> str:
    code = int(trace.gpu.name[row])
    return trace.names[code] if code != UNKNOWN else ""


def estimate_unobserved(work: TracedWork, gaps: Gaps) -> Intervals:
    """When what was launched before the trace began may have run, unseen: idle for all that the trace shows.

    A stream works in order, so if its first activity began long after it had been launched, though nothing ran that it
    could have waited for, the stream was not free. Where that is the device's first kernel, or where that kernel was
    itself launched before the trace began, nobody knows what ran before it. On other streams it is the wait alone, if
    it was most of the time since the trace began: later, a stream may wait for others.
    """
    trace, gpu = work.trace, work.trace.gpu
    rows = np.flatnonzero(work.chosen & (gpu.end_ns > gpu.begin_ns))
    kernels = rows[(gpu.kind[rows] == ActivityKind.KERNEL) | (gpu.kind[rows] == ActivityKind.GRAPH)]
    if not len(kernels) or not (gpu.call[rows] != UNKNOWN).any():
        return NONE
    wait_ns = np.where(gaps.row == UNKNOWN, 0, gaps.end_ns - gaps.launched_ns)
    waited = wait_ns > UNSEEN_NS
    opens = (
        waited & (2 * wait_ns > gaps.end_ns - _earliest_begin(trace)) & np.isin(gaps.row, _first_by_stream(trace, rows))
    )
    unseen = unite(gaps.launched_ns[opens], gaps.end_ns[opens])
    first_ns = gpu.begin_ns[kernels].min()
    before = work.launch_ns[kernels[gpu.begin_ns[kernels] == first_ns]] == BEFORE_NS
    if before.any() or (waited & (gaps.end_ns == first_ns)).any():
        early = gaps.end_ns <= first_ns
        unseen = join(unseen, unite(gaps.begin_ns[early], gaps.end_ns[early]))
    return unseen


def _earliest_begin(trace: Trace) -> int:
    """When the first of all that the trace holds began, ns."""
    tables = (trace.gpu, trace.calls, trace.ops, trace.ranges)
    return min(int(table.begin_ns.min()) for table in tables if len(table.begin_ns))


def _first_by_stream(trace: Trace, rows: IntArray) -> IntArray:
    """The first of some activities on each stream."""
    order = rows[np.lexsort((trace.gpu.begin_ns[rows], trace.gpu.stream[rows]))]
    opening: IntArray = order[np.unique(trace.gpu.stream[order], return_index=True)[1]]
    return opening
