"""A set of ranks in few words."""

from __future__ import annotations

from collections.abc import Sequence


def name_ranks(ranks: Sequence[int], *, most: int | None = None) -> str:
    """``rank 3``, ``ranks 0-2, 7``; beyond ``most`` ranges, the first ones and ``...``."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    names = ", ".join("-".join(map(str, ends)) for ends in runs[:most])
    more = "" if most is None or len(runs) <= most else ", ..."
    return f"rank {names}" if len(ordered) == 1 else f"ranks {names}{more}"
