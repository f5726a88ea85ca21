"""Clocks of traces, compared by when ranks left their common collectives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.facts.arrays import FloatArray
from distprof.facts.run import CollectiveKind, Collectives, Phase
from distprof.traces.align_clocks import align_clocks

SECOND = 10**9


def make_table(end_ns: FloatArray, kind: CollectiveKind = CollectiveKind.ALL_REDUCE) -> Collectives:
    """Ends ``[num_ranks, num_steps]``, one collective per step."""
    ends = end_ns[:, :, None]
    return Collectives(
        group="0", ranks=np.arange(len(end_ns)), size=len(end_ns), kinds=(kind,), phases=(Phase.BACKWARD,),
        sizes_bytes=(8,), steps=np.arange(end_ns.shape[1]), arrival_ns=ends - 5, end_ns=ends, exposed_ns=ends * 0,
    )  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.integers(-3 * SECOND, 3 * SECOND), st.floats(-50e-6, 50e-6), st.integers(0, 20_000), st.integers(0, 1000))
def test_the_bound_holds_every_end_whatever_offset_drift_and_noise(
    offset_ns: int, drift_ratio: float, noise_ns: int, seed: int
) -> None:
    true_ns = np.linspace(10 * SECOND, 70 * SECOND, 40)
    noise = np.random.default_rng(seed).integers(-noise_ns, noise_ns + 1, 40)
    table = make_table(np.stack([true_ns, true_ns + offset_ns + drift_ratio * true_ns + noise]))
    _, first, second = align_clocks([0, 1], [None, None], [table])
    middle_ns = (first.at_ns + second.at_ns) / 2
    assert abs((first.offset_ns + second.offset_ns) / 2 - offset_ns - drift_ratio * middle_ns) <= noise_ns + 2
    rate = (second.offset_ns - first.offset_ns) / (second.at_ns - first.at_ns)
    line = first.offset_ns + (true_ns - first.at_ns) * rate
    assert (np.abs(table.end_ns[1, :, 0] - table.end_ns[0, :, 0] - line) <= first.bound_ns + 2).all()


def test_ranks_of_one_host_share_its_clock_and_need_no_collective() -> None:
    readings = align_clocks([0, 1], ["a", "a"], [])
    assert [(reading.offset_ns, reading.bound_ns) for reading in readings] == [(0, 0), (0, 0)]


@pytest.mark.parametrize("kind", [CollectiveKind.OTHER, CollectiveKind.ALL_REDUCE])
def test_exchanges_that_nobody_leaves_together_and_few_ends_tell_nothing(kind: CollectiveKind) -> None:
    few = 20 if kind is CollectiveKind.OTHER else 2
    assert align_clocks([0, 1], [None, None], [make_table(np.ones((2, few)), kind)]) == []
