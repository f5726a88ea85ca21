"""Recorded cycles, run again: an example by hand, and what must hold for any."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.replay import replay
from distprof.facts.run import OWN_PHASES, Clock
from tests.analyze.synthetic_cycles import measure_saved

EVERYONE = np.arange(2)


def make_cycles(work_ns: list[list[float]], transfer_ns: list[float], is_waited_on: list[bool]) -> SyncCycles:
    """One cycle of two ranks; the gaps by rank and collective."""
    gaps = np.array(work_ns, dtype=float)[:, None, :]
    return SyncCycles(
        source="collectives", clock=Clock.HOST, positions=EVERYONE, steps=np.arange(1),
        groups=tuple((("default", EVERYONE),) for _ in transfer_ns), is_waited_on=np.array(is_waited_on), work_ns=gaps,
        blocked_ns=np.zeros_like(gaps), transfer_ns=np.broadcast_to(np.array(transfer_ns, dtype=float), gaps.shape),
        start_ns=np.zeros((2, 1)), phase_ns=np.zeros((2, 1, len(OWN_PHASES))),
    )  # fmt: skip


def test_two_buckets_by_hand() -> None:
    """Bucket 0 leaves when rank 1 is there, at 12, and bucket 1 at 42; each takes 5."""
    cycles = make_cycles([[10, 10], [12, 30]], [5, 5], [False, True])
    assert replay(cycles).tolist() == [47]
    punctual = cycles.work_ns.copy()
    punctual[1, 0, 1] = 10
    assert replay(cycles, work_ns=punctual).tolist() == [27]
    assert replay(cycles, transfer_ns=np.zeros_like(cycles.transfer_ns)).tolist() == [42]


def test_a_bucket_queues_behind_the_one_before() -> None:
    cycles = make_cycles([[10, 1], [10, 2]], [50, 5], [False, True])
    assert replay(cycles).tolist() == [65]  # 10 + 50 + 5, though the last arrival was at 12


def test_a_wait_in_between_makes_the_ranks_start_together() -> None:
    cycles = make_cycles([[10, 20], [30, 5]], [1, 1], [True, True])
    assert replay(cycles).tolist() == [30 + 1 + 20 + 1]


def test_groups_wait_for_their_own_members_only() -> None:
    cycles = make_cycles([[10, 5], [40, 5]], [1, 1], [True, True])
    apart = (("a", np.array([0])), ("b", np.array([1])))
    cycles = structs.replace(cycles, groups=(apart, (("default", EVERYONE),)))
    slow_first = cycles.transfer_ns.copy()
    slow_first[0, :, 0] = 100  # group a alone
    assert replay(cycles).tolist() == [40 + 1 + 5 + 1]
    assert replay(cycles, transfer_ns=slow_first).tolist() == [10 + 100 + 5 + 1]


def test_ranks_that_take_turns_cost_nothing_and_never_less() -> None:
    """Each of three ranks has nothing to do before one of three buckets and 10 before the others. All of them come to
    the last one at 20; the medians before each add up to 30, which no rank has."""
    gaps = np.array([[0, 10, 10], [10, 0, 10], [10, 10, 0]], dtype=float)[:, None, :]
    everyone = np.arange(3)
    usual = make_cycles([[0], [0]], [0], [True])
    cycles = structs.replace(
        usual, positions=everyone, groups=((("default", everyone),),) * 3, is_waited_on=np.array([False, False, True]),
        work_ns=gaps, blocked_ns=np.zeros_like(gaps), transfer_ns=np.zeros_like(gaps), start_ns=np.zeros((3, 1)),
    )  # fmt: skip
    assert replay(cycles).tolist() == replay(cycles, median_arrivals=True).tolist() == [20]
    assert replay(cycles, work_ns=np.broadcast_to(np.median(gaps, axis=0), gaps.shape)).tolist() == [30]
    assert measure_saved(cycles, median_arrivals=True).tolist() == [0]


def test_a_rank_that_leaves_late_and_has_less_to_do_is_not_late() -> None:
    """Rank 1 leaves the first wait 8 later, and both come to the second at 30: being punctual there saves nothing."""
    cycles = make_cycles([[10, 15], [10, 7]], [5, 5], [True, True])
    late = cycles.transfer_ns.copy()
    late[1, :, 0] = 13
    cycles = structs.replace(cycles, transfer_ns=late)
    assert replay(cycles).tolist() == [35]
    assert measure_saved(cycles, median_arrivals=True).tolist() == [0]


def test_punctual_ranks_come_when_the_middle_one_does() -> None:
    """Three ranks come at 10, 14 and 30, and the data take 5."""
    usual = make_cycles([[0], [0]], [0], [True])
    gaps, everyone = np.array([10.0, 14, 30]).reshape(3, 1, 1), np.arange(3)
    cycles = structs.replace(
        usual, positions=everyone, groups=((("default", everyone),),), work_ns=gaps, blocked_ns=np.zeros_like(gaps),
        transfer_ns=np.full_like(gaps, 5.0), start_ns=np.zeros((3, 1)),
    )  # fmt: skip
    assert measure_saved(cycles, median_arrivals=True).tolist() == [16]


def test_a_cycle_ends_when_the_middle_rank_is_through_of_two_the_earlier() -> None:
    """Rank 1 leaves 100 late, which makes it late into the next cycle; on clocks nobody compared, it is shared."""
    known = structs.replace(
        make_cycles([[10], [10]], [5], [True]), start_ns=np.array([[0.0], [2.0]]),
        blocked_ns=np.array([[[5.0]], [[103.0]]]),
    )  # fmt: skip
    assert known.cycle_ns.tolist() == [15]
    unknown = structs.replace(known, start_ns=np.zeros((2, 1)))
    assert unknown.cycle_ns.tolist() == [64]


GAPS = st.lists(st.floats(0, 1e9), min_size=3, max_size=3)


TRANSFERS = st.lists(st.floats(0, 1e8), min_size=3, max_size=3)


@given(st.tuples(GAPS, GAPS), TRANSFERS, st.tuples(st.booleans(), st.booleans()), st.integers(0, 2))
def test_nobody_gains_by_more_work(
    gaps: tuple[list[float], list[float]], transfers: list[float], waits: tuple[bool, bool], at: int
) -> None:
    cycles = make_cycles(list(gaps), transfers, [*waits, True])
    whole = replay(cycles)
    assert replay(cycles, median_arrivals=True)[0] <= whole[0] * (1 + 1e-12)
    assert whole[0] >= max(sum(own) for own in gaps)
    assert whole[0] <= sum(max(pair) for pair in zip(*gaps, strict=True)) + sum(transfers) + 1
    more = cycles.work_ns.copy()
    more[0, 0, at] += 1e6
    longer = replay(cycles, work_ns=more)
    assert whole[0] <= longer[0] <= whole[0] + 1e6 + 1


def test_a_rank_that_leaves_its_own_group_late_begins_the_next_cycle_late() -> None:
    """All four ranks meet at first, and the pairs on their own at the end. Rank 0 is late by 20 before that, so its
    pair starts the next cycle 20 late and everybody waits for it. Without the delay nobody starts late."""
    gaps = np.zeros((4, 6, 2))
    gaps[:, :, 0], gaps[:, :, 1] = 10, 50
    gaps[0, :, 1] = 70
    everyone = np.arange(4)
    pairs = (("a", everyone[:2]), ("b", everyone[2:]))
    cycles = structs.replace(
        make_cycles([[0, 0]] * 2, [0, 0], [True, True]), positions=everyone, steps=np.arange(6),
        groups=((("default", everyone),), pairs), work_ns=gaps, blocked_ns=np.zeros_like(gaps),
        transfer_ns=np.full_like(gaps, 5.0), start_ns=np.tile(np.array([20.0, 20, 0, 0])[:, None], 6),
    )  # fmt: skip
    assert replay(cycles).tolist() == [20 + 10 + 5 + 50 + 5] * 6
    punctual = gaps.copy()
    punctual[0, :, 1] = 50
    assert replay(cycles, work_ns=punctual).tolist() == [10 + 5 + 50 + 5] * 6
    punctual[0, 1:, 1] = 70  # late from the second cycle on
    assert replay(cycles, work_ns=punctual).tolist() == [90, 70, 90, 90, 90, 90]
