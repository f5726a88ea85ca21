"""Matching the collectives of many ranks: what agrees becomes a table, and the first difference is described."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.facts.run import CollectiveKind, Phase
from distprof.storage.collective_records import GroupInfo, IssuedCollective, RankCollectives
from distprof.storage.match_collectives import match_collectives

WORLD = GroupInfo(name="default", ranks=None)
REDUCE, GATHER, OTHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.OTHER


def make_table(
    steps: list[int], kinds: list[CollectiveKind], *, sizes: list[int | None] | None = None, start_ns: float = 0.0,
    groups: list[GroupInfo] | None = None,
) -> RankCollectives:  # fmt: skip
    """Arrivals at ``start_ns`` + 1000 x step + index; ends 10 later, exposed 5."""
    infos = groups or [WORLD] * len(kinds)
    codes = {info: code for code, info in enumerate(dict.fromkeys(infos))}
    order = tuple(
        IssuedCollective(kind, codes[info], Phase.BACKWARD, size)
        for kind, info, size in zip(kinds, infos, sizes or [64] * len(kinds), strict=True)
    )
    arrival_ns = start_ns + 1000.0 * np.array(steps)[:, None] + np.arange(len(kinds))
    return RankCollectives(
        order=order, groups={code: info for info, code in codes.items()}, steps=np.array(steps),
        arrival_ns=arrival_ns, end_ns=arrival_ns + 10, exposed_ns=np.full_like(arrival_ns, 5),
    )  # fmt: skip


def test_steps_that_all_members_have_are_lined_up() -> None:
    tables = [[make_table([0, 1, 2, 5], [REDUCE, GATHER])], [make_table([1, 2, 3, 5], [REDUCE, GATHER], start_ns=100)]]
    (found,), warnings = match_collectives([2, 7], tables, np.array([0, 1, 2, 3, 5, 6]), world_size=9)
    assert warnings == ()
    assert (found.group, found.size, found.ranks.tolist()) == ("default", 9, [0, 1])
    assert found.kinds == (REDUCE, GATHER) and found.sizes_bytes == (64, 64) and set(found.phases) == {Phase.BACKWARD}
    assert found.steps.tolist() == [1, 2, 4]  # positions of 1, 2 and 5
    assert found.arrival_ns.tolist() == [
        [[1000, 1001], [2000, 2001], [5000, 5001]], [[1100, 1101], [2100, 2101], [5100, 5101]],
    ]  # fmt: skip
    np.testing.assert_array_equal(found.end_ns, found.arrival_ns + 10)
    assert np.all(found.exposed_ns == 5)


def test_sizes_that_are_not_known_part_nobody_and_are_no_0() -> None:
    known, unknown = (make_table([0], [REDUCE, GATHER], sizes=[size, 32]) for size in (64, None))
    for tables in ([[known], [unknown]], [[unknown], [unknown]]):
        (found,), warnings = match_collectives([0, 1], tables, np.array([0]), world_size=2)
        assert warnings == () and found.kinds == (REDUCE, GATHER) and found.sizes_bytes == (None, 32)
    (found,), _ = match_collectives([0, 1], [[known], [known]], np.array([0]), world_size=2)
    assert found.sizes_bytes == (64, 32)


def test_kinds_part_ranks_also_where_sizes_are_not_known() -> None:
    tables = [[make_table([0], [kind], sizes=[None])] for kind in (REDUCE, GATHER)]
    found, (warning,) = match_collectives([0, 1], tables, np.array([0]), world_size=2)
    assert found == () and "all_reduce on rank 0" in warning and "all_gather on rank 1" in warning
    assert "None" not in warning


def test_an_exchange_of_all_with_all_has_sizes_of_its_own_on_every_rank() -> None:
    tables = [[make_table([0], [CollectiveKind.ALL_TO_ALL], sizes=[size])] for size in (64, 100)]
    (found,), warnings = match_collectives([0, 1], tables, np.array([0]), world_size=2)
    assert warnings == () and found.kinds == (CollectiveKind.ALL_TO_ALL,) and found.sizes_bytes == (100,)


def test_groups_are_told_apart_whatever_their_codes() -> None:
    left, right = GroupInfo(name="part", ranks=(0, 1)), GroupInfo(name="part", ranks=(2, 3))
    tables = [
        [make_table([0], [REDUCE, GATHER], groups=[WORLD, left])],
        [make_table([0], [GATHER, REDUCE], groups=[left, WORLD])],  # the order between groups is each rank's own
        [make_table([0], [REDUCE, GATHER], groups=[WORLD, right])],
        [make_table([0], [REDUCE, GATHER], groups=[WORLD, right])],
    ]
    found, warnings = match_collectives([0, 1, 2, 3], tables, np.array([0]), world_size=4)
    assert warnings == ()
    assert [(item.group, item.ranks.tolist(), item.size) for item in found] == [
        ("default", [0, 1, 2, 3], 4), ("part", [0, 1], 2), ("part", [2, 3], 2),
    ]  # fmt: skip
    assert found[1].arrival_ns[:, 0, 0].tolist() == [1, 0]


def test_a_rank_that_tells_nothing_is_no_member_and_the_others_are_lined_up() -> None:
    tables = [[make_table([0], [REDUCE])], [], [make_table([0], [REDUCE])]]
    (found,), _ = match_collectives([0, 1, 2], tables, np.array([0]), world_size=3)
    assert found.ranks.tolist() == [0, 2] and found.size == 3
    assert match_collectives([], [], np.empty(0, dtype=np.int64), world_size=1) == ((), ())


def test_the_first_divergence_is_named_and_only_those_steps_are_left_out() -> None:
    usual, odd = [REDUCE, REDUCE, REDUCE, REDUCE], [REDUCE, REDUCE, REDUCE, GATHER]
    tables = [[make_table([6, 7, 8, 9], usual, sizes=[1, 2, 3, 4096])] for _ in range(3)]
    tables.append(
        [
            make_table([6], usual, sizes=[1, 2, 3, 4096]),
            make_table([7, 8], odd, sizes=[1, 2, 3, 64]),
            make_table([9], usual[:3], sizes=[1, 2, 3]),
        ]
    )
    (found,), (warning,) = match_collectives([0, 1, 2, 3], tables, np.arange(10), world_size=4)
    assert found.steps.tolist() == [6]
    assert warning == (
        "not the same collectives were seen on all ranks: step 7, group default: collective 3, counted from 0, is "
        "all_reduce of 4096 B on ranks 0-2 and all_gather of 64 B on rank 3; 3 steps are left out of all waits"
    )


def test_one_too_few_is_missing_and_sizes_count_except_in_exchanges() -> None:
    tables = [[make_table([0], [OTHER, REDUCE], sizes=[1, 8])], [make_table([0], [OTHER], sizes=[99])]]
    _, (warning,) = match_collectives([0, 1], tables, np.array([0]), world_size=2)
    assert "collective 1, counted from 0, is all_reduce of 8 B on rank 0 and missing on rank 1; 1 step is" in warning
    same = [[make_table([0], [OTHER], sizes=[1])], [make_table([0], [OTHER], sizes=[99])]]
    (found,), warnings = match_collectives([0, 1], same, np.array([0]), world_size=2)
    assert warnings == () and found.sizes_bytes == (99,)


def test_orders_that_change_between_steps_make_a_table_each() -> None:
    tables = [[make_table([0, 2], [REDUCE]), make_table([1], [REDUCE, REDUCE])] for _ in range(2)]
    found, warnings = match_collectives([0, 1], tables, np.arange(3), world_size=2)
    assert warnings == () and [item.steps.tolist() for item in found] == [[0, 2], [1]]


@pytest.mark.slow
def test_a_thousand_ranks_are_lined_up_in_memory() -> None:
    steps = list(range(1000))
    tables = [[make_table(steps, [REDUCE] * 4, start_ns=rank)] for rank in range(1024)]
    (found,), _ = match_collectives(list(range(1024)), tables, np.arange(1000), world_size=1024)
    assert found.arrival_ns.shape == (1024, 1000, 4) and found.arrival_ns[1023, 5, 2] == 1023 + 5000 + 2
