"""Calls of the API, and those that wait for the device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.activity.host_calls import find_outermost, name_call, total_calls, total_syncs
from distprof.rank_activity import SyncTotal
from tests.activity.made_traces import MadeTrace


def test_by_hand() -> None:
    made = MadeTrace()
    made.call("cudaDeviceSynchronize_v3020", 0, 100)
    made.call("cuCtxSynchronize", 10, 90)  # the runtime's call is made of it
    made.call("cuStreamSynchronize_ptsz", 40, 50, thread=2)
    made.call("cudaDeviceSynchronize", 100, 130)
    made.call("cudaLaunchKernel_v7000", 130, 140)
    made.call("cuLaunchKernel", 131, 139)
    made.call("cudaMemcpy", 200, 260)
    made.call("cuMemcpyHtoD_v2", 210, 250)
    made.call("cudaMemcpyAsync", 260, 265)
    trace = made.build()
    assert total_syncs(trace, None) == (
        SyncTotal(name="cudaDeviceSynchronize", count=2, total_ns=130),
        SyncTotal(name="cudaMemcpy", count=1, total_ns=60),
        SyncTotal(name="cuStreamSynchronize", count=1, total_ns=10),
    )
    assert total_calls(trace, None) == 100 + 10 + 30 + 10 + 60 + 5
    window = np.array([[40, 101], [205, 220]])
    assert [(total.name, total.count) for total in total_syncs(trace, window)] == [
        ("cudaDeviceSynchronize", 1),
        ("cuStreamSynchronize", 1),
    ]
    assert total_calls(trace, window) == 40
    assert total_calls(trace, np.array([[500, 600]])) == 0
    assert total_calls(MadeTrace().build(), None) is None
    assert total_syncs(MadeTrace().build(), None) == ()


@pytest.mark.parametrize("name", [
    "cudaDeviceSynchronize", "cudaThreadSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize_ptds_v7000",
    "cuCtxSynchronize_v2", "cuEventSynchronize", "hipDeviceSynchronize", "hipStreamSynchronize", "hipEventSynchronize",
    "cudaMemcpy_v3020", "cudaMemcpy2D", "cudaMemcpyToSymbol", "cudaMemcpyFromSymbol_spt", "cuMemcpyDtoH_v2_ptds",
    "hipMemcpy", "hipMemcpyWithStream", "hipMemcpyDtoH", "cudaFree", "cuMemFree_v2", "hipFree",
])  # fmt: skip
def test_these_wait(name: str) -> None:
    made = MadeTrace()
    made.call(name, 0, 7)
    assert total_syncs(made.build(), None) == (SyncTotal(name=name_call(name), count=1, total_ns=7),)


@pytest.mark.parametrize("name", [
    "cudaMemcpyAsync", "cudaMemcpyAsync_ptsz_v7000", "cuMemcpyHtoDAsync_v2", "hipMemcpyAsync", "cuMemcpyDtoD_v2",
    "cudaLaunchKernel", "cudaStreamWaitEvent", "cudaEventQuery", "cudaMemsetAsync", "cudaFreeAsync", "cudaFreeHost", "",
    "cudaDeviceSynchronizeNot", "my_cudaMemcpy",
])  # fmt: skip
def test_these_do_not(name: str) -> None:
    made = MadeTrace()
    made.call(name, 0, 7)
    assert total_syncs(made.build(), None) == ()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(1, 3)), max_size=12))
def test_outermost_like_a_plain_loop(done: list[tuple[int, int, int]]) -> None:
    """Calls of one thread nest; where they overlap otherwise, the one that begins first counts."""
    made = MadeTrace()
    for begin, length, thread in done:
        made.call("cudaFree", begin, begin + length, thread=thread)
    calls = made.build().calls
    rows = np.arange(len(calls.begin_ns))
    truth, reached = [], {1: -1, 2: -1, 3: -1}
    spans = zip(calls.begin_ns.tolist(), calls.end_ns.tolist(), calls.thread.tolist(), rows.tolist(), strict=True)
    for begin, end, thread, row in sorted(spans, key=lambda span: (span[0], -span[1], span[3])):
        if begin >= reached[thread] and end > begin:
            truth.append(row)
        reached[thread] = max(reached[thread], end)
    assert np.flatnonzero(find_outermost(calls, rows)).tolist() == sorted(truth)
