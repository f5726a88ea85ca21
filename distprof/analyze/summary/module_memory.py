"""What do the tensors of each kind take on the ranks, and what should they?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.stats.statistics import spread_over_ranks
from distprof.facts.modules import MEMORY_KINDS, ModuleTable, RankMemory
from distprof.report.job_modules import MemoryKind
from distprof.report.spread import Spread


def report_memory(tables: Sequence[ModuleTable]) -> tuple[MemoryKind, ...]:
    """Each kind, then the allocator's peak and what it has beyond them; nothing if nothing is known."""
    ranks = [table.rank for table in tables]
    measured = [table.memory for table in tables]
    predicted = [table.predicted_memory for table in tables]
    if not any((*measured, *predicted)):
        return ()
    unknown = _spread([None] * len(ranks), ranks)
    return (
        *(
            MemoryKind(
                kind=kind, predicted_bytes=_spread(_pick(predicted, kind), ranks),
                measured_bytes=_spread(_pick(measured, kind), ranks),
            )
            for kind in MEMORY_KINDS
        ),
        MemoryKind(
            kind="rest", predicted_bytes=unknown, measured_bytes=_spread([_find_rest(each) for each in tables], ranks)
        ),
        MemoryKind(
            kind="peak", predicted_bytes=unknown, measured_bytes=_spread([each.peak_bytes for each in tables], ranks)
        ),
    )  # fmt: skip


def _pick(memories: Sequence[RankMemory | None], kind: str) -> list[int | None]:
    return [None if memory is None else getattr(memory, kind) for memory in memories]


def _find_rest(table: ModuleTable) -> int | None:
    """None: a kind is not known, or not all were alive at the peak."""
    total = None if table.memory is None else table.memory.total
    if total is None or table.peak_bytes is None or table.peak_bytes < total:
        return None
    return table.peak_bytes - total


def _spread(values: Sequence[int | None], ranks: Sequence[int]) -> Spread:
    return spread_over_ranks(np.array([np.nan if each is None else each for each in values], dtype=np.float64), ranks)
