"""Ranks that lose time in some of their micro-batches, or outside of forwards and backwards.

More to do lengthens every micro-batch. What lengthens the same one in nearly every step, and no other one, and not that
of the other ranks, is no work of the model: the rank is held up. Outside of forwards and backwards, as in getting its
data, a rank is compared as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distprof.analyze.pipeline.candidates import (
    PHASES_OF,
    PipelineCandidate,
    compare_with_others,
    compute_p_values,
    share_alpha,
)
from distprof.analyze.pipeline.thread_graph import ThreadGraph
from distprof.analyze.pipeline.work import PASSES, Recorded
from distprof.analyze.stats.statistics import fast_median, midmean
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.operations import Kind
from distprof.facts.run import Part, Phase, Stretch
from distprof.report.operations_report import PipelineCauseKind

STEADY_RATIO = 0.9
"""Share of the units of a few steps in which it must be later than its equals."""
LEAST_LATE_RATIO = 0.01
"""Of a step: a rank must be later than that in so many of them."""
FEWEST_BATCHES = 3
"""Of which one can differ from the others."""
BEFORE = (Phase.DATA, Stretch.BETWEEN)
"""What a rank does before the first forward; the rest it does after it."""


def detect_held_up(
    recorded: Recorded, thread: ThreadGraph, parts_ns: Mapping[Part, FloatArray]
) -> list[PipelineCandidate]:
    """Ranks later than their equals: the same stage of the other replicas or, with one replica, the other stages.

    Args:
        recorded: The job.
        thread: Its graph.
        parts_ns: What the ranks do outside of forwards and backwards, without waiting, by part, ``[num_steps,
            num_replicas, num_stages]``.
    """
    _, replicas, stages = recorded.shape
    if replicas * stages < 2:
        return []
    batches = {kind: table for kind in PASSES if (table := _tabulate(recorded, kind)) is not None}
    tests = replicas * stages * (sum(rows.shape[-1] for rows in batches.values()) + len(parts_ns))
    alpha = share_alpha(recorded, PipelineCauseKind.HELD_UP, max(tests, 1))
    found = []
    for kind, rows in batches.items():
        own_ns = _take_least(recorded, recorded.graph.work_ns[rows])
        beside_ns = own_ns - fast_median(own_ns, axis=-1)[..., None]
        excess_ns = compare_with_others(beside_ns, axis=1 if replicas > 1 else 2)
        late = _choose_late(recorded, excess_ns, alpha)
        for replica, stage in np.argwhere(late.any(axis=-1)).tolist():
            found.append(_describe_batches(recorded, kind, rows, excess_ns, (replica, stage), late[replica, stage]))
    for part, own_ns in parts_ns.items():
        least_ns = _take_least(recorded, own_ns)
        excess_ns = compare_with_others(least_ns, axis=1 if replicas > 1 else 2)
        for replica, stage in np.argwhere(_choose_late(recorded, excess_ns, alpha)).tolist():
            found.append(_describe_part(recorded, thread, part, own_ns, excess_ns, (replica, stage)))
    return found


def _tabulate(recorded: Recorded, kind: Kind) -> IntArray | None:
    """The operations of a kind, ``[num_steps, num_replicas, num_stages, num_operations]``. None: their number differs,
    or is so small that none of them can differ from the others, or stages are compared that split their passes, each in
    an order of its own."""
    rows = np.flatnonzero(recorded.select(kind))
    count = np.bincount(recorded.worker[rows], minlength=int(np.prod(recorded.shape)))
    if not len(rows) or np.ptp(count) or count[0] < FEWEST_BATCHES:
        return None
    if recorded.shape[1] == 1 and kind is Kind.BACKWARD and recorded.is_split:
        return None
    order = np.lexsort((recorded.graph.operations.number[rows], recorded.worker[rows]))
    table: IntArray = rows[order].reshape(*recorded.shape, -1)
    return table


def _take_least(recorded: Recorded, own_ns: FloatArray) -> FloatArray:
    """The shortest of each unit's steps: what disturbs some of them does not count, ``[num_units, ...]``."""
    starts = np.flatnonzero(np.diff(recorded.unit, prepend=-1) != 0)
    least_ns: FloatArray = np.minimum.reduceat(own_ns, starts, axis=0)
    return least_ns


def _choose_late(recorded: Recorded, excess_ns: FloatArray, alpha: float) -> BoolArray:
    """What is later in nearly all units: by the mean, and by enough."""
    p_values = compute_p_values(excess_ns.reshape(len(excess_ns), -1)).reshape(excess_ns.shape[1:])
    least_ns = np.quantile(excess_ns, 1 - STEADY_RATIO, axis=0)
    late: BoolArray = (p_values <= alpha) & (least_ns >= LEAST_LATE_RATIO * recorded.graph.base_ns.mean())
    return late


def _describe_batches(
    recorded: Recorded, kind: Kind, rows: IntArray, excess_ns: FloatArray, at: tuple[int, int], late: BoolArray
) -> PipelineCandidate:
    replica, stage = at
    own, more_ns = rows[:, replica, stage][:, late], midmean(excess_ns[:, replica, stage][:, late].T)
    work_ns = recorded.graph.work_ns.copy()
    usual_ns = float(np.median(work_ns[own])) - float(more_ns.mean())
    work_ns[own] = np.maximum(work_ns[own] - more_ns, 0.0)
    return PipelineCandidate(
        kind=PipelineCauseKind.HELD_UP, replica=replica, stage=stage, what=str(kind), phase=PHASES_OF[kind],
        micro_batches=tuple(np.flatnonzero(late).tolist()), more_ratio=float(more_ns.mean()) / max(usual_ns, 1.0),
        steps_count=len(own), late_ns=float(more_ns.sum()),
        excess=excess_ns[:, replica, stage][:, late].sum(axis=1), work_ns=work_ns,
    )  # fmt: skip


def _describe_part(
    recorded: Recorded,
    thread: ThreadGraph,
    part: Part,
    own_ns: FloatArray,
    excess_ns: FloatArray,
    at: tuple[int, int],
) -> PipelineCandidate:
    """A part outside of forwards and backwards; what it takes less goes from the gaps that it lies in."""
    replica, stage = at
    found = recorded.graph.operations
    more_ns = float(midmean(excess_ns[:, replica, stage]))
    usual_ns = float(np.median(own_ns[:, replica, stage])) - more_ns
    rows = thread.gap & (found.replica == replica) & (found.stage == stage)
    if part in BEFORE:
        rows &= thread.before
    elif part is Phase.OTHER and recorded.shape[1] == 1:
        rows &= thread.after
    elif part not in (Phase.OTHER, *PHASES_OF.values()):
        rows &= ~thread.before
    work_ns = recorded.graph.work_ns.copy()
    step = recorded.graph.step[rows]
    whole_ns = np.bincount(step, weights=work_ns[rows], minlength=len(own_ns))
    left = 1 - np.minimum(more_ns / np.maximum(whole_ns, 1.0), 1.0)
    work_ns[rows] *= left[step]
    return PipelineCandidate(
        kind=PipelineCauseKind.HELD_UP, replica=replica, stage=stage, what=str(part), phase=part,
        more_ratio=more_ns / max(usual_ns, 1.0), steps_count=len(own_ns), late_ns=more_ns,
        alone=recorded.shape[1] == 1, excess=excess_ns[:, replica, stage], work_ns=work_ns,
    )  # fmt: skip
