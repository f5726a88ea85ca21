"""From whatever a rank did to few stretches side by side: what lies on top hides the rest, and short ones are merged.

A picture is about a thousand points wide, so nothing is lost that could be seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.report.step_timeline import TimelineBlocks

MAX_BLOCKS = 3_000
"""Of all lanes together."""
FINEST = 2_000
"""Parts of the whole time: what is shorter is merged with its neighbours."""


class LaneBlock(Struct, frozen=True, kw_only=True):
    """One stretch of time of a lane, ns from the picture's origin."""

    kind: str
    begin_ns: float
    end_ns: float
    micro_batch: int | None = None
    count: int = 1

    @property
    def long_ns(self) -> float:
        """Its length."""
        return self.end_ns - self.begin_ns


def flatten(layers: Sequence[LaneBlock]) -> list[LaneBlock]:
    """The blocks as seen from above, later ones on top, without overlap and in order."""
    kept = [block for block in layers if block.end_ns > block.begin_ns]
    if not kept:
        return []
    borders = np.unique([border for block in kept for border in (block.begin_ns, block.end_ns)])
    owner = np.full(len(borders) - 1, -1)
    first, last = (
        np.searchsorted(borders, [getattr(block, name) for block in kept]) for name in ("begin_ns", "end_ns")
    )
    for number, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        owner[begin:end] = number
    starts = np.flatnonzero(np.diff(owner, prepend=-2))
    ends = np.append(starts[1:], len(owner))
    return [
        LaneBlock(
            kind=kept[number].kind, begin_ns=float(borders[start]), end_ns=float(borders[end]),
            micro_batch=kept[number].micro_batch,
        )
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True) if (number := int(owner[start])) >= 0
    ]  # fmt: skip


def merge_short(blocks: Sequence[LaneBlock], least_ns: float) -> list[LaneBlock]:
    """Neighbours that are each shorter than this become one, as long as no gap between them is longer.

    Args:
        blocks: In order, without overlap.
        least_ns: What is at least as long stays as it is.
    """
    merged: list[LaneBlock] = []
    few: list[LaneBlock] = []
    for block in blocks:
        apart = bool(few) and block.begin_ns - few[-1].end_ns > least_ns
        if few and (apart or block.long_ns >= least_ns or few[-1].end_ns - few[0].begin_ns >= least_ns):
            merged.append(_join(few))
            few = []
        if block.long_ns >= least_ns:
            merged.append(block)
        else:
            few.append(block)
    return [*merged, *([_join(few)] if few else [])]


def _join(few: Sequence[LaneBlock]) -> LaneBlock:
    if len(few) == 1:
        return few[0]
    kinds = dict.fromkeys(block.kind for block in few)
    kind = max(kinds, key=lambda kind: sum(block.long_ns for block in few if block.kind == kind))
    count = sum(block.count for block in few)
    return LaneBlock(kind=kind, begin_ns=few[0].begin_ns, end_ns=few[-1].end_ns, count=count)


def fit_lanes(lanes: Sequence[Sequence[LaneBlock]], span_ns: float) -> list[TimelineBlocks]:
    """Merges what is too short to see and, while there are too many blocks, what is twice as long."""
    least_ns = span_ns / FINEST
    while True:
        fitted = [merge_short(lane, least_ns) for lane in lanes]
        if sum(map(len, fitted)) <= max(MAX_BLOCKS, len(lanes)) or least_ns > span_ns:
            return [_tabulate(lane) for lane in fitted]
        least_ns *= 2


def _tabulate(blocks: Sequence[LaneBlock]) -> TimelineBlocks:
    return TimelineBlocks(
        kinds=tuple(block.kind for block in blocks),
        begin_ns=tuple(round(block.begin_ns) for block in blocks),
        end_ns=tuple(round(block.end_ns) for block in blocks),
        micro_batches=tuple(block.micro_batch for block in blocks), counts=tuple(block.count for block in blocks),
    )  # fmt: skip
