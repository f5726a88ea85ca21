"""Everything that makes steps longer than they need be: statistics find candidates, the replay says what each costs.

`FINDERS` is the method's table of contents. Each finder takes what nothing explains yet, and leaves less of it to the
next; a page on what they test, and at which level, is ``docs/verdict.md``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from distprof.analyze.causes.common_slowdown import remove_common_slowdown
from distprof.analyze.causes.intermittent import detect_intermittent_ranks, join_parts
from distprof.analyze.causes.measured_pauses import detect_garbage_collection, detect_recompilation
from distprof.analyze.causes.occasional_work import detect_occasional_work
from distprof.analyze.causes.off_cpu import is_shared
from distprof.analyze.causes.periodic import detect_periodic_ranks
from distprof.analyze.causes.slow_hosts import detect_slow_hosts
from distprof.analyze.causes.slow_loader import detect_slow_loader
from distprof.analyze.causes.slow_ranks import detect_slow_ranks
from distprof.analyze.causes.time_share import weigh_by_time
from distprof.analyze.causes.unequal_data import detect_unequal_data
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.links.slow_link import detect_slow_links
from distprof.analyze.replay.candidate import CandidateCause, Finder, Unexplained
from distprof.analyze.replay.cost import CauseCosts, cost_causes
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.report.wait_report import VerdictKind

FINDERS: tuple[Finder, ...] = (
    detect_recompilation,  # torch.compile stops one rank or another
    detect_garbage_collection,  # Python's collector stops one rank or another
    detect_slow_loader,  # ranks wait for batches, none for much longer than the others
    detect_unequal_data,  # ranks take longer because they have more tokens
    detect_slow_links,  # transfers take longer than over other links, or than before
    detect_occasional_work,  # a rank is far slower at what all ranks do now and then
    detect_intermittent_ranks,  # a rank is late in some steps; some steps are far too long
    remove_common_slowdown,  # a rank is slower at everything for a while: nobody's fault
    detect_periodic_ranks,  # a rank is late in every k-th step
    detect_slow_hosts,  # all ranks of a host are late
    detect_slow_ranks,  # a rank is late in every step, or from some step on
)

BESIDE_RATIO = 0.25
"""Of what a rank loses in a part steadily, or now and then: less than this, lost the other way, is no cause of its
own."""
REGULAR_RATIO = 0.5
"""Likewise of what a rank loses in every k-th step, which is surer to be a cause of its own."""
MOST_STEPS_RATIO = 0.5
"""Share of the steps in which a rank is steadily late: what it loses besides in more of them, in the same part, is no
cause of its own either. Steps with more micro-steps than others, for example, have more of the same."""


def find_causes(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> CauseCosts | None:
    """The causes that cost something. None: there are too few cycles to say anything."""
    if cycles is None or len(cycles.steps) < MIN_CYCLES or len(cycles.positions) < 2:
        return None
    found = _join(list_candidates(measured_steps, cycles))
    costs = cost_causes(cycles, [item for item in found if not is_shared(measured_steps, cycles, item)])
    return weigh_by_time(measured_steps, cycles, costs)


def list_candidates(
    measured_steps: MeasuredSteps, cycles: SyncCycles, finders: Sequence[Finder] = FINDERS
) -> Sequence[CandidateCause]:
    """What each finder has found, in order."""
    unexplained = begin(measured_steps, cycles)
    for finder in finders:
        found, unexplained = finder(cycles, unexplained)
        unexplained = structs.replace(unexplained, candidates=(*unexplained.candidates, *found))
    return unexplained.candidates


def begin(measured_steps: MeasuredSteps, cycles: SyncCycles) -> Unexplained:
    """Nothing is explained yet."""
    return Unexplained(
        measured_steps=measured_steps, usual_cycle_ns=float(np.median(cycles.cycle_ns)), phase_ns=cycles.phase_ns,
        work_ns=cycles.work_ns,
    )  # fmt: skip


def _join(candidates: Sequence[CandidateCause]) -> list[CandidateCause]:
    """Without those that are part of another: a rank that is late in a part all the time, and now and then more, is one
    cause, unless it stalls, and so is one whose events lengthen several parts."""
    irregular = join_parts([item for item in candidates if item.is_irregular])
    kept = [item for item in candidates if not item.is_irregular and item.kind is not VerdictKind.SLOW_RANK]
    kept += [item for item in candidates if not item.is_irregular and item.kind is VerdictKind.SLOW_RANK]
    left = []
    for item in irregular:
        at = next((at for at, other in enumerate(kept) if _is_beside(item, other)), None)
        if at is None:
            left.append(item)
        elif kept[at].taken_ns < (BESIDE_RATIO if item.period is None else REGULAR_RATIO) * item.taken_ns:
            left.append(_add_steady(item, kept.pop(at)))
        else:
            kept[at] = _add_irregular(kept[at], item)
    return [*kept, *left]


def _is_beside(item: CandidateCause, steady: CandidateCause) -> bool:
    """Whether what a rank loses now and then is of what it loses in the same part all the time: it is no stall, or
    little beside the rest."""
    slow_rank = steady.kind is VerdictKind.SLOW_RANK and len(item.rows) == 1
    same = slow_rank and (steady.is_throughout or item.part == steady.part) and np.array_equal(item.rows, steady.rows)
    little = item.kind is VerdictKind.SLOW_RANK or item.taken_ns < BESIDE_RATIO * steady.taken_ns
    return same and bool(steady.acts[item.acts].all()) and (little or _is_in_most(item, steady))


def _is_in_most(item: CandidateCause, steady: CandidateCause) -> bool:
    return bool(item.acts.sum() > MOST_STEPS_RATIO * steady.acts.sum())


def _add_steady(item: CandidateCause, steady: CandidateCause) -> CandidateCause:
    """What a rank loses now and then, with the little that it loses in these steps anyway."""
    row = int(item.rows[0])
    taken_ns = item.counterfactual.work_ns[row] + steady.counterfactual.work_ns[row] * item.acts[:, None]
    late_ns = float(np.median(taken_ns.sum(axis=1)[item.acts]))
    return structs.replace(item, counterfactual=Counterfactual(work_ns={row: taken_ns}), late_ns=late_ns)


def _add_irregular(steady: CandidateCause, item: CandidateCause) -> CandidateCause:
    """What a rank loses all the time, with what it loses besides. Unless that is little, the lateness is its mean."""
    row = int(item.rows[0])
    taken_ns = steady.counterfactual.work_ns[row] + item.counterfactual.work_ns[row]
    if item.taken_ns >= BESIDE_RATIO * steady.taken_ns or _is_in_most(item, steady):
        late_ns = float(taken_ns.sum(axis=1)[steady.acts].mean())
        steady = structs.replace(steady, late_ns=late_ns, excess_ns=None)
    return structs.replace(steady, counterfactual=Counterfactual(work_ns={row: taken_ns}))
