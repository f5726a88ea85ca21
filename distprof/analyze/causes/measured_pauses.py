"""How long Python's garbage collector, or torch.compile, stops ranks, and what the others wait for that.

Each rank measures its own pauses, so no test has to tell them from chance: all that was measured is taken out, and the
replay says what it costs. In which gap between two collectives a rank pauses is told by which gap grew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from distprof.analyze.causes.delay_place import can_hold
from distprof.analyze.cycles.cycle_parts import take_columns
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_TAKEN_RATIO, CandidateCause, Unexplained
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.statistics import fast_median
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COMPILED_PHASES, OWN_PARTS, OWN_PHASES, Clock, Part, Phase, Stretch
from distprof.report.wait_report import Pattern, VerdictKind

EVENT_RATIO = 0.001
"""Share of the usual cycle; pauses that take less of a rank's cycle are left where they are."""
GROWN_RATIO = 0.5
"""Of a pause: gaps that are longer than usual by so much show where it was."""


_COLLECTIONS: tuple[tuple[Part, str], ...] = (
    *((phase, f"{phase}_gc_host_ns") for phase in OWN_PHASES),
    (Phase.DATA, "between_data_gc_host_ns"), (Stretch.BETWEEN, "between_gc_host_ns"),
)  # fmt: skip
_COMPILATIONS: tuple[tuple[Part, str], ...] = tuple((phase, f"{phase}_compile_host_ns") for phase in COMPILED_PHASES)


def detect_garbage_collection(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """At most one candidate."""
    reason = "each rank measured its own collections on its training thread"
    return _detect(cycles, unexplained, _COLLECTIONS, VerdictKind.GARBAGE_COLLECTION, reason)


def detect_recompilation(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """At most one candidate."""
    reason = "each rank measured its own compilations on its training thread"
    return _detect(cycles, unexplained, _COMPILATIONS, VerdictKind.RECOMPILATION, reason)


def _detect(
    cycles: SyncCycles, unexplained: Unexplained, columns: Sequence[tuple[Part, str]], kind: VerdictKind, reason: str
) -> tuple[list[CandidateCause], Unexplained]:
    """On a device's clock it is not known which pauses the device waits for."""
    if cycles.clock is not Clock.HOST or cycles.span > 1:
        return [], unexplained
    run = unexplained.measured_steps.run
    in_all_ns = sum(np.nansum(run.column(name)[cycles.positions], axis=1) for _, name in columns)
    if np.max(in_all_ns) < _compute_least(cycles, unexplained):
        return [], unexplained
    taken_ns = take_columns(unexplained.measured_steps, columns, cycles.positions, cycles.steps, cycles.tail_phases)
    return take_out(cycles, unexplained, taken_ns, kind, reason)


def take_out(
    cycles: SyncCycles, unexplained: Unexplained, taken_ns: FloatArray, kind: VerdictKind, reason: str
) -> tuple[list[CandidateCause], Unexplained]:
    """A candidate that is what ranks have measured, if that is enough.

    Args:
        cycles: The waits between which they did.
        unexplained: The own times that nothing explains yet.
        taken_ns: What they measured, ``[num_ranks, num_cycles, len(OWN_PARTS)]``; it is changed.
        kind: Of the cause.
        reason: Why it is named.
    """
    np.fmin(taken_ns, unexplained.phase_ns, out=taken_ns)
    taken_ns[np.isnan(unexplained.phase_ns)] = 0.0
    events = taken_ns.sum(axis=2) > EVENT_RATIO * unexplained.usual_cycle_ns
    taken_ns[~events] = 0.0
    if taken_ns.sum(axis=(1, 2)).max() < _compute_least(cycles, unexplained):
        return [], unexplained
    work_ns = {
        row: _locate(cycles, unexplained.work_ns[row], taken_ns[row])
        for row in np.flatnonzero(events.any(axis=1)).tolist()
    }  # fmt: skip
    left_ns = np.copy(unexplained.work_ns)
    for row, gone_ns in work_ns.items():
        left_ns[row] = np.maximum(left_ns[row] - gone_ns, 0)
    acts = events.any(axis=0)
    candidate = CandidateCause(
        kind=kind, rows=np.empty(0, dtype=np.int64),
        part=OWN_PARTS[int(taken_ns.sum(axis=(0, 1)).argmax())], acts=acts,
        counterfactual=Counterfactual(work_ns=work_ns), pattern=None if acts.all() else Pattern.INTERMITTENT,
        reason=reason,
    )  # fmt: skip
    return [candidate], structs.replace(unexplained, phase_ns=unexplained.phase_ns - taken_ns, work_ns=left_ns)


def _compute_least(cycles: SyncCycles, unexplained: Unexplained) -> float:
    """What a rank must lose in all cycles to be worth a candidate, ns."""
    return MIN_TAKEN_RATIO * unexplained.usual_cycle_ns * len(cycles.steps)


def _locate(cycles: SyncCycles, own_ns: FloatArray, taken_ns: FloatArray) -> FloatArray:
    """The pauses of a rank, ``[num_cycles, len(OWN_PARTS)]``, shared out over the gaps, ``[num_cycles,
    num_collectives]``: over those that grew by most of them and can hold the part, or else by how long these are."""
    grown_ns = np.maximum(own_ns - fast_median(own_ns, axis=0), 0)
    found_ns = np.zeros_like(own_ns)
    for part in np.flatnonzero(taken_ns.any(axis=0)).tolist():
        at = np.flatnonzero(taken_ns[:, part])
        inside = can_hold(cycles, OWN_PARTS[part])
        part_ns, weights = taken_ns[at, part, None], grown_ns[at] * inside
        grew = weights.sum(axis=1, keepdims=True) >= GROWN_RATIO * part_ns
        weights = np.where(grew, weights, own_ns[at] * inside)
        total_ns = weights.sum(axis=1, keepdims=True)
        found_ns[at] += weights * np.divide(part_ns, total_ns, out=np.zeros_like(part_ns), where=total_ns > 0)
    located_ns: FloatArray = np.minimum(found_ns, own_ns)
    return located_ns
