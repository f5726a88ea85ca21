"""Which single steps took far longer than the rest (garbage collection, a checkpoint, a hiccup), and who was late?

A late rank arrives at a collective long after all others. That alone is not enough: a rank held up by a peer in one
group arrives late at the next group's collective. So the first such arrival counts, and the rank must have lost the
time alone: between two waits, or in a wait that the other members had long left. A rank that stops while a collective
moves its data holds up everybody alike; all leave late together, and nobody can be named.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.analyze.clocks.clocks import map_clocks
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.stats.measured_steps import MeasuredSteps, sum_exposed
from distprof.analyze.stats.overhead import choose_clock, read_costs
from distprof.analyze.stats.statistics import fast_median, mad_sigma
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import COLUMN, OWN_PARTS, OWN_PHASES, PHASES, Clock, Part, Stretch
from distprof.report.wait_report import Stall

FAR_RATIO = 0.5
"""Longer than the median step by at least this share of it ..."""
FAR_SPREADS = 8.0
"""... and by this many robust standard deviations."""
MAX_SHARE = 0.1
"""If more steps than this are long, they are not single ones; one always may be."""
MAX_LISTED = 10
LATE_RATIO = 0.5
"""Share of the lost time by which one rank must arrive after all others to be named."""


class _Late(Struct, frozen=True, kw_only=True):
    """A rank that arrived late at a collective."""

    row: int
    """Its row of the cycles' axis 0."""
    waited: bool
    """It left a wait late. False: it had more to do than usual."""


class _Times(Struct, frozen=True, kw_only=True):
    """When each rank arrived at each collective of the far too long cycles and when it could go on, ns.

    ``[num_ranks, num_far, num_collectives]``, counted from when the median rank left the wait before.
    """

    number: dict[int, int]
    """Of each of these cycles, by its index among all."""
    arrival_ns: FloatArray
    left_ns: FloatArray
    gap_excess_ns: FloatArray
    """Own time before each arrival, less its median over the cycles."""
    wait_excess_ns: FloatArray
    excess_ns: FloatArray
    """Of the cycles beyond the median one, ``[num_cycles]``."""
    least_excess_ns: FloatArray
    """Of the rank that leaves the last wait of each of these cycles least late, ``[num_far]``."""

    def measure_lost(self, window: list[int]) -> float:
        """By how much these cycles took longer than the median one."""
        return float(self.excess_ns[window].sum())

    def holds_all_up(self, cycle: int) -> bool:
        """Whether every rank is as late at its end: what lengthens it is over, and is not what lengthens the next."""
        return bool(self.least_excess_ns[self.number[cycle]] >= LATE_RATIO * self.excess_ns[cycle])


def far_limit_ns(long_ns: FloatArray) -> float:
    """How long a cycle may be before it takes far longer than the median one."""
    middle = float(fast_median(long_ns))
    return middle + max(FAR_RATIO * middle, FAR_SPREADS * float(mad_sigma(long_ns)))


def _list_far(long_ns: FloatArray) -> IntArray:
    return np.flatnonzero(long_ns > far_limit_ns(long_ns))


def _list_single(long_ns: FloatArray) -> IntArray:
    """The cycles that are single long ones; none if there are many."""
    far = _list_far(long_ns)
    parts = sum(-(-len(run) // 2) for run in np.split(far, np.flatnonzero(np.diff(far) > 1) + 1))
    return far if parts <= max(1, MAX_SHARE * len(long_ns)) else far[:0]


def list_stalls(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> list[Stall]:
    """The longest first, ten at most; each names the rank that was late, if one was and it is known."""
    stalls = [*_list_recorded(measured_steps, cycles), *_list_unrecorded(measured_steps)]
    return sorted(stalls, key=lambda stall: -stall.lost_ns)[:MAX_LISTED]


def _list_unrecorded(measured_steps: MeasuredSteps) -> list[Stall]:
    """Those of shadow steps: they have no phases, and are in no other figure."""
    run = measured_steps.run
    present = measured_steps.present
    costs = read_costs(run.rows if present.all() else run.rows[present], choose_clock(run))  # a copy is large
    compared = np.flatnonzero(costs.shadow | costs.plain)
    if len(compared) < MIN_CYCLES or not costs.plain.any():
        return []
    far = compared[_list_far(costs.step_ns[compared])]
    if len(far) > max(1, MAX_SHARE * len(compared)):
        return []
    usual_ns = float(np.median(costs.step_ns[compared]))
    return [
        Stall(step=int(np.nanmax(run.rows[:, step, COLUMN["step"]])), rank=None, phase=None,
              lost_ns=float(costs.step_ns[step]) - usual_ns)
        for step in far[costs.shadow[far]].tolist()
    ]  # fmt: skip


def _list_recorded(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> list[Stall]:
    if cycles is None or len(cycles.steps) < MIN_CYCLES:
        return []
    far = _list_single(cycles.cycle_ns).tolist()
    times = _measure_times(cycles, far) if far else None
    found: list[tuple[float, list[int], _Late | None]] = []
    while far and times is not None:
        cycle = far.pop(0)
        late = _locate_late(measured_steps, cycles, times, [cycle])
        window = [cycle]
        lasts = bool(far) and far[0] == cycle + 1  # a rank that leaves late makes this cycle and the next longer
        if late is None and lasts and not times.holds_all_up(cycle):
            window.append(far.pop(0))
            late = _locate_late(measured_steps, cycles, times, window)
        found.append((times.measure_lost(window) * cycles.span, window, late))
    longest = sorted(found, key=lambda item: -item[0])[:MAX_LISTED]
    return [_make_stall(measured_steps, cycles, window, late, lost_ns) for lost_ns, window, late in longest]


def _measure_times(cycles: SyncCycles, far: list[int]) -> _Times:
    long_ns = cycles.cycle_ns
    work_ns, blocked_ns = cycles.work_ns[:, far], cycles.blocked_ns[:, far]
    through_ns = np.cumsum(work_ns + blocked_ns, axis=2) + cycles.start_ns[:, far, None]
    usual_ns = fast_median(cycles.work_ns.sum(axis=2) + cycles.blocked_ns.sum(axis=2) + cycles.start_ns, axis=1)
    return _Times(
        number={cycle: number for number, cycle in enumerate(far)},
        arrival_ns=through_ns - blocked_ns, left_ns=through_ns,
        gap_excess_ns=work_ns - _usual_ns(cycles.work_ns), wait_excess_ns=blocked_ns - _usual_ns(cycles.blocked_ns),
        excess_ns=long_ns - np.median(long_ns), least_excess_ns=(through_ns[:, :, -1] - usual_ns[:, None]).min(axis=0),
    )  # fmt: skip


def _usual_ns(values_ns: FloatArray) -> FloatArray:
    """The median over the cycles, ``[num_ranks, 1, num_collectives]``, one collective after the other."""
    medians = [fast_median(values_ns[:, :, index], axis=1) for index in range(values_ns.shape[2])]
    return np.stack(medians, axis=1)[:, None]


def _locate_late(measured_steps: MeasuredSteps, cycles: SyncCycles, times: _Times, window: list[int]) -> _Late | None:
    """The first rank that arrived so long after all others of its group, if it lost the time alone."""
    needed_ns = LATE_RATIO * times.measure_lost(window)
    found: list[tuple[int, float, int, int]] = []
    for cycle in window:
        for index, groups in enumerate(cycles.groups):
            for _, members in groups:
                last = _choose_last(
                    measured_steps, cycles, times.arrival_ns[members, times.number[cycle], index], members, cycle,
                    needed_ns,
                )  # fmt: skip
                if last is not None:
                    found.append((cycle, float(times.arrival_ns[last, times.number[cycle], index]), index, last))
    if not found:
        return None
    cycle, _, index, row = min(found)
    number = times.number[cycle]
    own_ns = times.gap_excess_ns[row, number, : index + 1].max()
    waits_ns = times.wait_excess_ns[row, number, :index]
    start_ns = float(cycles.start_ns[row, cycle])
    if own_ns >= max(waits_ns.max(initial=0.0), start_ns):
        return _Late(row=row, waited=False)
    where = -1 if start_ns >= waits_ns.max(initial=0.0) else int(waits_ns.argmax())
    left_ns = cycles.start_ns[:, cycle] if where < 0 else times.left_ns[:, number, where]
    members = next(members for _, members in cycles.waited[where] if row in members)
    alone = _choose_last(measured_steps, cycles, left_ns[members], members, cycle, needed_ns) == row
    return _Late(row=row, waited=True) if alone else None


def _choose_last(
    measured_steps: MeasuredSteps,
    cycles: SyncCycles,
    at_ns: FloatArray,
    members: IntArray,
    cycle: int,
    needed_ns: float,
) -> int | None:
    """The rank that is last by at least ``needed_ns``, whatever the error of the clocks; None: there is none."""
    if len(members) < 2:
        return None
    before, last = np.argsort(at_ns)[-2:]
    lead_ns = float(at_ns[last] - at_ns[before])
    if lead_ns < needed_ns:
        return None
    if cycles.clock is Clock.DEVICE:
        return int(members[last])  # no clocks are compared
    first, second = (int(cycles.positions[members[index]]) for index in (before, last))
    begin_ns = measured_steps.run.column("begin_host_ns")[second, cycles.steps[cycle]]
    clocks = map_clocks(measured_steps.run)
    bound_ns = float(clocks.pair_bound_ns(first, second, clocks.to_reference(second, begin_ns)))
    apart = np.isfinite(bound_ns)  # else their clocks are not comparable, and times count from one start
    return int(members[last]) if not apart or lead_ns - bound_ns >= needed_ns else None


def _make_stall(
    measured_steps: MeasuredSteps, cycles: SyncCycles, window: list[int], late: _Late | None, lost_ns: float
) -> Stall:
    first = _choose_step(measured_steps, cycles, window[0], late)
    part = _choose_phase(measured_steps, cycles, window, late)
    at_end = late is not None and not late.waited and cycles.span == 1 and part in cycles.tail_phases
    return Stall(
        step=int(measured_steps.run.rows[cycles.positions[0], first, COLUMN["step"]]) - at_end,  # of the step before
        rank=None if late is None else measured_steps.numbers[int(cycles.positions[late.row])], phase=part.value,
        lost_ns=lost_ns,
    )  # fmt: skip


def _choose_step(measured_steps: MeasuredSteps, cycles: SyncCycles, cycle: int, late: _Late | None) -> int:
    """The longest step of a cycle, without the waits: on the late rank or, if no rank is named, on average."""
    steps = np.arange(cycles.steps[cycle] - cycles.span + 1, cycles.steps[cycle] + 1)
    positions = cycles.positions if late is None else cycles.positions[[late.row]]
    run, clock = measured_steps.run, cycles.clock
    own_ns = run.step_ns(clock)[positions][:, steps] - sum_exposed(run.rows[positions][:, steps], clock)
    return int(steps[np.nan_to_num(own_ns).mean(axis=0).argmax()])


def _choose_phase(measured_steps: MeasuredSteps, cycles: SyncCycles, window: list[int], late: _Late | None) -> Part:
    """Where the rank lost the time; if no rank is named, where the ranks spent it, waits included."""
    if late is not None and not late.waited:
        own_ns = cycles.phase_ns[late.row]
        excess_ns = own_ns[window] - np.median(own_ns, axis=0)
        return OWN_PARTS[int(np.argmax(np.nan_to_num(excess_ns).max(axis=0)))]
    rows = slice(None) if late is None else [late.row]
    steps = cycles.steps[window]
    if late is not None:  # the wait that it left late may be the last of the step before
        steps = np.concatenate([steps[:1] - (steps[0] > 0), steps])
    phase_ns = measured_steps.run.phase_ns(cycles.clock)[cycles.positions[rows]]
    excess_ns = np.nan_to_num(phase_ns[:, steps] - np.median(phase_ns[:, cycles.steps], axis=1, keepdims=True))
    between_ns = cycles.phase_ns[rows, :, len(OWN_PHASES) :]
    between_ns = np.nan_to_num(between_ns[:, window] - np.median(between_ns, axis=1, keepdims=True))
    most = [*excess_ns.mean(axis=0).max(axis=0), *between_ns.mean(axis=0).max(axis=0)]
    parts: tuple[Part, ...] = (*PHASES, *Stretch)
    return parts[int(np.argmax(most))]
