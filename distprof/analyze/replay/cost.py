"""What does each cause cost? The recorded cycles are replayed without it, alone and after all others have gone.

Of two ranks that are late together, each hides what the other costs, so a cause is listed if it costs something in
either case. The parts of a joint replay are means over two orders of removal, the largest cause first and the largest
last, but a slow link before all other transfers in both; in each order they add up to what removing everything saves.
Jitter is what remains when the causes with a name have gone; what it costs while they stay is less, because ranks that
wait for a late one are not last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_COST_RATIO, MIN_TAKEN_RATIO, CandidateCause
from distprof.analyze.replay.replay import Counterfactual, replay, replay_without
from distprof.analyze.stats.mean_interval import (
    estimate,
    measure_skew,
    measure_unseen_error,
    measure_unseen_hiding,
    spread_error,
)
from distprof.analyze.stats.significance import binomial_tail
from distprof.analyze.stats.statistics import FEW, midmean
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock
from distprof.report.wait_report import LATE_KINDS, Estimate

MAX_LISTED = 8
SIGN_LEVEL = 0.025
"""Of the sign test that a cause costs something."""
SEEN_RATIO = 0.25
"""Of what a cause takes: if it costs less, most of it is hidden."""
WIDEST_ERROR, WIDEST_SMALL_ERROR, SMALL_RATIO = 4.0, 1.4, 0.02
"""Where the interval of a cost reaches 0, the cost is listed if the interval ends at most this many times its value
below it: beyond, the steps were too few or too unlike each other to say how much it is. A cost below this share of a
step must be known better: on a crowded machine some rank always is a little later."""
QUARTILES = (0.25, 0.75)


LEFT_RATIO = 0.1
"""Of what nobody's long steps cost, so much must be left of them once all that is somebody's has gone."""


class Cost(Struct, frozen=True, kw_only=True):
    """What a cause costs per step, ns and as a share of the step."""

    lost_ns: Estimate
    lost_ratio: Estimate
    alone_ns: Estimate
    alone_ratio: Estimate
    time_ratio: float = 1.0
    """Share of all cycles' time that those take in which the cause acts, if they are a stretch of the run; else 1."""
    is_sure: bool = False
    """It costs more cycles time than it spares, first or last, by more than chance. An interval may reach 0 all the
    same: it is of how much, for steps that drift, and holds the error of the excess, which was tested before."""

    def in_stretch(self, ratio: Estimate) -> Estimate:
        """A share of the mean step as a share of the steps in which the cause acts."""
        value, low, high = (min(part / self.time_ratio, 1.0) for part in (ratio.value, ratio.low, ratio.high))
        return Estimate(value=value, low=low, high=high)

    def widen(self, other: Cost) -> Cost:
        """With intervals that also hold the other's."""
        return structs.replace(
            self,
            lost_ns=_widen(self.lost_ns, other.lost_ns), lost_ratio=_widen(self.lost_ratio, other.lost_ratio),
            alone_ns=_widen(self.alone_ns, other.alone_ns), alone_ratio=_widen(self.alone_ratio, other.alone_ratio),
        )  # fmt: skip


class CauseCosts(Struct, frozen=True, kw_only=True):
    """The causes that cost something, and everything that makes cycles longer than they need be."""

    named: tuple[tuple[CandidateCause, Cost], ...]
    """By what they cost once all others are gone, the largest first; stalls that are nobody's come last."""
    jitter: Cost
    """That a different rank is last at every collective."""
    communication: Cost
    """That moving data takes time."""
    joint_ns: tuple[float, ...]
    """Parts of what removing everything saves: of the causes with a name, of jitter, and of communication."""
    step_ns: float
    ideal_ns: float
    """The mean of the median rank's own times, or what is left when everything has gone, if that is shorter."""
    together_ratio: Estimate
    """What removing all causes with a name saves, as a share of the step."""


def cost_causes(cycles: SyncCycles, candidates: Sequence[CandidateCause]) -> CauseCosts:
    """Replays the cycles without each candidate, and drops those that cost nothing worth mentioning."""
    as_is_ns = replay_without(cycles, ())
    listed = _allow_for_early_transfers(cycles, _drop_small(cycles, as_is_ns, candidates))
    listed = _allow_for_other_transfers(cycles, as_is_ns, listed)
    listed = [(item, cost) for item, cost in listed if _remains(cost)]
    kept = sorted(listed, key=lambda pair: (not pair[0].has_name, -pair[1].alone_ns.value))[:MAX_LISTED]
    counterfactuals = [item.counterfactual for item, _ in kept]
    joint_ns, jitter, communication = _divide(cycles, as_is_ns, counterfactuals)
    own_ns = cycles.work_ns.sum(axis=2)
    return CauseCosts(
        named=tuple(kept), jitter=jitter, communication=communication, joint_ns=joint_ns,
        step_ns=float(as_is_ns.mean()),
        together_ratio=_cost_all(cycles, as_is_ns, [pair for pair in kept if pair[0].has_name], joint_ns),
        ideal_ns=min(float(np.median(own_ns, axis=0).mean()), float(as_is_ns.mean()) - sum(joint_ns)),
    )  # fmt: skip


def _drop_small(
    cycles: SyncCycles, as_is_ns: FloatArray, candidates: Sequence[CandidateCause]
) -> list[tuple[CandidateCause, Cost]]:
    """Those that cost enough; replayed again without those that do not."""
    left = list(candidates)
    while left:
        costed = [(item, _cost(cycles, as_is_ns, left, item)) for item in left]
        listed = [(item, cost) for item, cost in costed if is_listed(item, cost, len(as_is_ns))]
        if len(listed) == len(left):
            return listed
        left = [item for item, _ in listed]
    return []


def is_listed(item: CandidateCause, cost: Cost, num_cycles: int) -> bool:
    """Whether it is beyond doubt and worth mentioning, first or last; what is nobody's, last: long steps that somebody
    explains are no cause of their own. It must be more where its interval reaches 0, and where most of what it takes is
    hidden, as by transfers, because the replay does not know the rest so well."""
    taken_ns = item.taken_ns / num_cycles
    first = [(cost.lost_ns, cost.lost_ratio)] if item.has_name else []
    if not first and cost.alone_ns.value < LEFT_RATIO * cost.lost_ns.value:
        return False
    for cost_ns, ratio in (*first, (cost.alone_ns, cost.alone_ratio)):
        is_seen = 0 < SEEN_RATIO * taken_ns <= cost_ns.value and ratio.low > 0
        least = MIN_COST_RATIO if is_seen else MIN_TAKEN_RATIO
        if ratio.value >= least and (ratio.low > 0 or (cost.is_sure and _is_known(ratio))):
            return True
    return False


def _remains(cost: Cost) -> bool:
    """Whether it is still listed once its intervals hold what else may change. What costs little must then cost
    something in any case: on a crowded machine some rank always is a little later, or has more of some events."""
    return any(
        _is_known(ratio) and (ratio.low > 0 or ratio.value >= MIN_TAKEN_RATIO)
        for ratio in (cost.lost_ratio, cost.alone_ratio)
    )


def _is_known(ratio: Estimate) -> bool:
    """Whether its interval says more than that it may be anything."""
    widest = WIDEST_SMALL_ERROR if ratio.value < SMALL_RATIO else WIDEST_ERROR
    return ratio.value - ratio.low <= widest * ratio.value


def _cost(
    cycles: SyncCycles,
    as_is_ns: FloatArray,
    candidates: Sequence[CandidateCause],
    item: CandidateCause,
    *besides: Counterfactual,
) -> Cost:
    """What one of several candidates costs, first and last, if something else goes with it."""
    gone = [item.counterfactual, *besides]
    first_ns = last_ns = as_is_ns - replay_without(cycles, gone)
    others = [other.counterfactual for other in candidates if other is not item and other.has_name]
    if others:
        last_ns = replay_without(cycles, others) - replay_without(cycles, [*others, *gone])
    return _make_cost(item, as_is_ns, first_ns, last_ns, cycles.num_in_run)


def _allow_for_early_transfers(
    cycles: SyncCycles, listed: list[tuple[CandidateCause, Cost]]
) -> list[tuple[CandidateCause, Cost]]:
    """Intervals that also hold what the causes cost if transfers were ahead by the least, or by the most."""
    candidates = [item for item, _ in listed]
    for supposed in _list_supposed(cycles):
        as_is_ns = replay_without(supposed, ())
        listed = [(item, cost.widen(_cost(supposed, as_is_ns, candidates, item))) for item, cost in listed]
    return listed


def _allow_for_other_transfers(
    cycles: SyncCycles, as_is_ns: FloatArray, listed: list[tuple[CandidateCause, Cost]]
) -> list[tuple[CandidateCause, Cost]]:
    """Intervals that also hold what late ranks cost if transfers without them were like the quicker or the slower of
    those recorded. A rank that computes for longer than its share of a core is scheduled later to transfer, one that
    sleeps at once, and ranks that wait for longer take longer to wake up: what no recorded step tells. What a link
    costs depends on how fast it and the others are, and probes err."""
    candidates, found = [item for item, _ in listed], []
    for item, cost in listed:
        for change in _list_other_transfers(cycles, item) if item.kind in LATE_KINDS else item.ends:
            cost = cost.widen(_cost(cycles, as_is_ns, candidates, item, change))
        found.append((item, cost))
    return found


def _list_other_transfers(cycles: SyncCycles, *candidates: CandidateCause) -> list[Counterfactual]:
    """That transfers are as in the quicker or the slower half of the cycles in which some causes act, by their
    quartiles, but by no more than these causes take, where ranks share a host's cores and transfers are its work; none
    on a device."""
    acts = np.logical_or.reduce([item.acts for item in candidates])
    total_ns = cycles.transfer_ns.max(axis=0).sum(axis=1)[acts]
    if cycles.clock is not Clock.HOST or cycles.ahead is not None or len(total_ns) < FEW or not total_ns.any():
        return []
    most = sum(item.taken_ns for item in candidates) / float(total_ns.sum())
    ratios = np.clip(1 - np.quantile(total_ns, QUARTILES) / total_ns.mean(), -most, most)
    return [Counterfactual(transfer_ns=acts[:, None] * cycles.transfer_ns * ratio) for ratio in ratios.tolist()]


def _cost_all(
    cycles: SyncCycles,
    as_is_ns: FloatArray,
    named: Sequence[tuple[CandidateCause, Cost]],
    joint_ns: Sequence[float],
) -> Estimate:
    """Share of the step that removing everything with a name saves, with an interval as wide as those of its parts: of
    events, whose errors are independent of each other's, and then of what acts all the time."""
    whole_ns, all_gone = float(as_is_ns.mean()), [item.counterfactual for item, _ in named]
    events = [(item, cost) for item, cost in named if item.is_sized_by_event]
    lasting = [
        (item, part_ns) for (item, _), part_ns in zip(named, joint_ns, strict=False) if not item.is_sized_by_event
    ]
    events_gone = [item.counterfactual for item, _ in events]
    left_ns = replay_without(cycles, events_gone)
    error_ns, sets = np.zeros(len(as_is_ns)), np.zeros(len(as_is_ns), dtype=np.int64)  # sets by which causes act
    for index, (item, part_ns) in enumerate(lasting):
        sets += item.acts * 2**index
        if item.excess_ns is not None and item.acts.any():
            error_ns[item.acts] += spread_error(item.excess_ns[item.acts], part_ns / float(item.acts.mean()))

    acts = np.any([np.zeros(len(sets), dtype=bool), *(item.acts for item, _ in lasting if item.lasts)], axis=0)

    def cost(saved_ns: FloatArray) -> Estimate:
        found = estimate(saved_ns, whole_ns, error_ns=error_ns, sets=sets)[1]
        return _allow_for_hiding(found, measure_unseen_hiding(saved_ns[acts]) * float(acts.mean()) / whole_ns)

    found = cost(left_ns - replay_without(cycles, all_gone))
    for supposed in _list_supposed(cycles):
        found = _widen(found, cost(replay_without(supposed, events_gone) - replay_without(supposed, all_gone)))
    late = [item for item, _ in lasting if item.kind in LATE_KINDS]
    changes = _list_other_transfers(cycles, *late) if late else []
    for change in itertools.chain(changes, *(item.ends for item, _ in lasting)):
        found = _widen(found, cost(left_ns - replay_without(cycles, [*all_gone, change])))
    value = float((as_is_ns - left_ns).mean()) / whole_ns + found.value
    below = math.hypot(found.value - found.low, *(cost.lost_ratio.value - cost.lost_ratio.low for _, cost in events))
    above = math.hypot(found.high - found.value, *(cost.lost_ratio.high - cost.lost_ratio.value for _, cost in events))
    return Estimate(value=value, low=value - below, high=max(min(value + above, 1.0), value))


def _list_supposed(cycles: SyncCycles) -> list[SyncCycles]:
    """The cycles if transfers were ahead by the least, and by the most, where that is not what is measured."""
    ahead = cycles.ahead
    found = [] if ahead is None else [ahead.suppose(ahead_ns) for ahead_ns in (ahead.least_ns, ahead.most_ns)]
    return [structs.replace(cycles, ahead=item) for item in found if item is not None]


def _widen(found: Estimate, other: Estimate) -> Estimate:
    return Estimate(value=found.value, low=min(found.low, other.low), high=max(found.high, other.high))


def _allow_for_hiding(found: Estimate, unseen_ratio: float) -> Estimate:
    """With an interval that also holds as much less; where nothing was below 0, it does not reach there."""
    low = found.value - math.hypot(found.value - found.low, unseen_ratio)
    return structs.replace(found, low=max(low, min(found.low, 0.0)))


def _floor(found: Estimate) -> Estimate:
    """Nothing costs less than nothing."""
    return Estimate(value=max(found.value, 0.0), low=max(found.low, 0.0), high=max(found.high, 0.0))


def _make_cost(
    item: CandidateCause | None, as_is_ns: FloatArray, first_ns: FloatArray, last_ns: FloatArray, among: int
) -> Cost:
    whole_ns = float(as_is_ns.mean())
    lost_ns, lost_ratio = _estimate(item, first_ns, whole_ns, among)
    alone_ns, alone_ratio = (lost_ns, lost_ratio) if last_ns is first_ns else _estimate(item, last_ns, whole_ns, among)
    time_ratio = 1.0 if item is None or not item.is_stretch else float(as_is_ns[item.acts].sum() / as_is_ns.sum())
    return Cost(
        lost_ns=lost_ns, lost_ratio=lost_ratio, alone_ns=alone_ns, alone_ratio=alone_ratio, time_ratio=time_ratio,
        is_sure=item is not None and any(_is_sure(item, saved_ns[item.acts]) for saved_ns in (first_ns, last_ns)),
    )  # fmt: skip


def _is_sure(item: CandidateCause, saved_ns: FloatArray) -> bool:
    """The sign test. Source: Arbuthnot (1710); Conover, Practical Nonparametric Statistics, 3.4.

    Events need none: what is taken out of a cycle is what was measured in it, and that these are no chance was tested
    before. Of three events another rank's may hide one, and still two have made steps longer."""
    if item.is_irregular and item.excess_ns is None:
        return True
    more, less = int((saved_ns >= 1.0).sum()), int((saved_ns <= -1.0).sum())  # less are rounding errors
    return binomial_tail(more, more + less, 0.5) <= SIGN_LEVEL


def _estimate(
    item: CandidateCause | None, saved_ns: FloatArray, whole_ns: float, among: int
) -> tuple[Estimate, Estimate]:
    """Mean over all cycles; the interval is from those in which the cause acts and, of events, also holds what they
    cost if those in cycles that were not recorded are more or fewer than usual."""
    saved_ns = np.where(np.abs(saved_ns) < 1.0, 0.0, saved_ns)  # rounding errors
    if item is None or not item.acts.any():
        return estimate(saved_ns, whole_ns)
    share, acting_ns = float(item.acts.mean()), saved_ns[item.acts]
    excess_ns = None if item.excess_ns is None else item.excess_ns[item.acts]
    _, ratio = estimate(
        acting_ns, whole_ns, error_ns=None if excess_ns is None else spread_error(excess_ns, float(acting_ns.mean())),
        least_ns=float(acting_ns.min()) if item.is_irregular else None, most_ns=whole_ns / share,
    )  # fmt: skip
    value = float(saved_ns.mean()) / whole_ns
    skew = 0.0 if excess_ns is None else measure_skew(excess_ns) / max(float(midmean(excess_ns)), 1.0)
    low, high = min(ratio.low * share, value), max(min(ratio.high * share + skew * value, 1.0), value)
    if item.is_sized_by_event:
        unseen = measure_unseen_error(saved_ns, among).reach / whole_ns
        least = low * min(len(saved_ns) / max(among, 1), 1.0)  # if nothing happened in the others
        low = max(value - math.hypot(value - low, unseen), least)
        high = max(min(value + math.hypot(high - value, unseen), 1.0), value)
    found = Estimate(value=value, low=low, high=high)
    if item.lasts:
        found = _allow_for_hiding(found, measure_unseen_hiding(acting_ns) * share / whole_ns)
    return Estimate(value=value * whole_ns, low=found.low * whole_ns, high=high * whole_ns), found


def _divide(
    cycles: SyncCycles, as_is_ns: FloatArray, counterfactuals: Sequence[Counterfactual]
) -> tuple[tuple[float, ...], Cost, Cost]:
    """The parts of the joint saving, and what jitter and communication cost."""
    count = len(counterfactuals)

    def replay_gone(places: Sequence[int], *, median: bool = False, instant: bool = False) -> FloatArray:
        gone = [counterfactuals[place] for place in places]
        return replay_without(cycles, gone, median_arrivals=median, instant_transfers=instant)

    everything = range(count)
    down = [as_is_ns, *(replay_gone(range(end)) for end in range(1, count + 1)), replay_gone(everything, median=True)]
    nothing_ns = replay_gone(everything, median=True, instant=True)
    # What slows transfers down, a link or an event, is a part of all transfers: it goes before these here, too.
    slowing = [place for place in reversed(everything) if counterfactuals[place].transfer_ns is not None]
    order = [*slowing, *(place for place in reversed(everything) if place not in slowing)]
    up = [replay_gone(order[:end]) for end in range(1, len(slowing) + 1)]
    up += [replay_gone(order[:end], instant=True) for end in range(len(slowing), count + 1)]
    instant_ns = replay_gone((), instant=True) if slowing else up[0]
    removed_first = [*_measure_steps(down), float((down[-1] - nothing_ns).mean())]
    last = _measure_steps([as_is_ns, *up, nothing_ns])
    moving_ns = last.pop(len(slowing))
    removed_last = [*(one for _, one in sorted(zip(order, last, strict=False))), last[count], moving_ns]
    joint_ns = tuple((one + other) / 2 for one, other in zip(removed_first, removed_last, strict=True))
    named_gone_ns = down[count]
    last_ns = named_gone_ns - down[-1]
    first_ns = as_is_ns - _replay_punctual(cycles, counterfactuals) if count else last_ns
    jitter = _make_cost(None, as_is_ns, first_ns, last_ns, cycles.num_in_run)
    jitter = structs.replace(jitter, lost_ns=_floor(jitter.lost_ns), lost_ratio=_floor(jitter.lost_ratio))
    communication = _make_cost(None, as_is_ns, as_is_ns - instant_ns, named_gone_ns - up[-1], cycles.num_in_run)
    return joint_ns, jitter, communication


def _replay_punctual(cycles: SyncCycles, counterfactuals: Sequence[Counterfactual]) -> FloatArray:
    """Cycles without jitter while the causes stay: what these add to any rank's own time before an arrival falls on
    all, since all wait for that rank."""
    work_ns = cycles.work_ns.copy()
    for item in counterfactuals:
        for row, taken_ns in item.work_ns.items():
            work_ns[row] = np.maximum(work_ns[row] - taken_ns, 0)
    return replay(cycles, work_ns=work_ns + (cycles.work_ns - work_ns).max(axis=0), median_arrivals=True)


def _measure_steps(replayed: Sequence[FloatArray]) -> list[float]:
    return [float((before - after).mean()) for before, after in itertools.pairwise(replayed)]
