"""What a rank's own time in a cycle consists of: its phases, and what it did between two steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import fast_median
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import OWN_PARTS, OWN_PHASES, PHASE_CODE, Clock, Part, Phase, Stretch

_OWN_CODES = [PHASE_CODE[phase] for phase in OWN_PHASES]
_OTHER = OWN_PARTS.index(Phase.OTHER)
_TIMED = (Stretch.EVALUATION, Stretch.CHECKPOINT, Stretch.LOGGING)


class TimeBetween(Struct, frozen=True, kw_only=True):
    """The time from the end of the step before to the begin of a step, ns, ``[num_ranks, num_cycles]``."""

    idle_ns: FloatArray
    """All of it; 0 without a step before."""
    wait_ns: FloatArray
    """Waited in collectives that all ranks issue there."""
    after_ns: FloatArray
    """From the end of the last such wait to the begin of the step; 0 where there is none."""
    together: BoolArray
    """Cycles in which all ranks issue collectives there, ``[num_cycles]``."""
    own_ns: dict[Part, FloatArray]
    """Own time by part: the stretches, and getting the next batch as ``Phase.DATA``."""


def read_between(
    measured_steps: MeasuredSteps, positions: IntArray, steps: IntArray, before: IntArray, clock: Clock = Clock.HOST
) -> TimeBetween:
    """Reads the time between steps. What a rank did there is known from its host, and takes no longer on either clock.

    Args:
        measured_steps: The ranks and steps that count.
        positions: Positions in ``Run.ranks``.
        steps: Positions on axis 1 of ``Run.rows``.
        before: The position of the step just before each; -1: unknown.
        clock: On which it is measured.
    """
    run = measured_steps.run
    begin_ns = run.column(f"begin_{clock}_ns")[positions]
    over_ns = begin_ns + run.column(f"step_{clock}_ns")[positions]
    idle_ns = np.where(before >= 0, begin_ns[:, steps] - over_ns[:, np.maximum(before, 0)], 0.0)
    idle_ns = np.maximum(np.nan_to_num(idle_ns), 0)

    def read(name: str) -> FloatArray:
        found: FloatArray = np.maximum(np.nan_to_num(run.column(name)[np.ix_(positions, steps)]), 0)
        return found

    together: BoolArray = (read("between_count") > 0).all(axis=0) & (before >= 0)
    wait_ns = np.where(together, np.minimum(read("between_wait_host_ns"), idle_ns), 0)
    after_ns = np.where(together, np.minimum(read("between_after_host_ns"), idle_ns - wait_ns), 0)
    left_ns = idle_ns - wait_ns
    own_ns: dict[Part, FloatArray] = {}
    for part in (Phase.DATA, *_TIMED):
        name = "between_data_host_ns" if part is Phase.DATA else f"{part}_host_ns"
        own_ns[part] = np.minimum(read(name), left_ns)
        left_ns = left_ns - own_ns[part]
    own_ns[Stretch.BETWEEN] = left_ns
    return TimeBetween(idle_ns=idle_ns, wait_ns=wait_ns, after_ns=after_ns, together=together, own_ns=own_ns)


def take_parts(
    measured_steps: MeasuredSteps,
    clock: Clock,
    positions: IntArray,
    steps: IntArray,
    before: IntArray,
    *,
    last: Part,
    tail_ns: FloatArray | None,
    between: TimeBetween | None,
) -> tuple[FloatArray, tuple[Phase, ...]]:
    """Own time by cycle and part, ``[num_ranks, num_cycles, len(OWN_PARTS)]``; NaN: not measured. And the phases that
    are from the step before.

    What follows a step's last wait belongs to the next cycle; where the step before is unknown, the rank's median
    stands for it.

    Args:
        measured_steps: The ranks and steps that count.
        clock: Of the phases.
        positions: Positions in ``Run.ranks``.
        steps: Positions on axis 1 of ``Run.rows``.
        before: The position of the step just before each; -1: unknown.
        last: The phase in which the last collective is issued.
        tail_ns: From the end of the last wait to the end of the step, ``[num_ranks, num_cycles]``. None: unknown.
        between: None: not known on this clock.
    """
    phase_ns, waits_ns = measured_steps.run.phase_ns(clock), measured_steps.run.wait_ns(clock)

    def read(phase: Phase, chosen: IntArray) -> FloatArray:
        """The phase without the waits in it, in some steps, ``[num_ranks, len(chosen)]``."""
        cells, code = np.ix_(positions, chosen), OWN_PHASES.index(phase)
        own_ns: FloatArray = phase_ns[:, :, _OWN_CODES[code]][cells] - np.nan_to_num(waits_ns[:, :, code][cells])
        return np.maximum(own_ns, 0, out=own_ns)

    taken = np.moveaxis(np.zeros((len(OWN_PARTS), len(positions), len(steps))), 0, 2)  # one part at a time is read
    for code, phase in enumerate(OWN_PHASES):
        taken[:, :, code] = read(phase, steps)
    after = _choose_phases_after(taken, last, tail_ns)
    if tail_ns is not None:
        own_after_ns = taken[:, :, [OWN_PARTS.index(phase) for phase in after]].sum(axis=2)
        taken[:, :, _OTHER] = _move_tail(taken[:, :, _OTHER], tail_ns - own_after_ns, steps, before)
    for phase in after:
        there_ns, own_ns = read(phase, np.where(before >= 0, before, steps)), taken[:, :, OWN_PARTS.index(phase)]
        known = np.isfinite(there_ns) & (before >= 0)
        own_ns[...] = np.where(known, there_ns, np.median(own_ns, axis=1, keepdims=True))
    for part, part_ns in ({} if between is None else between.own_ns).items():
        taken[:, :, OWN_PARTS.index(part)] += part_ns
    return taken, tuple(after)


def take_columns(
    measured_steps: MeasuredSteps,
    columns: Sequence[tuple[Part, str]],
    positions: IntArray,
    steps: IntArray,
    after: Sequence[Phase],
) -> FloatArray:
    """Part of the time by cycle and part, ns, as `take_parts`; 0 where that was not recorded.

    Args:
        measured_steps: The ranks and steps that count.
        columns: Parts and the columns that hold some of their time; those named ``between_`` are of the time between
            the step before and this one.
        positions: Positions in ``Run.ranks``.
        steps: Positions on axis 1 of ``Run.rows``.
        after: The phases that are from the step before.
    """
    run = measured_steps.run
    taken = np.zeros((len(positions), len(steps), len(OWN_PARTS)))
    for part, name in columns:
        chosen = np.maximum(steps - 1, 0) if part in after and not name.startswith("between_") else steps
        taken[:, :, OWN_PARTS.index(part)] += np.nan_to_num(run.column(name)[np.ix_(positions, chosen)])
    return taken


def _read_after(
    measured_steps: MeasuredSteps, clock: Clock, positions: IntArray, steps: IntArray, last: Part
) -> FloatArray:
    """The own time of the phases that follow a step's last collective, ns, ``[num_ranks, len(steps)]``."""
    after_ns = np.zeros((len(positions), len(steps)))
    for phase in _list_after(last):
        for sign, name in ((1.0, f"{phase}_{clock}_ns"), (-1.0, f"{phase}_wait_{clock}_ns")):
            after_ns += sign * np.nan_to_num(measured_steps.run.column(name)[np.ix_(positions, steps)])
    return after_ns


def _list_after(last: Part) -> list[Phase]:
    return [Phase.OPTIMIZER] if last is Phase.GRAD_NORM else [Phase.GRAD_NORM, Phase.OPTIMIZER]


def _choose_phases_after(taken: FloatArray, last: Part, tail_ns: FloatArray | None) -> list[Phase]:
    """The phases that follow the last wait."""
    after = _list_after(last)
    if tail_ns is None or last is not Phase.OTHER:
        return after
    parts_ns = [taken[:, :, OWN_PARTS.index(phase)] for phase in after]
    if not all(np.isfinite(part_ns).any() for part_ns in parts_ns):
        return []
    long_ns = sum(float(np.nanmedian(part_ns)) for part_ns in parts_ns)
    return after if float(np.median(tail_ns)) >= 0.5 * long_ns else []


def _move_tail(other_ns: FloatArray, rest_ns: FloatArray, steps: IntArray, before: IntArray) -> FloatArray:
    """Time in no phase, of which what follows the last wait belongs to the next cycle.

    Args:
        other_ns: All of it, ``[num_ranks, num_cycles]``.
        rest_ns: From the end of the last wait to the end of the step, less the phases there.
        steps: Positions on axis 1 of ``Run.rows``.
        before: The position of the step just before each; -1: unknown.
    """
    moved_ns = np.clip(np.nan_to_num(rest_ns), 0, np.nan_to_num(other_ns))
    kept: FloatArray = other_ns - moved_ns + take_from_before(moved_ns, steps, before)
    return kept


def take_from_before(
    values_ns: FloatArray, steps: IntArray, before: IntArray, otherwise_ns: FloatArray | None = None
) -> FloatArray:
    """What each cycle has from the step before it, ``[num_ranks, num_cycles]``.

    Args:
        values_ns: What each step leaves to the next, such as the time from the end of its last wait to its own end,
            ``[num_ranks, num_cycles]``.
        steps: Positions on axis 1 of ``Run.rows``, of the cycles.
        before: The position of the step just before each; -1: unknown.
        otherwise_ns: Where that is unknown, in a shape that fits. None: the rank's median.
    """
    if otherwise_ns is None:
        otherwise_ns = fast_median(values_ns, axis=1, keepdims=True)
    at = np.minimum(np.searchsorted(steps, np.maximum(before, 0)), len(steps) - 1)
    taken: FloatArray = np.where((before >= 0) & (steps[at] == before), values_ns[:, at], otherwise_ns)
    return taken


def guess_tails(
    measured_steps: MeasuredSteps,
    clock: Clock,
    positions: IntArray,
    steps: IntArray,
    before: IntArray,
    own_tail_ns: FloatArray,
    *,
    last: Part,
) -> FloatArray:
    """From the end of the last wait of the step before to its end, where collectives are timed in some steps only: of
    the step before, the rows know how long the phases after its last wait, issued in ``last``, took, and the rest of
    its tail is as usual."""
    after_ns, before_ns = (
        _read_after(measured_steps, clock, positions, chosen, last) for chosen in (steps, before)
    )  # fmt: skip
    rest_ns = fast_median(own_tail_ns - after_ns, axis=1, keepdims=True)
    usual_ns = fast_median(own_tail_ns, axis=1, keepdims=True)
    guessed_ns = np.where(before >= 0, np.maximum(rest_ns + before_ns, 0), usual_ns)
    return take_from_before(own_tail_ns, steps, before, guessed_ns)
