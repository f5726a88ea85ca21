"""API calls, and those that wait for the device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.facts.trace import UNKNOWN, ActivityKind, CopyKind
from distprof.facts.trace_summary import SyncTotal
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.reduce.host_calls import mark_outermost, name_call, total_calls, total_syncs
from tests.traces.reduce.real_traces import find_shared
from tests.traces.reduce.synthetic_traces import SyntheticTrace


def test_by_hand() -> None:
    made = SyntheticTrace()
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
    assert total_calls(SyntheticTrace().build(), None) is None
    assert total_syncs(SyntheticTrace().build(), None) == ()


@pytest.mark.parametrize("name", [
    "cudaDeviceSynchronize", "cudaThreadSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize_ptds_v7000",
    "cuCtxSynchronize_v2", "cuEventSynchronize", "hipDeviceSynchronize", "hipStreamSynchronize", "hipEventSynchronize",
    "cudaMemcpy_v3020", "cudaMemcpy2D", "cudaMemcpyToSymbol", "cudaMemcpyFromSymbol_spt", "cuMemcpyDtoH_v2_ptds",
    "hipMemcpy", "hipMemcpyWithStream", "hipMemcpyDtoH", "cudaFree", "cuMemFree_v2", "hipFree",
])  # fmt: skip
def test_these_wait(name: str) -> None:
    made = SyntheticTrace()
    made.call(name, 0, 7)
    assert total_syncs(made.build(), None) == (SyncTotal(name=name_call(name), count=1, total_ns=7),)


@pytest.mark.parametrize("name", [
    "cudaMemcpyAsync", "cudaMemcpyAsync_ptsz_v7000", "cuMemcpyHtoDAsync_v2", "hipMemcpyAsync", "cuMemcpyDtoD_v2",
    "cudaLaunchKernel", "cudaStreamWaitEvent", "cudaEventQuery", "cudaMemsetAsync", "cudaFreeAsync", "cudaFreeHost", "",
    "cudaDeviceSynchronizeNot", "my_cudaMemcpy",
])  # fmt: skip
def test_these_do_not(name: str) -> None:
    made = SyntheticTrace()
    made.call(name, 0, 7)
    assert total_syncs(made.build(), None) == ()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(1, 3)), max_size=12))
def test_outermost_like_a_plain_loop(done: list[tuple[int, int, int]]) -> None:
    """Calls of one thread nest; if they overlap otherwise, the one that begins first counts."""
    made = SyntheticTrace()
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
    assert np.flatnonzero(mark_outermost(calls, rows)).tolist() == sorted(truth)


@pytest.mark.parametrize(
    ("direction", "pageable", "copy", "waits"),
    [
        (CopyKind.DEVICE_TO_HOST, 1, (900, 990), True),  # the call returns at 1,000
        (CopyKind.DEVICE_TO_HOST, UNKNOWN, (900, 990), True),  # as ROCm tells of it
        (CopyKind.HOST_TO_DEVICE, 1, (200, 1_080), True),  # staged: the last part is still on its way
        (CopyKind.HOST_TO_DEVICE, 1, (1_001, 1_010), False),
        (CopyKind.HOST_TO_DEVICE, 1, (990, 1_020), False),
        (CopyKind.DEVICE_TO_HOST, 0, (900, 990), False),  # pinned: over by chance
        (CopyKind.DEVICE_TO_DEVICE, UNKNOWN, (900, 990), False),
    ],
)
def test_an_asynchronous_copy_that_keeps_the_host_waits(
    direction: CopyKind, pageable: int, copy: tuple[int, int], waits: bool
) -> None:
    made = SyntheticTrace()
    call = made.call("cudaMemcpyAsync_v3020", 0, 1_000)
    made.activity("Memcpy", *copy, kind=ActivityKind.MEMCPY, copy=direction, pageable=pageable, call=call)
    made.call("cudaMemcpyAsync", 2_000, 2_010)
    made.call("cudaStreamSynchronize", 2_010, 2_040)
    found = [(total.name, total.count, total.total_ns) for total in total_syncs(made.build(), None)]
    expected = [("cudaMemcpyAsync (open while its copy ran)", 1, 1_000)] * waits
    assert found == [*expected, ("cudaStreamSynchronize", 1, 30)]


def test_a_copy_that_waits_by_its_name_counts_once() -> None:
    made = SyntheticTrace()
    call = made.call("hipMemcpyWithStream", 0, 100)
    made.activity(
        "CopyHostToDevice", 50, 90, kind=ActivityKind.MEMCPY, copy=CopyKind.HOST_TO_DEVICE, pageable=1, call=call
    )
    assert total_syncs(made.build(), None) == (SyncTotal(name="hipMemcpyWithStream", count=1, total_ns=100),)


def test_real_traces_wait_in_copies_from_pageable_memory() -> None:
    """PyTorch's ``.cpu()`` and ``.item()``: a copy of 192 bytes blocks the host until the device reaches it."""
    folder = find_shared("data", "kineto", "v100_dlrm_8ranks", "worker0_step_12.1694128201545.pt.trace.json").parent
    for path in sorted(folder.iterdir()):
        (held,) = (total for total in total_syncs(read_kineto(path), None) if "Memcpy" in total.name)
        assert (held.name, held.count) == ("cudaMemcpyAsync (open while its copy ran)", 2)
        assert held.total_ns == 903_000 or "worker0" not in path.name
