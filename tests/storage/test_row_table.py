"""The rows of all ranks in one table, without a copy, where all have the same steps."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, ROW_WIDTH
from distprof.storage.match_collectives import align_rows
from distprof.storage.row_table import RowTable, find_table


def make_rows(steps: list[int], rank: int) -> FloatArray:
    rows = np.full((len(steps), ROW_WIDTH), float(rank))
    rows[:, COLUMN["step"]] = steps
    return rows


def place(*own: FloatArray) -> list[FloatArray]:
    table = RowTable(len(own))
    return [table.place(position, rows) for position, rows in enumerate(own)]


def test_rows_with_the_same_steps_are_the_runs_own() -> None:
    own = place(*(make_rows([0, 1, 5], rank) for rank in range(3)))
    axis, rows, notes = align_rows(own)
    assert axis.tolist() == [0, 1, 5] and notes == ()
    assert rows.base is own[0].base and rows[:, 0, -1].tolist() == [0, 1, 2]
    assert rows[:, :, -1].flags.c_contiguous and rows[:, 0, COLUMN["step"]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("third", [[0, 1], [0, 1, 6], [0, 1, 5, 6], []])
def test_other_steps_are_aligned_as_ever(third: list[int]) -> None:
    made = [make_rows(steps, rank) for rank, steps in enumerate([[0, 1, 5], [0, 1, 5], third])]
    own = place(*made)
    assert own[1].base is own[0].base and (own[2].base is own[0].base) == (len(third) == 3)
    for found, expected in zip(align_rows(own), align_rows(made), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_ranks_that_are_left_out_or_in_another_order_are_in_no_table() -> None:
    own = place(*(make_rows([0, 1], rank) for rank in range(3)))
    found = find_table(own)
    assert found is not None and found.base is own[0].base
    np.testing.assert_array_equal(found, np.stack(own))
    assert find_table(own[:2]) is None and find_table([own[1], own[0], own[2]]) is None and find_table([]) is None
    assert find_table([rows.copy() for rows in own]) is None


def test_what_no_memory_has_room_for_stays_where_it_is() -> None:
    rows = make_rows([0], 0)
    assert RowTable(1 << 40).place(0, rows) is rows
