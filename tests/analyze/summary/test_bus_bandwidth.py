"""Algorithm and bus bandwidth: by hand, of ideal rings of any size, and what is not known is not 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.analyze.summary.communication import report_bandwidths
from distprof.facts.run import Clock, CollectiveKind, Collectives, Phase, Run
from distprof.report.report import BandwidthReport
from tests.analyze.device_tables import make_device_run, make_table

REDUCE, GATHER, SCATTER, EXCHANGE, OTHER = (
    CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL,
    CollectiveKind.OTHER,
)  # fmt: skip
BY_HAND = Collectives(
    group="default", ranks=np.arange(2), size=2, kinds=(REDUCE, REDUCE), phases=(Phase.BACKWARD,) * 2,
    sizes_bytes=(1000, 3000), steps=np.array([1]), clock=Clock.DEVICE, exposed_ns=np.zeros((2, 1, 2)),
    arrival_ns=np.array([[[100.0, 150.0]], [[9000.0, 9180.0]]]),
    end_ns=np.array([[[200.0, 500.0]], [[9060.0, 9365.0]]]),
)  # fmt: skip
"""Clocks 8,900 ns apart or so. The first: 100 and 60 ns. The second begins at 200, after the first, and at 9180."""


def report(run: Run) -> list[BandwidthReport]:
    return report_bandwidths(choose_measured_steps(run))


def test_bandwidths_by_hand() -> None:
    first, second = report(make_device_run(BY_HAND))
    assert (first.transfer_ns, second.transfer_ns) == (60, 185)  # 9060 - 9000; 9365 - 9180, and 300 on rank 0
    assert first.algorithm_bytes_per_s == pytest.approx(1000 / 60e-9)
    assert second.algorithm_bytes_per_s == pytest.approx(3000 / 185e-9)
    assert second.bus_bytes_per_s == pytest.approx(3000 / 185e-9)  # 2 (2 - 1) / 2 = 1
    assert (first.group, first.kind, first.least_bytes, first.most_bytes) == ("default", "all_reduce", 1000, 1000)
    assert (first.num_ranks, first.hosts, first.count, first.members_missing) == (2, ("host-0", "host-1"), 1, 0)
    assert analyze(make_device_run(BY_HAND)).bandwidths == (first, second)


@settings(max_examples=30, deadline=None)
@given(num_ranks=st.integers(2, 64), bus=st.floats(1e8, 4e11), seed=st.integers(0, 99))
def test_the_bus_bandwidth_of_an_ideal_ring_is_that_of_its_links_however_many_ranks_it_has(
    num_ranks: int, bus: float, seed: int
) -> None:
    """Links that carry ``bus`` bytes/s each way, of which a ring sends 2 (n - 1) / n or (n - 1) / n of the buffer."""
    size, kinds, sent = 2**28, (REDUCE, GATHER, SCATTER, EXCHANGE), np.array([2, 1, 1, 1])
    took_ns = sent * (num_ranks - 1) / num_ranks * size / bus * 1e9
    table = make_table(took_ns, kinds=kinds, sizes=(size,) * 4, ranks=range(num_ranks), seed=seed)
    found = report(make_device_run(table, num_ranks=num_ranks))
    assert [item.kind for item in found] == [kind.value for kind in kinds]
    assert [item.bus_bytes_per_s for item in found] == pytest.approx([bus] * 4, rel=1e-3)
    assert [item.algorithm_bytes_per_s for item in found] == pytest.approx(size / took_ns * 1e9, rel=1e-3)


def test_a_row_is_the_median_of_the_collectives_of_one_size_in_steps_that_count() -> None:
    took_ns = np.full((10, 3), 1e6)
    took_ns[:3] = 8e6  # a disturbed tenth of a second
    run = make_device_run(make_table(took_ns, kinds=(REDUCE,) * 3, sizes=(8_000_000, 4_000_000, 8_000_000)))
    large, small = report(run)
    assert (large.count, small.count) == (20, 10)
    assert large.bus_bytes_per_s == pytest.approx(8e9) and small.bus_bytes_per_s == pytest.approx(4e9)
    warm_up = structs.replace(run.device_collectives[0], steps=np.arange(10))
    assert report(structs.replace(run, device_collectives=(warm_up,)))[0].count == 18


def test_tables_of_one_group_are_one_and_those_of_others_are_not() -> None:
    first = make_table(1e6, kinds=(REDUCE,), sizes=(8_000_000,), steps=range(1, 6))
    second = make_table(1e6, kinds=(REDUCE,) * 2, sizes=(8_000_000, 10), steps=range(6, 11))
    other = make_table(2e6, kinds=(REDUCE,), sizes=(8_000_000,), ranks=(2, 3))
    found = report(make_device_run(first, second, other, num_ranks=4, ranks_per_host=2))
    assert [(item.count, item.least_bytes, item.hosts) for item in found] == [
        (10, 8_000_000, ("host-0",)), (5, 10, ("host-0",)), (10, 8_000_000, ("host-1",)),
    ]  # fmt: skip


def test_many_sizes_share_rows_by_powers_of_two() -> None:
    sizes = (5, 6, 7, 8, 9, 12, 14, 15, 16)
    took_ns = np.array(sizes) * 1e5  # 10 B/ms, whatever the size
    found = report(make_device_run(make_table(took_ns, kinds=(GATHER,) * 9, sizes=sizes)))
    assert [(item.least_bytes, item.most_bytes, item.count) for item in found] == [
        (5, 7, 30),
        (8, 15, 50),
        (16, 16, 10),
    ]
    assert [item.algorithm_bytes_per_s for item in found] == pytest.approx([1e4] * 3)
    few = report(make_device_run(make_table(took_ns[:8], kinds=(GATHER,) * 8, sizes=sizes[:8])))
    assert [item.least_bytes for item in few] == [*sizes[:8]]


def test_what_is_not_known_is_none() -> None:
    told = make_table(1e6, kinds=(REDUCE, OTHER, GATHER), sizes=(8, 8, None))
    reduced, other, gathered = report(make_device_run(told))
    assert reduced.bus_bytes_per_s is not None and reduced.count == 10
    # Whoever is root of a broadcast may have left before the last one came.
    assert (other.count, other.transfer_ns, other.algorithm_bytes_per_s, other.bus_bytes_per_s) == (0, None, None, None)
    assert gathered.transfer_ns == pytest.approx(1e6) and gathered.least_bytes is None
    assert (gathered.algorithm_bytes_per_s, gathered.bus_bytes_per_s) == (None, None)
    missing = make_table(1e6, kinds=(REDUCE,), sizes=(8,), size=3)  # the third may have come last
    (partly,) = report(make_device_run(missing))
    assert (partly.count, partly.transfer_ns, partly.bus_bytes_per_s, partly.members_missing) == (0, None, None, 1)
    unseen = structs.replace(told, end_ns=np.where(np.arange(3) == 0, np.nan, told.end_ns))
    first, _, last = report(make_device_run(unseen))
    assert first.transfer_ns is None and last.transfer_ns == pytest.approx(1e6)  # which follows one that was seen
    alone = make_table(1e6, kinds=(REDUCE,), sizes=(8,), ranks=(0,))
    assert report(make_device_run(alone)) == [] and analyze(make_device_run()).bandwidths == ()
