"""Ranks of a pipeline that take far longer in some steps than they usually do.

Each rank is compared with itself, so that none needs equals; what the others take then shows whether the machine was
slow. By chance, such steps strike any rank: that all are one rank's, or that they come at a period, is not by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.pipeline.candidates import PHASES_OF, PipelineCandidate, share_alpha
from distprof.analyze.pipeline.thread_graph import ThreadGraph
from distprof.analyze.pipeline.work import PASSES, Recorded
from distprof.analyze.replay.candidate import MIN_TAKEN_RATIO
from distprof.analyze.stats.far_events import ALPHA_PERIOD, STEADY_RATIO, Events, list_costly_ranks, list_events
from distprof.analyze.stats.significance import concentration_p_values, detect_kinds, estimate_period, fisher_combine
from distprof.analyze.stats.statistics import fast_median
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import Part, Phase, Stretch
from distprof.report.operations_report import PipelineCauseKind

FEWEST_STALLS = 3
WAYS = 4
"""In which stalls may be one rank's: by their sizes, their number, a period, or as a kind of their own."""
MOST_RATIO = 0.5
"""Of what a stall takes: a part that holds so much of it is where it lies, and a stage that is longer by so much then
has more to do, too."""
BEFORE: tuple[Part, ...] = (Phase.DATA, Stretch.BETWEEN)
AFTER: tuple[Part, ...] = (Phase.OPTIMIZER, Phase.GRAD_NORM)


class _Work(Struct, frozen=True, kw_only=True):
    """A kind of work of all ranks."""

    part: Part
    """What it is, if none of the following holds most of a stall."""
    parts: tuple[Part, ...]
    rows: BoolArray
    """Which operations it is, ``[num_operations]``."""


class _Stalls(Struct, frozen=True, kw_only=True):
    """Those of one rank in one kind of work."""

    worker: int
    at: IntArray
    """Positions of their steps, ascending, ``[num_stalls]``."""
    excess_ns: FloatArray
    period: int | None


def detect_stalls(
    recorded: Recorded, thread: ThreadGraph, parts_ns: Mapping[Part, FloatArray]
) -> list[PipelineCandidate]:
    """Arguments as of `distprof.analyze.pipeline.held_up.detect_held_up`."""
    if np.prod(recorded.shape[1:]) < 2:
        return []
    works = [_Work(part=PHASES_OF[kind], parts=(), rows=recorded.select(kind)) for kind in PASSES]
    works.append(_Work(part=Stretch.BETWEEN, parts=BEFORE, rows=thread.gap & thread.before))
    works.append(_Work(part=Phase.OTHER, parts=AFTER, rows=thread.gap & ~thread.before))
    return [
        _describe(recorded, work, stalls, parts_ns)
        for work in works for stalls in _choose(recorded, recorded.add_work(work.rows), tests=len(works))
    ]  # fmt: skip


def _choose(recorded: Recorded, work_ns: FloatArray, tests: int) -> Iterator[_Stalls]:
    """The ranks whose stalls in a kind of work are not by chance."""
    num_steps, *workers = recorded.shape
    number, usual_ns = int(np.prod(workers)), float(np.median(recorded.graph.base_ns))
    events = list_events(work_ns.reshape(num_steps, number).T, 0, np.arange(num_steps), usual_ns)
    events = _leave_own(events, (number, num_steps), stages=workers[1])
    cost_ns = np.bincount(events.rows, weights=events.excess_ns, minlength=number).astype(np.float64)
    first, steps = _mark_first(events), recorded.graph.steps
    if not first.any():
        return
    by_size = concentration_p_values(events.rows[first], events.excess_ns[first], number)
    by_number = concentration_p_values(events.rows[first], np.ones(int(first.sum())), number)
    of_kind = _judge_kinds(events, np.flatnonzero(first), number)
    alpha = share_alpha(recorded, PipelineCauseKind.STALLS, tests * number * WAYS)
    for worker in list_costly_ranks(cost_ns, MIN_TAKEN_RATIO * usual_ns * num_steps).tolist():
        own = np.flatnonzero(events.rows == worker)
        if len(own) > STEADY_RATIO * num_steps or np.sum(first[own]) < FEWEST_STALLS:
            continue
        period, turn, regular = estimate_period(steps[events.at[own[first[own]]]], steps)
        if min(by_size[worker], by_number[worker], fisher_combine(by_size[worker], regular)) >= alpha:
            p_value, own = of_kind.get(worker, (1.0, own))
            if p_value >= alpha:
                continue
            period, turn, regular = estimate_period(steps[events.at[own]], steps)
        is_regular = regular < ALPHA_PERIOD
        own = own[steps[events.at[own]] % period == turn] if is_regular else own
        yield _Stalls(
            worker=worker, at=events.at[own], excess_ns=events.excess_ns[own], period=period if is_regular else None
        )


def _judge_kinds(events: Events, chosen: IntArray, number: int) -> dict[int, tuple[float, IntArray]]:
    """By rank: how probable it is by chance that events of about one size, with a gap below them, are all its own, and
    which these are.

    Args:
        events: Of all ranks.
        chosen: Those of them that are one each.
        number: All ranks.
    """
    found: dict[int, tuple[float, IntArray]] = {}
    for kind in detect_kinds(events.excess_ns[chosen], events.least_ns):
        members = np.sort(chosen[kind.members])
        worker = int(events.rows[members[0]])
        if (events.rows[members] == worker).all():
            found.setdefault(worker, (kind.p_value(len(members)) * number ** (1.0 - len(members)), members))
    return found


def _leave_own(events: Events, shape: tuple[int, int], *, stages: int) -> Events:
    """Without those that another stage of the replica has at the same time: its sequences are longer then."""
    excess_ns = np.zeros(shape)
    excess_ns[events.rows, events.at] = events.excess_ns
    of_replica = np.sort(excess_ns.reshape(-1, stages, shape[1]), axis=1)
    others_ns = of_replica[:, -2] if stages > 1 else np.zeros_like(of_replica[:, 0])
    own = others_ns[events.rows // stages, events.at] <= MOST_RATIO * events.excess_ns
    least_ns = max(events.least_ns, float(events.excess_ns[~own].max(initial=0.0)))
    return structs.replace(
        events, rows=events.rows[own], at=events.at[own], excess_ns=events.excess_ns[own], least_ns=least_ns
    )


def _mark_first(events: Events) -> BoolArray:
    """Which events do not follow one of the same rank in the step before: these are one, ``[num_events]``."""
    first: BoolArray = ~((np.diff(events.rows, prepend=-1) == 0) & (np.diff(events.at, prepend=-2) == 1))
    return first


def _describe(
    recorded: Recorded, work: _Work, stalls: _Stalls, parts_ns: Mapping[Part, FloatArray]
) -> PipelineCandidate:
    """With durations in which each of these steps has the rank's usual time; what takes longer than the usual operation
    of its kind goes first."""
    num_steps, _, stages = recorded.shape
    replica, stage = divmod(stalls.worker, stages)
    acting = np.zeros(num_steps, dtype=bool)
    acting[stalls.at] = True
    step, work_ns = recorded.graph.step, recorded.graph.work_ns.copy()
    own = work.rows & (recorded.worker % np.prod(recorded.shape[1:]) == stalls.worker)
    rows = np.flatnonzero(own & acting[step])
    excess_ns = np.zeros(num_steps)
    excess_ns[stalls.at] = stalls.excess_ns
    over_ns = np.maximum(work_ns[rows] - float(np.median(work_ns[own])), 0.0)
    total_ns = np.maximum(np.bincount(step[rows], weights=over_ns, minlength=num_steps), 1.0)
    work_ns[rows] -= over_ns * np.minimum(excess_ns / total_ns, 1.0)[step[rows]]
    usual_ns = float(np.median(recorded.add_work(own)[~acting, replica, stage]))
    late_ns = float(fast_median(stalls.excess_ns))
    part = _name_part(work, acting, {part: own_ns[:, replica, stage] for part, own_ns in parts_ns.items()}, late_ns)
    return PipelineCandidate(
        kind=PipelineCauseKind.STALLS, what=str(part), phase=part, replica=replica, stage=stage,
        more_ratio=late_ns / max(usual_ns, 1.0), steps_count=len(stalls.at), late_ns=late_ns, acting=acting,
        period=stalls.period, is_sampled=bool(np.ptp(recorded.graph.steps) >= num_steps), work_ns=work_ns,
    )  # fmt: skip


def _name_part(work: _Work, acting: BoolArray, own_ns: Mapping[Part, FloatArray], late_ns: float) -> Part:
    """Where the rank takes longer in these steps."""
    for part in work.parts:
        times_ns = own_ns.get(part)
        if times_ns is not None and np.median(times_ns[acting]) - np.median(times_ns[~acting]) >= MOST_RATIO * late_ns:
            return part
    return work.part
