"""Which ranks do other work than most: an evaluator, a parameter server. Their steps are their own.

Steps are numbered on each rank, so that those of an evaluator, which are forwards, have nothing in common with those of
the ranks that train but their numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.columns import COLUMN

Work = tuple[bool, bool]
"""Whether a rank computes gradients, and whether it takes steps of an optimizer."""


def read_work(rows: FloatArray) -> Work | None:
    """What a rank does in its steps, ``[num_steps, ROW_WIDTH]``. None: its phases were not recorded."""
    whole = (rows[:, COLUMN["failed"]] == 0) & (rows[:, COLUMN["shadow"]] != 1)
    times_ns = np.stack([rows[whole, COLUMN[name]] for name in ("backward_host_ns", "optimizer_host_ns")], axis=1)
    if not np.isfinite(times_ns).any(axis=0).all():
        return None
    backward, optimizer = (np.nan_to_num(times_ns) > 0).any(axis=0).tolist()
    return backward, optimizer


def detect_other_work(rows: Sequence[FloatArray]) -> BoolArray:
    """Ranks that do other work than more than half of those whose work is known, ``[num_ranks]``; none, unless these
    train.

    Args:
        rows: Each rank's rows, ``[num_steps, ROW_WIDTH]``.
    """
    works = [read_work(own) for own in rows]
    known = Counter(work for work in works if work is not None)
    usual, count = max(known.items(), key=lambda item: item[1], default=((False, False), 0))
    if not any(usual) or 2 * count <= known.total():
        return np.zeros(len(works), dtype=np.bool_)
    return np.array([work is not None and work != usual for work in works], dtype=np.bool_)
