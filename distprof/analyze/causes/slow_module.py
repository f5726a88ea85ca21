"""In which module does a rank that is late lose the time?

Its modules are compared with the same ones on the other ranks, in the steps in which modules were timed. One is named
if it is slower there by more than chance, explains most of what the rank is late by, and is slower by a larger factor
than the rest of the model: a rank whose whole model is slow has no slow module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from distprof.analyze.causes.slow_ranks import ALPHA
from distprof.analyze.stats.lateness import MIDMEAN_FACTOR
from distprof.analyze.stats.significance import t_quantile
from distprof.analyze.stats.statistics import excess_over_others, median_of_others, medians_of_others, midmean
from distprof.analyze.summary.modules import choose_alike
from distprof.facts.arrays import FloatArray
from distprof.facts.modules import ModuleTable
from distprof.facts.run import Phase
from distprof.report.late_reasons import SlowModule
from distprof.report.wait_report import Verdict, VerdictKind

MIN_STEPS = 4
"""Fewer tell nothing about chance."""
MOST_RATIO = 0.5
"""Share of what the rank is late by that a module must explain."""
SAME_RATIO = 0.8
"""A submodule that explains this much of what its holder does is named in its place."""
MORE_FACTOR = 2.0
"""By how much a module's slowdown must exceed that of the rest of the model."""


def find_slow_module(tables: Sequence[ModuleTable], verdict: Verdict) -> SlowModule | None:
    """The deepest module that explains why the verdict's rank is late in forward or backward. None: no single one does.

    Args:
        tables: The ranks' module profiles.
        verdict: Names a rank and a phase, or not.
    """
    alike = choose_alike(tables)
    numbers = [table.rank for table in alike]
    late_ns, phase = verdict.late_ns, verdict.phase
    if verdict.kind is not VerdictKind.SLOW_RANK or verdict.rank not in numbers or len(alike) < 2 or not late_ns:
        return None
    if phase not in (Phase.FORWARD, Phase.BACKWARD) or len({table.timed_steps for table in alike}) > 1:
        return None
    if len(alike[0].timed_steps) < MIN_STEPS:
        return None
    row = numbers.index(verdict.rank)
    times_ns = np.stack([_read_times(table, Phase(phase)) for table in alike])
    excess_ns = midmean(excess_over_others(times_ns, row))
    rank_ns, others_ns = midmean(times_ns[row]), midmean(median_of_others(times_ns, row))
    chosen = [
        module for module in np.flatnonzero(excess_ns >= MOST_RATIO * late_ns).tolist()
        if _stands_out(rank_ns, others_ns, module) and _is_significant(times_ns[:, module], row, ALPHA / len(excess_ns))
    ]  # fmt: skip
    if not chosen:
        return None
    most_ns = max(excess_ns[chosen])
    named = max(
        (module for module in chosen if excess_ns[module] >= SAME_RATIO * most_ns),
        key=lambda module: (_depth_of(alike[0], module), excess_ns[module]),
    )
    return SlowModule(
        name=alike[0].names[named], rank_ns=float(rank_ns[named]), others_ns=float(others_ns[named]),
        share_ratio=min(1.0, float(excess_ns[named]) / late_ns), steps_used=times_ns.shape[2],
    )  # fmt: skip


def _read_times(table: ModuleTable, phase: Phase) -> FloatArray:
    """Time in a phase, ``[num_modules, num_timed_steps]``; what backward repeats of forward is part of backward."""
    if phase is Phase.FORWARD:
        return table.forward_ns
    return table.backward_ns + np.nan_to_num(table.recomputed_ns)


def _is_significant(times_ns: FloatArray, row: int, alpha: float) -> bool:
    """Whether a rank's excess is larger than by chance: by Student's t, because the steps are few.

    Args:
        times_ns: Of one module, ``[num_ranks, num_steps]``.
        row: The rank.
        alpha: The significance level.
    """
    steps = times_ns.shape[1]
    spread_ns = (times_ns - medians_of_others(times_ns)).std(axis=1, ddof=1)
    error_ns = MIDMEAN_FACTOR * max(spread_ns[row], float(np.median(spread_ns))) / math.sqrt(steps)
    return bool(midmean(excess_over_others(times_ns, row)) > t_quantile(alpha, steps - 1) * error_ns)


def _stands_out(rank_ns: FloatArray, others_ns: FloatArray, module: int) -> bool:
    """Whether a module is slower by a larger factor than the rest of the model, whose times are in the first row."""
    rest_ns, rest_others_ns = rank_ns[0] - rank_ns[module], others_ns[0] - others_ns[module]
    if rest_others_ns <= 0:
        return False  # it is all there is
    slower, rest = rank_ns[module] / max(others_ns[module], 1.0) - 1, rest_ns / rest_others_ns - 1
    return bool(slower >= MORE_FACTOR * rest)


def _depth_of(table: ModuleTable, module: int) -> int:
    depth, parent = 0, table.parents[module]
    while parent is not None:
        depth, parent = depth + 1, table.parents[parent]
    return depth
