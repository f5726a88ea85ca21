"""Rounds: ranks that meet only every k-th step, as in local SGD, work on their own from one meeting to the next.

The own time of all steps of a round makes a rank late at its end, so that a round is compared as a whole. A round is
one wait, as rows tell it: the many collectives that average parameters follow each other.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.analyze.cycles.cycle_parts import TimeBetween, read_between
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import COMMUNICATION_PHASES, KINDS, OWN_PARTS, OWN_PHASES, PHASE_CODE, Clock, Phase, Stretch

MIN_ALONE_RATIO = 1 / 3
"""Share of the steps in which ranks do not meet, from which on a cycle is a round and not a step."""
_BETWEEN, _DATA = OWN_PARTS.index(Stretch.BETWEEN), OWN_PARTS.index(Phase.DATA)
_OWN_CODES = [PHASE_CODE[phase] for phase in OWN_PHASES]
_WAIT_CODES = [PHASE_CODE[phase] for phase in COMMUNICATION_PHASES]
_IN_ORDER = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.OPTIMIZER)


class Rounds(Struct, frozen=True, kw_only=True):
    """The rounds of one length, which most steps belong to, as far as all of their steps are known."""

    first: IntArray
    """Position of each round's first step on axis 1 of ``Run.rows``, ``[num_rounds]``."""
    span: int
    """Steps of a round."""
    between: bool
    """The ranks meet after the round's last step, before the next one begins. False: in its last step."""

    @property
    def last(self) -> IntArray:
        """Position of each round's last step."""
        return self.first + self.span - 1


class RoundTimes(Struct, frozen=True, kw_only=True):
    """What ranks did in each round, as the mean of its steps, ns."""

    phase_ns: FloatArray
    """Own time by part, ``[num_ranks, num_rounds, len(OWN_PARTS)]``."""
    blocked_ns: FloatArray
    """Waited at its end, ``[num_ranks, num_rounds]``."""


def locate_rounds(measured_steps: MeasuredSteps) -> Rounds | None:
    """The rounds of a job; None: its ranks meet in most steps, or never, or it is not known where they meet."""
    run, present, counted = measured_steps.run, measured_steps.present, measured_steps.counted
    issued = np.stack([run.column(f"{kind}_count")[present] for kind in KINDS])
    counts = np.isfinite(issued).any(axis=0).all(axis=0)  # kinds that the recorder did not know say nothing
    shared = _count_shared(measured_steps, np.nan_to_num(issued).sum(axis=0))
    inside: BoolArray = np.logical_or.reduce(shared > 0, axis=0)
    before: BoolArray = np.logical_or.reduce(np.nan_to_num(run.column("between_count")[present]) > 0, axis=0)
    alone = counted & counts & ~inside & ~before
    if not alone.sum() >= MIN_ALONE_RATIO * counted.sum() > 0 or not (inside | before)[counted].any():
        return None
    between = bool(before[counted].sum() > inside[counted].sum())
    meets, other = (before, inside) if between else (inside, before)
    last = np.flatnonzero(meets) - between
    first, last = last[:-1] + 1, last[1:]
    known = ~_count(~_mark_known(measured_steps), first, last).astype(bool) & (first <= last)
    known &= _count(other, first, last) == 0
    first, spans = first[known], (last - first + 1)[known]
    if not len(spans):
        return Rounds(first=first, span=1, between=between)
    lengths, numbers = np.unique(spans, return_counts=True)
    span = int(lengths[(lengths * numbers).argmax()])
    return Rounds(first=first[spans == span], span=span, between=between)


def _count_shared(measured_steps: MeasuredSteps, issued: FloatArray) -> FloatArray:
    """Collectives without those of groups of one rank, in which nobody meets, ``[num_present, num_steps]``."""
    row_of = np.cumsum(measured_steps.present) - 1
    for table in measured_steps.run.collectives:
        if table.size == 1 and measured_steps.present[table.ranks[0]]:
            issued[row_of[table.ranks[0]], table.steps] -= len(table.kinds)
    return issued


def _mark_known(measured_steps: MeasuredSteps) -> BoolArray:
    """The steps that count, and among them those without instruments, that follow each other, ``[num_steps]``."""
    known = measured_steps.timed.copy()
    numbers = np.nanmax(measured_steps.run.column("step")[measured_steps.present], axis=0, initial=-1)
    known[1:] &= np.diff(numbers) == 1
    return known


def _count(marked: BoolArray, first: IntArray, last: IntArray) -> IntArray:
    """How many of the steps from the first to the last are marked."""
    until = np.concatenate([[0], np.cumsum(marked)])
    found: IntArray = until[np.maximum(last + 1, first)] - until[first]
    return found


def measure_rounds(
    measured_steps: MeasuredSteps, rounds: Rounds, positions: IntArray, predecessors: IntArray, clock: Clock
) -> RoundTimes | None:
    """Sums up the steps of rounds.

    Args:
        measured_steps: The ranks and steps that count.
        rounds: Which steps belong together.
        positions: Positions of the ranks in ``Run.ranks``.
        predecessors: Of every step, the position of the step just before it; -1: not known, ``[num_steps]``.
        clock: Of the times.

    Returns:
        None where the ranks meet between steps, whose waits a device's clock does not show, and where no step of
        some rank is divided into phases on this clock.
    """
    run, steps = measured_steps.run, np.arange(measured_steps.run.rows.shape[1])
    if rounds.between and clock is Clock.DEVICE:
        return None
    waits_ns = np.nan_to_num(run.wait_ns(clock)[positions])
    own_ns = np.maximum(run.phase_ns(clock)[positions][:, :, _OWN_CODES] - waits_ns, 0)
    blocked_ns = waits_ns.sum(axis=2) + np.nan_to_num(run.phase_ns(clock)[positions][:, :, _WAIT_CODES]).sum(axis=2)
    if not np.isfinite(own_ns.sum(axis=2)).any(axis=1).all():
        return None
    _fill_uninstrumented(own_ns, run.step_ns(clock)[positions])
    if not rounds.between:
        _shift_tails(own_ns, waits_ns, measured_steps, rounds, clock)
    parts_ns = np.zeros((*own_ns.shape[:2], len(OWN_PARTS)))
    parts_ns[:, :, : len(OWN_PHASES)] = own_ns
    there, first, last = np.zeros_like(parts_ns), rounds.first, rounds.last
    if clock is Clock.HOST:
        between = read_between(measured_steps, positions, steps, predecessors)
        for part, part_ns in between.own_ns.items():
            there[:, :, OWN_PARTS.index(part)] = part_ns
        blocked_ns += between.wait_ns
    meets = int(rounds.between)
    phase_ns = _add_up(parts_ns, first, last) + _add_up(there, first + meets, last + meets)
    if rounds.between:
        after_ns = _split_after(there, between)
        phase_ns += after_ns[:, first] - after_ns[:, last + 1]
    blocked_ns = _add_up(blocked_ns[:, :, None], first + meets, last + meets)[:, :, 0]
    return RoundTimes(phase_ns=np.maximum(phase_ns, 0) / rounds.span, blocked_ns=blocked_ns / rounds.span)


def _add_up(values: FloatArray, first: IntArray, last: IntArray) -> FloatArray:
    """Sums over the steps from the first to the last, ``[num_ranks, num_rounds, num_parts]``."""
    found = np.zeros((len(values), len(first), values.shape[2]))
    for offset in range(int((last - first).max(initial=-1)) + 1):
        found += values[:, first + offset]
    return found


def _fill_uninstrumented(own_ns: FloatArray, step_ns: FloatArray) -> None:
    """Divides a step without instruments, in which ranks do not meet, as the rank's other steps are divided."""
    unknown = ~np.isfinite(own_ns).all(axis=2) & np.isfinite(step_ns)
    for row in np.flatnonzero(unknown.any(axis=1)).tolist():
        usual_ns = np.nan_to_num(np.nanmean(own_ns[row], axis=0))
        share = usual_ns / max(float(usual_ns.sum()), 1.0)
        own_ns[row, unknown[row]] = step_ns[row, unknown[row], None] * share


def _shift_tails(
    own_ns: FloatArray, waits_ns: FloatArray, measured_steps: MeasuredSteps, rounds: Rounds, clock: Clock
) -> None:
    """Moves the phases that follow the last wait of a step to the step after it: they make a rank late there."""
    for phase in _list_after(waits_ns, measured_steps, rounds, clock):
        code = OWN_PHASES.index(phase)
        own_ns[:, 1:, code] = own_ns[:, :-1, code]


def _list_after(waits_ns: FloatArray, measured_steps: MeasuredSteps, rounds: Rounds, clock: Clock) -> tuple[Phase, ...]:
    """The phases after the one in which ranks meet; none if they meet outside of all phases, as after the optimizer."""
    waited_ns = waits_ns[:, rounds.last].sum(axis=(0, 1))
    communicating = np.nan_to_num(measured_steps.run.phase_ns(clock)[measured_steps.present][:, rounds.last])
    if communicating[:, :, _WAIT_CODES].sum() >= waited_ns.sum():
        return _IN_ORDER[_IN_ORDER.index(Phase.BACKWARD) + 1 :]
    waits_in = OWN_PHASES[int(waited_ns.argmax())]
    return _IN_ORDER[_IN_ORDER.index(waits_in) + 1 :] if waits_in in _IN_ORDER else ()


def _split_after(there_ns: FloatArray, between: TimeBetween) -> FloatArray:
    """Own time after the last wait between two steps, which belongs to the round that begins there, by part: first of
    all for the next batch, which loops take last."""
    after_ns, left_ns = np.zeros_like(there_ns), between.after_ns
    for code in (_DATA, _BETWEEN):
        after_ns[:, :, code] = np.minimum(there_ns[:, :, code], left_ns)
        left_ns = left_ns - after_ns[:, :, code]
    return after_ns
