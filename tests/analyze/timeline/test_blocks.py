"""What is drawn of a lane: what lies on top, and what is too short to be seen."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.analyze.timeline.blocks import FINEST, MAX_BLOCKS, LaneBlock, fit_lanes, flatten, merge_short


def make(*spans: tuple[str, float, float]) -> list[LaneBlock]:
    return [LaneBlock(kind=kind, begin_ns=begin, end_ns=end) for kind, begin, end in spans]


def show(blocks: list[LaneBlock]) -> list[tuple[str, float, float]]:
    return [(block.kind, block.begin_ns, block.end_ns) for block in blocks]


def test_later_blocks_hide_earlier_ones() -> None:
    layers = make(("backward", 0, 100), ("forward", 120, 130), ("all_reduce", 40, 60), ("wait", 55, 125))
    assert show(flatten(layers)) == [
        ("backward", 0, 40), ("all_reduce", 40, 55), ("wait", 55, 125), ("forward", 125, 130),
    ]  # fmt: skip
    assert flatten(make(("wait", 5, 5))) == []


def test_short_neighbours_become_one_of_the_kind_with_the_most_time() -> None:
    blocks = make(("forward", 0, 3), ("data", 3, 8), ("data", 9, 10), ("backward", 10, 40), ("wait", 60, 61))
    merged = merge_short(blocks, 12)
    assert show(merged) == [("data", 0, 10), ("backward", 10, 40), ("wait", 60, 61)]
    assert [block.count for block in merged] == [3, 1, 1]


Spans = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 200)), min_size=1, max_size=200)


@given(Spans, st.integers(1, 500))
@settings(max_examples=60, deadline=None)
def test_merging_keeps_order_count_and_everything_long(gaps: list[tuple[int, int]], least: int) -> None:
    blocks, at = [], 0
    for gap, long in gaps:
        blocks.append(LaneBlock(kind="data", begin_ns=at + gap, end_ns=at + gap + long))
        at += gap + long
    merged = merge_short(blocks, least)
    assert sum(block.count for block in merged) == len(blocks)
    assert all(first.end_ns <= second.begin_ns for first, second in itertools.pairwise(merged))
    assert {(block.begin_ns, block.end_ns) for block in blocks if block.long_ns >= least} <= {
        (block.begin_ns, block.end_ns) for block in merged
    }
    assert len(merged) <= 4 * (at // least + 1)


def test_a_picture_has_a_bounded_number_of_blocks() -> None:
    lane = make(*((("data", "forward")[at % 2], at * 10.0, at * 10.0 + 9) for at in range(5_000)))
    whole = fit_lanes([lane] * 8, 50_000)
    assert sum(len(blocks.kinds) for blocks in whole) <= MAX_BLOCKS
    assert all(sum(blocks.counts) == 5_000 for blocks in whole)
    (alone,) = fit_lanes([lane[:FINEST]], FINEST * 9.0)
    assert len(alone.kinds) == FINEST, "none of them is too short to be seen"
