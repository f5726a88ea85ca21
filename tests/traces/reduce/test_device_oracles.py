"""Device time against a slow oracle, nanosecond by nanosecond; `test_recounts` uses real traces."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from distprof.facts.arrays import IntArray
from distprof.facts.plain import make_plain
from distprof.facts.run import KINDS, CollectiveKind
from distprof.facts.trace import ActivityKind, Trace
from distprof.facts.trace_summary import DeviceTime
from distprof.traces.reduce.device_time import KindTimes
from tests.traces.reduce.synthetic_traces import SyntheticTrace, measure_begun, measure_trace

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
OTHER = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
NAMES = {REDUCE: CollectiveKind.ALL_REDUCE, GATHER: CollectiveKind.ALL_GATHER, OTHER: CollectiveKind.OTHER}
MOVES = (ActivityKind.MEMCPY, ActivityKind.MEMSET)


def bounds(*pairs: tuple[int, int]) -> IntArray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


class Did(Struct, frozen=True):
    """One activity of a tiny timeline."""

    kind: ActivityKind
    name: str
    begin_ns: int
    end_ns: int
    call: tuple[int, int] | None
    """When the host entered the launching call, and left it."""

    @property
    def launched_ns(self) -> int | None:
        return None if self.call is None else min(self.call[1], self.begin_ns)

    def runs(self, time: int) -> bool:
        return self.begin_ns <= time < self.end_ns


@st.composite
def activities(draw: st.DrawFn) -> Did:
    kind, name = draw(
        st.sampled_from([
            *((ActivityKind.KERNEL, name) for name in ("gemm", REDUCE, GATHER, OTHER)), (ActivityKind.MEMCPY, "copy"),
            (ActivityKind.MEMSET, "set"), (ActivityKind.GRAPH, "graph"),
        ])
    )  # fmt: skip
    begin = draw(st.integers(0, 40))
    called = draw(st.none() | st.integers(max(0, begin - 15), begin + 2))
    call = None if called is None else (called, called + draw(st.integers(1, 12)))
    return Did(kind, name, begin, begin + draw(st.integers(0, 8)), call)


def build(done: list[Did]) -> Trace:
    made = SyntheticTrace()
    for item in done:
        call = -1 if item.call is None else made.call("launch", *item.call)
        made.activity(item.name, item.begin_ns, item.end_ns, kind=item.kind, call=call)
    return made.build()


def judge(done: list[Did], time: int) -> str:
    """What `DeviceTime` assigns one nanosecond to, computed the slow way."""
    now = [item for item in done if item.runs(time)]
    if any(item.kind not in MOVES and item.name not in NAMES for item in now):
        return "compute_ns"
    if any(item.kind in MOVES for item in now):
        return "memory_ns"
    if now:
        return "idle_communication_ns"
    later = [item for item in done if item.begin_ns > time and item.end_ns > item.begin_ns]
    following = [item for item in later if item.begin_ns == min(item.begin_ns for item in later)]
    launches = [item.launched_ns for item in following if item.launched_ns is not None]
    if not launches:
        return "idle_unknown_ns"
    return "idle_host_ns" if time < min(launches) else "idle_launch_ns"


def count(done: list[Did], times: list[int]) -> dict[str, int]:
    found = dict.fromkeys(DeviceTime.__struct_fields__, 0)
    for time in times:
        found["span_ns"] += 1
        found[judge(done, time)] += 1
        found["memory_busy_ns"] += any(item.runs(time) and item.kind in MOVES for item in done)
        found["communication_busy_ns"] += any(item.runs(time) and item.name in NAMES for item in done)
    return found


WINDOWS = st.lists(st.integers(-5, 55), max_size=8).map(lambda cuts: sorted(cuts)[: len(cuts) // 2 * 2])


@given(done=st.lists(activities(), max_size=9), cuts=WINDOWS, seed=st.integers(0, 9))
def test_every_nanosecond(done: list[Did], cuts: list[int], seed: int) -> None:
    windows = list(zip(cuts[::2], cuts[1::2], strict=True))
    trace = shuffle(build(done), seed)
    times = [time for window in windows for time in range(*window)]
    found = measure_trace(trace, bounds(*windows))
    if any(item.runs(time) for item in done for time in times):
        assert found is not None
        assert make_plain(found) == count(done, times)
        parts = [ns for part, ns in make_plain(found).items() if part != "span_ns" and "busy" not in part]
        assert found.span_ns == sum(parts)
    else:
        assert found is None
    check_kinds(measure_begun(trace, bounds(*windows)), done, windows)


def check_kinds(found: KindTimes, done: list[Did], windows: list[tuple[int, int]]) -> None:
    for place, kind in enumerate(KINDS):
        own = [item for item in done if NAMES.get(item.name) is kind]
        for row, window in enumerate(windows):
            busy = [time for time in range(*window) if any(item.runs(time) for item in own)]
            alone = [time for time in busy if judge(done, time) == "idle_communication_ns"]
            assert found.busy_ns[row, place] == len(busy)
            assert found.exposed_ns[row, place] == len(alone)
            assert found.count[row, place] == sum(window[0] <= item.begin_ns < window[1] for item in own)


def shuffle(trace: Trace, seed: int) -> Trace:
    """The same facts with activities in another order, and names and streams under other numbers."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(trace.gpu.begin_ns))
    relabel = rng.permutation(len(trace.names)) if trace.names else np.zeros(0, dtype=np.int64)
    names = [""] * len(trace.names)
    for old, new in enumerate(relabel.tolist()):
        names[new] = trace.names[old]
    columns: dict[str, Any] = {
        field: values[order]
        for field in trace.gpu.__struct_fields__
        if (values := getattr(trace.gpu, field)) is not None
    }
    columns |= {"name": relabel[columns["name"]], "stream": columns["stream"] * 3 + 1, "device": columns["device"] + 2}
    calls = structs.replace(trace.calls, name=relabel[trace.calls.name])
    return structs.replace(trace, names=tuple(names), gpu=type(trace.gpu)(**columns), calls=calls)
