"""Device time by cause and by kind of collective: by hand, nanosecond by nanosecond, and on real traces."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.activity.device import (
    KindTimes,
    code_collectives,
    describe_other_devices,
    find_launches,
    measure_device,
    measure_kinds,
)
from distprof.rank_activity import DeviceTime
from distprof.run import KINDS, CollectiveKind
from distprof.trace import ActivityKind, IntArray, Trace
from tests.activity.made_traces import MadeTrace
from tests.activity.real_traces import KINDS as REAL_KINDS
from tests.activity.real_traces import build_trace, read_events

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
OTHER = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
NAMES = {REDUCE: CollectiveKind.ALL_REDUCE, GATHER: CollectiveKind.ALL_GATHER, OTHER: CollectiveKind.OTHER}
MOVES = (ActivityKind.MEMCPY, ActivityKind.MEMSET)


def bounds(*pairs: tuple[int, int]) -> IntArray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def make_timeline() -> MadeTrace:
    """
    ===========  =====================================================================
    100 - 200    a kernel, launched at 40
    150 - 300    an all-reduce: 200 - 300 is exposed but for the copy at 220 - 240
    300 - 350    idle; the next kernel is launched at 320: 20 the host's, 30 the launch's
    350 - 400    a kernel, beside it a copy at 380 - 420
    420 - 450    idle; the next kernel was launched at 330, before the gap: the launch's
    450 - 500    a kernel
    500 - 560    idle; of the memset that follows no launch is known
    560 - 570    a memset
    ===========  =====================================================================
    """
    made = MadeTrace()
    made.launch("gemm", 40, 100, 200)
    made.launch(REDUCE, 50, 150, 300, stream=20)
    made.activity("Memcpy DtoD", 220, 240, kind=ActivityKind.MEMCPY, stream=9)
    made.launch("gemm", 320, 350, 400)
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
    assert measure_device(trace, None) == WHOLE
    kinds = measure_kinds(trace, None)
    reduce = KINDS.index(CollectiveKind.ALL_REDUCE)
    assert kinds.count.tolist() == [[int(place == reduce) for place in range(len(KINDS))]]
    assert (kinds.busy_ns[0, reduce], kinds.exposed_ns[0, reduce], kinds.size_bytes[0, reduce]) == (150, 80, -1)
    assert kinds.busy_ns.sum() == 150


def test_windows_cut_activities_but_not_the_causes_of_gaps() -> None:
    trace = make_timeline().build()
    found = measure_device(trace, bounds((0, 60), (310, 330), (440, 530), (565, 600)))
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
    assert measure_device(trace, bounds((0, 40))) is None, "nothing runs there"
    assert measure_device(trace, bounds()) is None


def test_collectives_by_window() -> None:
    made = MadeTrace()
    made.activity(REDUCE, 0, 100, size_bytes=1000)
    made.activity(GATHER, 50, 120, stream=8, size_bytes=7)
    made.activity(REDUCE, 130, 150)
    made.activity("gemm", 90, 140, stream=9)
    found = measure_kinds(made.build(), bounds((0, 80), (80, 135)))
    reduce, gather = KINDS.index(CollectiveKind.ALL_REDUCE), KINDS.index(CollectiveKind.ALL_GATHER)
    columns = found.count, found.size_bytes, found.busy_ns, found.exposed_ns
    assert [column[:, reduce].tolist() for column in columns] == [[1, 1], [1000, -1], [80, 25], [80, 10]]
    assert [column[:, gather].tolist() for column in columns] == [[1, 0], [7, 0], [30, 40], [30, 10]]


def test_a_graph_is_compute_and_a_copy_is_never_a_collective() -> None:
    made = MadeTrace()
    made.activity("cudaGraph", 0, 10, kind=ActivityKind.GRAPH)
    made.activity("nccl copy", 20, 25, kind=ActivityKind.MEMCPY)
    found = measure_device(made.build(), None)
    assert found is not None
    assert (found.compute_ns, found.memory_ns, found.communication_busy_ns) == (10, 5, 0)


def test_the_first_launch_of_those_that_begin_together_counts() -> None:
    made = MadeTrace()
    made.activity("gemm", 0, 10)
    made.launch("gemm", 40, 50, 60, stream=1)
    made.launch("gemm", 20, 50, 55, stream=2)
    made.activity("gemm", 50, 52, stream=3)
    found = measure_device(made.build(), None)
    assert found is not None
    assert (found.idle_host_ns, found.idle_launch_ns, found.idle_unknown_ns) == (10, 30, 0)


def test_a_launch_after_its_kernel_is_clamped() -> None:
    made = MadeTrace()
    made.activity("gemm", 0, 10)
    made.launch("gemm", 90, 50, 60)
    found = measure_device(made.build(), None)
    assert found is not None
    assert (found.span_ns, found.idle_host_ns, found.idle_launch_ns) == (60, 40, 0)


def test_the_device_that_works_longest_is_looked_at() -> None:
    made = make_timeline()
    made.activity("gemm", 0, 170, device=5)
    made.activity("gemm", 900, 910, device=3)
    trace = made.build()
    assert measure_device(trace, None) == WHOLE
    assert describe_other_devices(trace) == (
        "the process used 3 devices: device time is that of device 0, which has 70 % of the activity; not of 3, 5"
    )
    assert describe_other_devices(make_timeline().build()) is None


def test_nothing_at_all() -> None:
    trace = MadeTrace().build()
    assert measure_device(trace, None) is None
    assert measure_device(trace, bounds((0, 10))) is None
    assert measure_kinds(trace, bounds((0, 10))).count.tolist() == [[0] * len(KINDS)]
    assert measure_kinds(trace, None).count.sum() == 0
    assert describe_other_devices(trace) is None


@dataclass(frozen=True)
class Did:
    """One activity of a tiny timeline."""

    kind: ActivityKind
    name: str
    begin_ns: int
    end_ns: int
    launched_ns: int | None

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
    launched = draw(st.none() | st.integers(max(0, begin - 15), begin + 2))
    return Did(kind, name, begin, begin + draw(st.integers(0, 8)), launched)


def build(done: list[Did]) -> Trace:
    made = MadeTrace()
    for item in done:
        call = -1 if item.launched_ns is None else made.call("launch", item.launched_ns, item.launched_ns + 1)
        made.activity(item.name, item.begin_ns, item.end_ns, kind=item.kind, call=call)
    return made.build()


def judge(done: list[Did], time: int) -> str:
    """What `DeviceTime` books one nanosecond under, the slow way."""
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
    found = dict.fromkeys((field.name for field in dataclasses.fields(DeviceTime)), 0)
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
    found = measure_device(trace, bounds(*windows))
    if any(item.runs(time) for item in done for time in times):
        assert found is not None
        assert dataclasses.asdict(found) == count(done, times)
        parts = [ns for part, ns in dataclasses.asdict(found).items() if part != "span_ns" and "busy" not in part]
        assert found.span_ns == sum(parts)
    else:
        assert found is None
    check_kinds(measure_kinds(trace, bounds(*windows)), done, windows)


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
    """The same facts: activities in another order, names and streams under other numbers."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(trace.gpu.begin_ns))
    relabel = rng.permutation(len(trace.names)) if trace.names else np.zeros(0, dtype=np.int64)
    names = [""] * len(trace.names)
    for old, new in enumerate(relabel.tolist()):
        names[new] = trace.names[old]
    columns: dict[str, Any] = {
        field.name: getattr(trace.gpu, field.name)[order] for field in dataclasses.fields(trace.gpu)
    }
    columns |= {"name": relabel[columns["name"]], "stream": columns["stream"] * 3 + 1, "device": columns["device"] + 2}
    calls = dataclasses.replace(trace.calls, name=relabel[trace.calls.name])
    return dataclasses.replace(trace, names=tuple(names), gpu=type(trace.gpu)(**columns), calls=calls)


def add_up(pairs: list[tuple[int, int]]) -> int:
    """Length of a union, in a plain loop."""
    total, reached = 0, -(10**18)
    for begin, end in sorted(pairs):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


@pytest.mark.parametrize("name", ["a100_2ranks_rank0.json.gz", "b200_8ranks_rank0.json.gz", "h100_qwen_single.json.gz"])
def test_real_traces(name: str) -> None:
    """Against plain loops over the file: a union is |A u B| = |A| + |B| - |A n B|, so differences give the parts."""
    events = [event for event in read_events(name) if event.get("cat") in REAL_KINDS]
    spans = {"compute": [], "memory": [], "exchange": []}  # type: dict[str, list[tuple[int, int]]]
    for event in events:
        foreign = "nccl" in event["name"].lower() or "all_reduce_kernel" in event["name"]
        part = "memory" if event["cat"] != "kernel" else "exchange" if foreign else "compute"
        spans[part].append((event["begin_ns"], event["end_ns"]))
    everything = [pair for pairs in spans.values() for pair in pairs]
    working = spans["compute"] + spans["memory"]
    found = measure_device(build_trace(name), None)
    assert found is not None
    assert found.span_ns == max(end for _, end in everything) - min(begin for begin, _ in everything)
    assert found.compute_ns == add_up(spans["compute"])
    assert found.memory_ns == add_up(working) - found.compute_ns
    assert found.communication_busy_ns == add_up(spans["exchange"])
    assert found.idle_communication_ns == add_up(everything) - add_up(working)
    assert found.idle_host_ns + found.idle_launch_ns + found.idle_unknown_ns == found.span_ns - add_up(everything)
    assert (found.idle_host_ns, found.idle_launch_ns, found.idle_unknown_ns) == find_causes(name, everything)
    if name.startswith("a100"):
        assert found.communication_busy_ns > found.idle_communication_ns > 0


def find_causes(name: str, everything: list[tuple[int, int]]) -> tuple[int, int, int]:
    """Idle time of the host, of the launch and of nobody, in a plain loop over the file."""
    calls = {
        event["args"]["correlation"]: event["begin_ns"]
        for event in read_events(name)
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    first: dict[int, list[int]] = {}
    for event in read_events(name):
        if event.get("cat") in REAL_KINDS and event["args"]["correlation"] in calls:
            first.setdefault(event["begin_ns"], []).append(calls[event["args"]["correlation"]])
    host = launch = unknown = 0
    reached = min(begin for begin, _ in everything)
    for begin, end in sorted(everything):
        if begin > reached and begin in first:
            late = min(max(min(first[begin]), reached), begin) - reached
            host, launch = host + late, launch + begin - reached - late
        elif begin > reached:
            unknown += begin - reached
        reached = max(reached, end)
    return host, launch, unknown


def test_launches_of_nobody() -> None:
    made = MadeTrace()
    made.activity("gemm", 0, 10)
    assert find_launches(made.build()).tolist() == [np.iinfo(np.int64).max]
    assert code_collectives(make_timeline().build()).tolist().count(-1) == 6
