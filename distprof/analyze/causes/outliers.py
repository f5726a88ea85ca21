"""What takes single ranks far longer than usual, in all parts of a cycle; and what all ranks do now and then."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.analyze.causes.delay_place import can_hold
from distprof.analyze.causes.stalls import FAR_RATIO, far_limit_ns
from distprof.analyze.cycles.sync_cycles import SyncCycles, read_all_parts
from distprof.analyze.replay.candidate import CandidateCause, Unexplained
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.far_events import EVENT_RATIO, OWN_SIGMAS, Events, estimate_usual, list_events
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import fast_median, median_of_others
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import OWN_PARTS, Part, Stretch
from distprof.report.wait_report import Pattern, VerdictKind, is_sample

BESIDE_RATIO = 0.25
"""Of an event: so much in other parts of the cycle is beside it."""
COMMON_RATIO = 0.1
"""Of what one rank takes longer: if the others take less of it, it is this rank's event. Whoever waited long for a rank
that stalls finds its caches cold, and takes a little longer too."""
MAX_OCCASIONS_RATIO = 0.5
"""Of the cycles; what all ranks do more often is a part like others."""
OTHERS_RATIO = 0.05
"""Of what a rank spends in a stretch between steps: with less, the others pass through it and do nothing there."""
MANY_RANKS = 64
"""Of more, every n-th shows what a part usually takes."""
NAMED_STRETCHES = (Stretch.EVALUATION, Stretch.CHECKPOINT, Stretch.LOGGING)
"""The training loop names them."""
MOST_RATIO = 0.5
"""Of what a rank loses: so much shows where it lost it, or which of its events it is."""
OFTEN_RATIO = 0.1
"""Share of the cycles; a rank that is late in so many is intermittently slow, and in fewer it stalls."""
STALLED_RATIO = 0.2
"""Share of the cycles up to which events that are each as long as a stall are stalls."""


class Outliers(Struct, frozen=True, kw_only=True):
    """What takes single ranks far longer than usual in a run."""

    events: list[Events]
    """By part, in the cycles that are no occasions of it."""
    num_parts: IntArray
    """In how many parts there is an event, by rank and cycle: what stretches all parts is of another kind."""
    total_ns: FloatArray
    """How long the events of all parts are together, by rank and cycle."""

    usual_ns: FloatArray
    """What each part usually takes, ``[num_parts]``."""

    def mark_pure(self, events: Events) -> BoolArray:
        """Which events of a part are of this part alone: those of other parts at the same time are small beside them,
        ``[num_events]``."""
        pure: BoolArray = self._measure_beside(events) <= BESIDE_RATIO * events.excess_ns
        return pure

    def measure_stretched(self, events: Events) -> FloatArray:
        """How much of the events of a part is a share of what stretches most of the cycle, ``[num_events]``; 0 where
        that is little: they would be as long if nothing had held the rank up in other parts."""
        stretched_ns: FloatArray = self._measure_stretch(events) * self.usual_ns[events.part]
        stretched_ns[stretched_ns <= BESIDE_RATIO * events.excess_ns] = 0.0
        return stretched_ns

    def _measure_stretch(self, events: Events) -> FloatArray:
        """By which share of the usual the other parts were longer then, ``[num_events]``: their median, weighted by how
        long they usually take. A step that is slow as a whole ends in the next cycle, where few parts are longer."""
        count = self.num_parts.shape[1]
        others = [item for item in self.events if item.part != events.part and self.usual_ns[item.part] > 0]
        if not others:
            return np.zeros(len(events.at))
        ratios = np.zeros((len(events.at), len(others)))
        for column, other in enumerate(others):
            _, here, there = np.intersect1d(
                events.rows * count + events.at, other.rows * count + other.at, assume_unique=True, return_indices=True
            )
            ratios[here, column] = other.excess_ns[there] / self.usual_ns[other.part]
        order = ratios.argsort(axis=1)
        weights = self.usual_ns[[item.part for item in others]][order].cumsum(axis=1)
        middle = (weights >= weights[:, -1:] / 2).argmax(axis=1)
        stretch: FloatArray = np.take_along_axis(ratios, order, axis=1)[np.arange(len(ratios)), middle]
        return stretch

    def _measure_beside(self, events: Events) -> FloatArray:
        """How long the events of other parts are at the same time, ``[num_events]``."""
        return self.total_ns[events.rows, events.at] - events.excess_ns


def list_occasions(unexplained: Unexplained) -> list[BoolArray]:
    """By part: the cycles in which every rank takes far longer for it, ``[num_cycles]``."""
    parts = np.moveaxis(unexplained.phase_ns, 2, 0)
    return [
        mark_occasions(own_ns, unexplained.usual_cycle_ns, part)
        for part, own_ns in zip(OWN_PARTS[: len(parts)], parts, strict=True)
    ]


def list_outliers(unexplained: Unexplained, occasions: list[BoolArray]) -> Outliers:
    """All of a run, besides its occasions."""
    events = [
        list_events(own_ns, part, np.flatnonzero(~occasions[part]), unexplained.usual_cycle_ns)
        for part, own_ns in enumerate(np.moveaxis(unexplained.phase_ns, 2, 0))
    ]
    num_parts = np.zeros(unexplained.phase_ns.shape[:2], dtype=np.int64)
    total_ns = np.zeros(num_parts.shape)
    for found in events:
        num_parts[found.rows, found.at] += 1
        total_ns[found.rows, found.at] += found.excess_ns
    some_ns = unexplained.phase_ns[:: -(-len(unexplained.phase_ns) // MANY_RANKS)]
    usual_ns = np.nan_to_num(np.median(some_ns, axis=(0, 1)))
    return Outliers(events=events, num_parts=num_parts, total_ns=total_ns, usual_ns=usual_ns)


def mark_occasions(own_ns: FloatArray, usual_cycle_ns: float, part: Part) -> BoolArray:
    """The cycles in which every rank takes far longer for a part than it usually does, ``[num_cycles]``.

    Args:
        own_ns: Own time in the part, ``[num_ranks, num_cycles]``.
        usual_cycle_ns: The usual length of a cycle.
        part: What it is.
    """
    common_ns, least_ns = own_ns.min(axis=0), EVENT_RATIO * usual_cycle_ns
    if not np.isfinite(common_ns).all() or not common_ns.any():
        return np.zeros(len(common_ns), dtype=bool)
    _, found = _mark_far(common_ns, least_ns)
    if not found.any():
        return found
    over_ns = own_ns - estimate_usual(own_ns)[0][:, None]  # a rank may be quicker than all others, but for its events
    common_ns, found = _mark_far(over_ns.min(axis=0), least_ns)
    if part not in NAMED_STRETCHES:  # all save a checkpoint together, for example, however long one of them takes
        found &= common_ns > COMMON_RATIO * over_ns.max(axis=0)
    return found if found.mean() <= MAX_OCCASIONS_RATIO else np.zeros_like(found)


def _mark_far(common_ns: FloatArray, least_ns: float) -> tuple[FloatArray, BoolArray]:
    """By how much cycles exceed the usual one, and which do so by far, ``[num_cycles]`` each."""
    usual_ns, spread_ns = estimate_usual(common_ns[None])
    over_ns = common_ns - usual_ns[0]
    return over_ns, over_ns > max(least_ns, OWN_SIGMAS * float(spread_ns[0]))


def is_only_its_own(phase_ns: FloatArray, row: int, part: Part | None) -> bool:
    """Whether only this rank works in a stretch that the training loop names, such as rank 0's checkpoint: the code
    decides that, and not chance."""
    if part not in NAMED_STRETCHES:
        return False
    total_ns = phase_ns[:, :, OWN_PARTS.index(part)].sum(axis=1)
    return bool(np.delete(total_ns, row).max() < OTHERS_RATIO * total_ns[row])


def make_candidate(
    cycles: SyncCycles,
    part: int,
    row: int,
    at: IntArray,
    excess_ns: FloatArray,
    *,
    usual_cycle_ns: float,
    period: int | None,
) -> CandidateCause:
    """A rank that is named for its events, or for what it does more slowly than others on some occasions."""
    acts = np.zeros(cycles.work_ns.shape[1], dtype=bool)
    acts[at] = True
    late_ns, share = float(fast_median(excess_ns)), float(acts.mean())
    stalls = share < OFTEN_RATIO or (share <= STALLED_RATIO and late_ns >= FAR_RATIO * usual_cycle_ns)
    return CandidateCause(
        kind=VerdictKind.STALLS if stalls else VerdictKind.SLOW_RANK, rows=np.array([row]), part=OWN_PARTS[part],
        acts=acts, counterfactual=Counterfactual(work_ns={row: _share_out(cycles, part, row, at, excess_ns)}),
        late_ns=late_ns, pattern=None if stalls else Pattern.INTERMITTENT, period=period,
    )  # fmt: skip


def _share_out(cycles: SyncCycles, part: int, row: int, at: IntArray, excess_ns: FloatArray) -> FloatArray:
    """The excess of some cycles, shared out over the gaps that grew in them, ``[num_cycles, num_collectives]``; over
    those that can hold the part, if they grew by most of it."""
    work_ns = cycles.work_ns[row]
    over_ns = np.maximum(work_ns[at] - median_of_others(work_ns, at), 0)
    inside_ns = np.where(can_hold(cycles, OWN_PARTS[part]), over_ns, 0.0)
    over_ns = np.where(inside_ns.sum(axis=1, keepdims=True) >= MOST_RATIO * excess_ns[:, None], inside_ns, over_ns)
    total_ns = over_ns.sum(axis=1)
    taken_ns: FloatArray = np.zeros_like(work_ns)
    taken_ns[at] = over_ns * np.minimum(1, excess_ns / np.maximum(total_ns, 1))[:, None]
    return taken_ns


def count_stalls(measured_steps: MeasuredSteps, cycles: SyncCycles, item: CandidateCause) -> int:
    """How many steps stalls lengthen: of all measured ones, also where the cycles are only some of them.

    The others are then judged by their rows: by the rank's own time in the part, or where nobody is named by how long
    the steps took.
    """
    judged = int(item.acts.sum())
    if cycles.span > 1 or not is_sample(len(cycles.steps), int(measured_steps.counted.sum())):
        return judged
    if not len(item.rows) or item.part is None:
        step_ns = measured_steps.run.step_ns(cycles.clock)[cycles.positions][:, measured_steps.counted]
        long_ns = fast_median(step_ns[:, np.isfinite(step_ns).all(axis=0)], axis=0)
        return max(judged, int((long_ns > far_limit_ns(long_ns)).sum()))
    steps, phase_ns = read_all_parts(measured_steps, cycles)
    part = OWN_PARTS.index(item.part)
    known = np.flatnonzero(np.isfinite(phase_ns[:, :, part]).all(axis=0))
    found = list_events(phase_ns[:, :, part], part, known, float(fast_median(cycles.cycle_ns)))
    at = steps[found.at[found.rows == item.rows[0]]]
    if item.period is not None:
        at = at[at % item.period == np.bincount(cycles.steps[item.acts] % item.period).argmax()]
    return max(judged, len(at))
