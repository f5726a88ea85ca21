"""What the host was in while the device waited for it: by hand, and nanosecond by nanosecond."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.facts.run import Phase
from distprof.facts.trace import Trace
from distprof.facts.trace_summary import HostState
from distprof.traces.reduce.device_work import examine_device
from distprof.traces.reduce.host_states import MAX_THREADS
from distprof.traces.reduce.phase_names import USUAL_NAMES, NameMap
from distprof.traces.reduce.traced_rank import reduce_trace
from tests.traces.reduce.synthetic_traces import SyntheticTrace

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
AUTOGRAD = 2


def divide(trace: Trace, *windows: tuple[int, int], usual: NameMap = USUAL_NAMES) -> dict[HostState, int]:
    bounds = np.array(windows, dtype=np.int64).reshape(-1, 2) if windows else None
    work = examine_device(trace)
    found = reduce_trace(work, rank=0, num_steps=len(windows), host_windows=bounds, device_windows=bounds, usual=usual)
    assert found.device is not None
    assert sum(found.idle_host_in.values()) == found.device.idle_host_ns
    return dict(found.idle_host_in)


def make_step() -> SyntheticTrace:
    """
    =========  ==========================================
    0 - 10     a kernel
    20 - 500   the data loader, in it a synchronisation
    500 - 600  a synchronisation
    600 - 800  the optimizer, in it an operator and a call
    800 - 900  an operator
    990        the launch of the next kernel, which begins at its return, at 1,000
    =========  ==========================================
    """
    made = SyntheticTrace()
    made.activity("first", 0, 10)
    made.range(LOADER, 20, 500)
    made.call("cudaStreamSynchronize", 480, 600)
    made.range("Optimizer.step#SGD.step", 600, 800)
    made.op("aten::add_", 650, 700)
    made.call("cudaMalloc", 700, 720)
    made.op("aten::mm", 800, 900)
    made.launch("second", 990, 1_000, 1_100, call_ns=10)
    return made


def test_by_hand() -> None:
    assert divide(make_step().build()) == {
        HostState.DATA: 480, HostState.SYNCHRONIZING: 100, HostState.OPTIMIZER: 200, HostState.OPERATORS: 100,
        HostState.CALLS: 10, HostState.UNKNOWN: 10 + 90,
    }  # fmt: skip


def test_only_what_lies_in_the_windows_counts() -> None:
    assert divide(make_step().build(), (0, 30), (590, 610), (995, 1_100)) == {
        HostState.DATA: 10, HostState.SYNCHRONIZING: 10, HostState.OPTIMIZER: 10, HostState.CALLS: 5,
        HostState.UNKNOWN: 10,
    }  # fmt: skip


def test_the_users_names_count_as_well() -> None:
    made = SyntheticTrace()
    made.activity("first", 0, 10)
    made.range("fetch samples", 10, 90)
    made.launch("second", 90, 100, 200, call_ns=10)
    named = NameMap(phases=((Phase.DATA, "fetch*"),))
    assert divide(made.build())[HostState.UNKNOWN] == 80
    assert divide(made.build(), usual=named) == {HostState.DATA: 80, HostState.CALLS: 10}


def test_where_the_launching_thread_shows_nothing_the_main_thread_tells() -> None:
    """Backward launches from a thread of its own, which is in an operator from 60 on."""
    made = SyntheticTrace()
    made.activity("first", 0, 10)
    made.range(LOADER, 10, 80)
    made.op("autograd::engine::evaluate_function: MulBackward0", 60, 100, thread=AUTOGRAD)
    made.launch("second", 90, 100, 200, thread=AUTOGRAD, call_ns=10)
    assert divide(made.build()) == {HostState.DATA: 50, HostState.OPERATORS: 30, HostState.CALLS: 10}


def test_many_threads_are_not_looked_at_one_by_one() -> None:
    made = SyntheticTrace()
    for thread in range(MAX_THREADS + 3):
        made.op("aten::mm", 100 * thread + 20, 100 * thread + 80, thread=thread + 10)
        made.launch("kernel", 100 * thread + 90, 100 * thread + 100, 100 * thread + 110, thread=thread + 10, call_ns=10)
    found = divide(made.build(), (0, 10_000))
    assert found[HostState.OPERATORS] == 60 * MAX_THREADS


spans = st.tuples(st.integers(0, 280), st.integers(1, 60), st.integers(1, 3))
callers = st.tuples(st.integers(1, 9), st.integers(1, 3))
Span = tuple[int, int, int]
"""Begin, length, thread."""


def covers(rows: list[Span], time: int, thread: int) -> bool:
    return any(begin <= time < begin + long and own == thread for begin, long, own in rows)


@given(
    loads=st.lists(spans, max_size=2), updates=st.lists(spans, max_size=2), waits=st.lists(spans, max_size=2),
    calls=st.lists(spans, max_size=3), ops=st.lists(spans, max_size=3),
    launches=st.fixed_dictionaries({1: callers, 2: callers, 3: callers}),
)  # fmt: skip
def test_every_nanosecond(
    loads: list[Span], updates: list[Span], waits: list[Span], calls: list[Span], ops: list[Span],
    launches: dict[int, tuple[int, int]],
) -> None:  # fmt: skip
    """Kernels begin at 100, 200 and 300, as soon as the calls that launch them return, and take 5."""
    made = SyntheticTrace()
    made.range("train_loop", -10_000, 10_000)  # makes thread 1 the main thread
    made.activity("first", -5, 0)
    for name, rows in ((LOADER, loads), ("optimizer", updates)):
        for begin, long, thread in rows:
            made.range(name, begin, begin + long, thread=thread)
    for name, rows in (("cudaStreamSynchronize", waits), ("cudaMalloc", calls)):
        for begin, long, thread in rows:
            made.call(name, begin, begin + long, thread=thread)
    for begin, long, thread in ops:
        made.op("aten::mm", begin, begin + long, thread=thread)
    expected: Counter[HostState] = Counter()
    sources = {
        HostState.DATA: loads, HostState.SYNCHRONIZING: waits, HostState.OPTIMIZER: updates,
        HostState.CALLS: [*calls, *((100 * number - long, long, own) for number, (long, own) in launches.items())],
        HostState.OPERATORS: ops,
    }  # fmt: skip
    for number, (long, thread) in launches.items():
        made.launch("kernel", 100 * number - long, 100 * number, 100 * number + 5, thread=thread, call_ns=long)
        for time in range(100 * number - 95 if number > 1 else 0, 100 * number):
            told = [state for own in (thread, 1) for state, rows in sources.items() if covers(rows, time, own)]
            expected[told[0] if told else HostState.UNKNOWN] += 1
    assert divide(made.build()) == dict(+expected)
