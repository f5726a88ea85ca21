"""Transfers that share a pipe, by hand, and that no bandwidth is lost."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulate.bandwidth import Pipe


def run(pipe: Pipe[int], transfers: list[tuple[float, float]]) -> list[float]:
    """When each of some transfers (begin, work; in order of begin) ends."""
    ends = [0.0] * len(transfers)
    left = list(enumerate(transfers))
    while left or pipe.find_end() is not None:
        end_ns = pipe.find_end()
        if left and (end_ns is None or left[0][1][0] < end_ns):
            token, (begin_ns, work_ns) = left.pop(0)
            pipe.add(begin_ns, work_ns, token)
            continue
        assert end_ns is not None
        for token in pipe.take_ended(end_ns):
            ends[token] = end_ns
    return ends


def test_two_transfers_by_hand() -> None:
    """The first has 5 left when the second begins; at half the rate it ends at 15; the second then has 5 left."""
    assert run(Pipe(1.0, 1.0), [(0, 10), (5, 10)]) == [15, 20]
    assert run(Pipe(2.0, 1.0), [(0, 10), (5, 10)]) == [10, 15]  # room for both
    assert run(Pipe(2.0, 1.25), [(0, 10)]) == [8]  # one alone is a quarter faster


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_equal_transfers_take_as_many_times_as_long(count: int) -> None:
    assert run(Pipe(1.0, 1.0), [(3, 7)] * count) == [pytest.approx(3 + 7 * count)] * count


def test_a_busy_pipe_wastes_nothing_and_favours_nobody() -> None:
    """The last transfer ends when all the work is done at full rate; whoever began earlier with less ends earlier."""
    draws = np.random.default_rng(1)
    begins = np.sort(draws.uniform(0, 10, 30))
    works = draws.uniform(1, 5, 30)
    ends = np.array(run(Pipe(1.0, 1.0), list(zip(begins.tolist(), works.tolist(), strict=True))))
    assert ends.max() == pytest.approx(begins[0] + works.sum())
    assert (ends >= begins + works).all()
    earlier = (begins[:, None] <= begins) & (works[:, None] <= works)
    assert (ends[:, None] <= ends + 1e-9)[earlier].all()
