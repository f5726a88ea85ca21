"""Totals by kernel name and by direction of copies."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.facts.trace import ActivityKind, CopyKind
from distprof.facts.trace_summary import Category, CopyTotal, KernelTotal
from distprof.traces.reduce.kernels import MAX_KERNELS, SMALL_NS, total_copies, total_kernels
from tests.traces.reduce.synthetic_traces import SyntheticTrace

GEMM = "volta_sgemm_128x64_tn"


def test_by_hand() -> None:
    made = SyntheticTrace()
    made.activity(GEMM, 100, 100 + SMALL_NS)
    made.activity(GEMM, 20_000, 20_000 + SMALL_NS - 1, device=1)
    made.activity(GEMM, 90_000, 150_000)
    made.activity("Memcpy HtoD", 95_000, 95_500, kind=ActivityKind.MEMCPY)
    made.activity("graph", 99_999, 110_000, kind=ActivityKind.GRAPH)
    trace = made.build()
    gemm = KernelTotal(
        name=GEMM, category=Category.MATMUL, precision="fp32", count=3, total_ns=79_999, min_ns=9_999, max_ns=60_000,
        small_count=1,
    )  # fmt: skip
    graph = KernelTotal(
        name="graph", category=Category.OTHER, precision=None, count=1, total_ns=10_001, min_ns=10_001, max_ns=10_001,
        small_count=0,
    )  # fmt: skip
    copy = KernelTotal(
        name="Memcpy HtoD", category=Category.COPY, precision=None, count=1, total_ns=500, min_ns=500, max_ns=500,
        small_count=1,
    )  # fmt: skip
    assert total_kernels(trace, None) == (gemm, graph, copy)
    inside = total_kernels(trace, np.array([True, True, False, True, False]))
    assert [(total.name, total.count, total.total_ns) for total in inside] == [
        (GEMM, 2, 19_999),
        ("Memcpy HtoD", 1, 500),
    ]
    assert total_kernels(trace, np.zeros(5, dtype=bool)) == ()
    assert total_kernels(SyntheticTrace().build(), None) == ()


def test_rare_names_are_summed_up_by_category_and_nothing_is_lost() -> None:
    made = SyntheticTrace()
    for number in range(MAX_KERNELS + 30):
        name = f"triton_poi_fused_{number}" if number % 3 else f"triton_mm_{number}"
        made.activity(name, number, number + 1000 + number)
        made.activity(name, number, number + 10)
    totals = total_kernels(made.build(), None)
    kept = {total.name: total for total in totals}
    assert len(totals) == MAX_KERNELS + 2
    assert sum(total.count for total in totals) == 2 * (MAX_KERNELS + 30)
    assert sum(total.total_ns for total in totals) == sum(1010 + number for number in range(MAX_KERNELS + 30))
    rest = kept["(other matmul kernels)"]
    assert (rest.count, rest.min_ns, rest.max_ns, rest.category) == (20, 10, 1027, Category.MATMUL)
    assert kept["(other elementwise kernels)"].count == 40
    assert [total.total_ns for total in totals] == sorted((total.total_ns for total in totals), reverse=True)
    assert "triton_poi_fused_29" not in kept
    assert kept["triton_mm_30"].total_ns == 1040


def test_copies() -> None:
    made = SyntheticTrace()
    copy = {"kind": ActivityKind.MEMCPY, "copy": CopyKind.HOST_TO_DEVICE}
    made.activity("a", 0, 10, size_bytes=100, pageable=1, **copy)
    made.activity("b", 20, 25, size_bytes=50, pageable=1, **copy)
    made.activity("c", 30, 90, size_bytes=7, pageable=0, **copy)
    made.activity("d", 95, 99, **copy)
    made.activity("d", 95, 97, size_bytes=9, **copy)
    made.activity("e", 99, 100, kind=ActivityKind.MEMCPY, size_bytes=8)
    made.activity("f", 99, 300, kind=ActivityKind.MEMSET, size_bytes=8)
    assert total_copies(made.build(), None) == (
        CopyTotal(direction="host to device", pageable=False, count=1, size_bytes=7, total_ns=60),
        CopyTotal(direction="host to device", pageable=True, count=2, size_bytes=150, total_ns=15),
        CopyTotal(direction="host to device", pageable=None, count=2, size_bytes=None, total_ns=6),
        CopyTotal(direction="other", pageable=None, count=1, size_bytes=8, total_ns=1),
    )
    assert [total.count for total in total_copies(made.build(), np.arange(7) == 1)] == [1]
    assert total_copies(made.build(), np.arange(7) == 6) == ()
    assert total_copies(SyntheticTrace().build(), None) == ()


@pytest.mark.parametrize(("kind", "words"), [
    (CopyKind.DEVICE_TO_HOST, "device to host"), (CopyKind.DEVICE_TO_DEVICE, "device to device"),
    (CopyKind.PEER_TO_PEER, "peer to peer"), (CopyKind.HOST_TO_HOST, "host to host"), (CopyKind.OTHER, "other"),
    (CopyKind.NONE, "other"),
])  # fmt: skip
def test_directions(kind: CopyKind, words: str) -> None:
    made = SyntheticTrace()
    made.activity("copy", 0, 10, kind=ActivityKind.MEMCPY, copy=kind)
    assert [total.direction for total in total_copies(made.build(), None)] == [words]


@given(
    done=st.lists(st.tuples(st.sampled_from(["a", "b", GEMM]), st.integers(0, 50), st.integers(-3, 20_000))),
    window=st.tuples(st.integers(-5, 60), st.integers(0, 60)),
)
def test_like_a_plain_loop(done: list[tuple[str, int, int]], window: tuple[int, int]) -> None:
    made = SyntheticTrace()
    lengths: dict[str, list[int]] = defaultdict(list)
    for name, begin, length in done:
        made.activity(name, begin, begin + length)
        if window[0] <= begin < sum(window):
            lengths[name].append(max(length, 0))
    trace = made.build()
    found = total_kernels(trace, (trace.gpu.begin_ns >= window[0]) & (trace.gpu.begin_ns < sum(window)))
    assert {total.name: (total.count, total.total_ns, total.min_ns, total.max_ns) for total in found} == {
        name: (len(values), sum(values), min(values), max(values)) for name, values in lengths.items()
    }
    assert {total.name: total.small_count for total in found} == {
        name: sum(value < SMALL_NS for value in values) for name, values in lengths.items()
    }
