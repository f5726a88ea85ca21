"""Clocks of several hosts: the offset at any time, and that the truth is never farther off than the bound says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.analyze.clocks.clocks import UNKNOWN, ClockMap, map_clocks
from distprof.facts.run import ClockReading
from tests.factories import make_run

S, US = 10**9, 10**3
BASE_NS = 40 * 86_400 * S
"""A host that was started forty days ago."""


def make_map(readings: list[tuple[int, int, int, int]], hosts: tuple[str, ...] = ("a", "b")) -> ClockMap:
    """Clocks of one rank per host from (rank, at, offset, bound), ns."""
    readings = [ClockReading(rank=r, at_ns=at, offset_ns=o, bound_ns=b) for r, at, o, b in readings]  # type: ignore[misc]
    infos = {rank: {"host": host} for rank, host in enumerate(hosts)}
    return map_clocks(make_run(num_ranks=len(hosts), meta={"clock_readings": tuple(readings)}, infos=infos))


def test_the_offset_changes_evenly_between_two_readings() -> None:
    """Rank 1 is 3 s ahead and gains 50 us a second; by hand: 3 s + 500 us after 10 s, and 9 s of its own are 9 s."""
    clocks = make_map([(1, BASE_NS, 3 * S, 40 * US), (1, BASE_NS + 100 * S, 3 * S + 5000 * US, 80 * US)])
    assert clocks.clock.tolist() == [0, 1] and clocks.comparable(0, 1)
    at = np.array([[BASE_NS, BASE_NS + 10 * S], [BASE_NS + 100 * S, BASE_NS + 110 * S]])
    offset = [[3 * S, 3 * S + 500 * US], [3 * S + 5000 * US, 3 * S + 5500 * US]]
    assert clocks.offset_ns(1, at).tolist() == offset
    assert clocks.to_reference(1, at + offset).tolist() == at.tolist()
    # 40 us, then 44 us and 10 us for a rate that need not be even, then 80 us, then beyond: 0.1 * 40 + 1.1 * 80 + 10
    assert clocks.bound_ns(1, at) == pytest.approx(np.array([[40, 54], [80, 102]]) * US, rel=2e-4)
    assert clocks.offset_ns(0, at).tolist() == clocks.bound_ns(0, at).tolist() == [[0, 0], [0, 0]]
    assert clocks.to_reference(0, at).tolist() == at.tolist()


def test_the_bound_over_a_time_is_the_largest_in_it() -> None:
    clocks = make_map([(1, BASE_NS, 3 * S, 40 * US), (1, BASE_NS + 100 * S, 3 * S, 80 * US)])
    # half-way, (40 + 80) / 2 us and 50 us for a rate that need not be even; at 20 s, 48 us and 20 us
    assert clocks.worst_bound_ns(1, BASE_NS, BASE_NS + 100 * S) == pytest.approx(110 * US, rel=2e-4)
    assert clocks.worst_bound_ns(1, BASE_NS, BASE_NS + 20 * S) == pytest.approx(68 * US, rel=2e-4)
    assert clocks.worst_bound_ns(0, BASE_NS, BASE_NS + 100 * S) == 0
    assert make_map([]).worst_bound_ns(1, BASE_NS, BASE_NS + S) == np.inf


def test_one_reading_holds_for_ever_and_is_trusted_less_and_less() -> None:
    clocks = make_map([(1, BASE_NS, -3 * S, 40 * US)])
    at = BASE_NS + np.array([-1, 0, 10]) * S
    assert clocks.offset_ns(1, at).tolist() == [-3 * S] * 3
    assert clocks.to_reference(1, at - 3 * S).tolist() == at.tolist()
    assert clocks.bound_ns(1, at) == pytest.approx(np.array([140, 40, 1040]) * US, rel=2e-4)
    assert float(clocks.to_reference(1, BASE_NS)) == BASE_NS + 3 * S


def test_ranks_of_one_host_are_compared_exactly_however_far_rank_0_is() -> None:
    reading = (BASE_NS, 3 * S, 40 * US)
    clocks = make_map([(0, BASE_NS, 0, 0), (1, BASE_NS, 0, 0), (2, *reading), (3, *reading)], hosts=(*"aa", *"bb"))
    assert clocks.clock.tolist() == [0, 0, 1, 1]
    for first, second in ((0, 1), (2, 3), (0, 0)):
        assert float(clocks.pair_bound_ns(first, second, BASE_NS)) == 0
    assert float(clocks.pair_bound_ns(1, 2, BASE_NS)) == pytest.approx(40 * US, rel=2e-4)
    assert float(clocks.bound_ns(1, BASE_NS + 3600 * S)) == 0


def test_without_readings_one_host_has_one_clock_and_several_are_not_compared() -> None:
    alone = make_map([], hosts=("a", "a"))
    assert alone.clock.tolist() == [0, 0] and alone.to_reference(1, [5.0]).tolist() == [5.0]
    clocks = make_map([], hosts=("a", "b"))
    assert clocks.clock.tolist() == [0, UNKNOWN] and not clocks.comparable(0, 1) and clocks.comparable(0)
    assert np.isnan([clocks.offset_ns(1, [BASE_NS])[0], clocks.to_reference(1, [BASE_NS])[0]]).all()
    assert clocks.bound_ns(1, [BASE_NS]).tolist() == clocks.pair_bound_ns(0, 1, [BASE_NS]).tolist() == [np.inf]


def test_a_rank_that_was_not_read_is_unknown_beside_ranks_that_were() -> None:
    clocks = make_map([(1, BASE_NS, 0, 0)], hosts=("a", "a", "a"))
    assert clocks.clock.tolist() == [0, 0, UNKNOWN] and not clocks.comparable(0, 1, 2)


def test_readings_that_contradict_each_other_do_not_turn_time_back() -> None:
    """A second reading of the same moment, and one after which the rank's clock would have gone back."""
    readings = [(0, 7, 90), (0, 3, 5), (S, -2 * S, 5), (2 * S, 3, 5)]
    clocks = make_map([(1, BASE_NS + at, offset, bound) for at, offset, bound in readings])
    assert clocks.offset_ns(1, BASE_NS + S * np.arange(3)).tolist() == [3, 3, 3]


@given(
    offset_ns=st.integers(-10 * 86_400 * S, 10 * 86_400 * S) | st.just(3 * S),
    drift_ratio=st.floats(-50e-6, 50e-6),
    delays_ns=st.tuples(*[st.tuples(st.integers(1, 2_000 * US), st.integers(1, 2_000 * US))] * 2),
    lasted_ns=st.integers(S // 1000, 3600 * S),
    readings=st.integers(1, 2),
)
def test_the_truth_lies_within_the_bound(
    offset_ns: int, drift_ratio: float, delays_ns: tuple[tuple[int, int], ...], lasted_ns: int, readings: int
) -> None:
    """A clock that is off and drifts, read through a network whose two ways are as unequal as they like."""

    def show(true_ns: np.ndarray | int) -> np.ndarray:
        """What the rank's clock shows, less the base, so that no nanosecond is lost to rounding."""
        return np.asarray(true_ns) + offset_ns + np.asarray(true_ns) * drift_ratio

    read = []
    for begin_ns, (there_ns, back_ns) in zip((0, lasted_ns)[:readings], delays_ns, strict=False):
        middle_ns = begin_ns + (there_ns + back_ns) // 2
        stamp_ns = round(float(show(begin_ns + there_ns)))
        drifted_ns = round(50e-6 * (there_ns + back_ns))
        bound_ns = (there_ns + back_ns) // 2 + drifted_ns + 1
        read.append((1, BASE_NS + middle_ns, stamp_ns - middle_ns, bound_ns))
    clocks = make_map(read)
    true_ns = np.linspace(-lasted_ns, 2 * lasted_ns, 31)
    at_ns, own_ns = BASE_NS + true_ns, BASE_NS + show(true_ns)
    bound_ns = clocks.bound_ns(1, at_ns) + 2  # float64 holds these times to a nanosecond
    assert (np.abs(clocks.offset_ns(1, at_ns) - (show(true_ns) - true_ns)) <= bound_ns).all()
    there = clocks.to_reference(1, own_ns)
    assert (np.abs(there - at_ns) <= clocks.bound_ns(1, there) + 2).all()
