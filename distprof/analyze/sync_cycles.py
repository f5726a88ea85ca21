"""Steps cut at synchronisation: a cycle lasts from the end of one step's last wait to the end of the next step's.

Between two waits a rank works on its own, so own time is the difference of two stamps of one clock. What a rank does
after a step's last wait, such as the optimizer, makes it late at the next step's first wait and counts in that cycle.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from distprof.analyze.clocks import map_clocks
from distprof.analyze.collective_order import OrderedCollectives, order_collectives
from distprof.analyze.measured_steps import BoolArray, MeasuredSteps, Timing
from distprof.facts.run import COMMUNICATION_PHASES, OWN_PHASES, PHASE_CODE, Clock, FloatArray, IntArray, Phase

MIN_CYCLES = 8
"""With fewer, nothing can be said about a rank."""
_OWN_CODES = [PHASE_CODE[phase] for phase in OWN_PHASES]
_WAIT_CODES = [PHASE_CODE[phase] for phase in COMMUNICATION_PHASES]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCycles:
    """Own time, waits and transfers of the ranks that count, collective by collective, in order of issue."""

    source: str
    """"collectives": every collective is known. "rows": one wait per step stands for all of them."""
    clock: Clock
    positions: IntArray
    """Positions in ``Run.ranks``, ``[num_ranks]``."""
    steps: IntArray
    """Positions on axis 1 of ``Run.rows``, ``[num_cycles]``."""
    parties: tuple[tuple[tuple[str, IntArray], ...], ...]
    """For each collective the groups that run it: name, and rows of axis 0 below."""
    blocking: BoolArray
    """Whether the ranks wait for it where they issue it, ``[num_collectives]``; always true of the last one."""
    gap_ns: FloatArray
    """Own time before each arrival, ``[num_ranks, num_cycles, num_collectives]``; so are the next two."""
    exposed_ns: FloatArray
    """Waited for it; 0 where not blocking."""
    transfer_ns: FloatArray
    """From when the last member has arrived and the previous collective has ended, until the rank can go on."""
    start_ns: FloatArray
    """When each rank left the wait before, less the median rank's, ``[num_ranks, num_cycles]``; 0: unknown."""
    phase_ns: FloatArray
    """Own phases less the waits inside them, ``[num_ranks, num_cycles, len(OWN_PHASES)]``; NaN: not measured."""

    @property
    def cycle_ns(self) -> FloatArray:
        """How long each cycle took, ``[num_cycles]``."""
        return self.find_length(self.start_ns + self.gap_ns.sum(axis=2) + self.exposed_ns.sum(axis=2))

    def find_length(self, through_ns: FloatArray) -> FloatArray:
        """Length of cycles from when their ranks leave the last wait, ``[num_cycles]``.

        Ranks leave a wait together, except one that is held up just then. The median of two ranks would count half of
        that delay in this cycle and half in the next, although it makes the rank late at the next cycle's first wait.
        So the lower median counts (the earlier of the two middle ranks), where it is known when each began.

        Args:
            through_ns: From the same moment as ``start_ns``, ``[num_ranks, num_cycles]``.
        """
        return _find_middle(through_ns) if self.start_ns.any() else np.median(through_ns, axis=0)


def _find_middle(times_ns: FloatArray) -> FloatArray:
    middle: FloatArray = np.quantile(times_ns, 0.5, axis=0, method="lower")
    return middle


def find_cycles(measured_steps: MeasuredSteps, timing: Timing | None) -> SyncCycles | None:
    """The cycles of a run: from its collectives where the ranks recorded them, else from its rows.

    Args:
        measured_steps: The ranks and steps that count.
        timing: The headline clock, whose rows are used.

    Returns:
        None with fewer than two ranks, or where no wait was measured.
    """
    if timing is None or measured_steps.present.sum() < 2 or not bool(timing.measured[measured_steps.present].all()):
        return None
    ordered = order_collectives(measured_steps) if timing.clock is Clock.HOST else None
    cycles = _from_rows(measured_steps, timing) if ordered is None else _from_collectives(measured_steps, ordered)
    return None if cycles is None else _drop_beginnings(measured_steps, cycles)


def _drop_beginnings(measured_steps: MeasuredSteps, cycles: SyncCycles) -> SyncCycles:
    """Drops cycles without a recorded step before them, if enough are left: how late their ranks began is unknown."""
    follows = _find_predecessors(measured_steps, cycles.steps) >= 0
    if follows.all() or follows.sum() < MIN_CYCLES:
        return cycles
    return dataclasses.replace(
        cycles, steps=cycles.steps[follows], gap_ns=cycles.gap_ns[:, follows], exposed_ns=cycles.exposed_ns[:, follows],
        transfer_ns=cycles.transfer_ns[:, follows], start_ns=cycles.start_ns[:, follows],
        phase_ns=cycles.phase_ns[:, follows],
    )  # fmt: skip


def _from_collectives(measured_steps: MeasuredSteps, ordered: OrderedCollectives) -> SyncCycles:
    arrival_ns = ordered.arrival_ns
    exposed_ns = np.where(ordered.blocking, np.nan_to_num(ordered.exposed_ns), 0.0)
    resume_ns = arrival_ns + exposed_ns
    gap_ns = np.empty_like(arrival_ns)
    gap_ns[:, :, 1:] = arrival_ns[:, :, 1:] - resume_ns[:, :, :-1]
    begin_ns = measured_steps.run.column("begin_host_ns")[ordered.positions]
    over_ns = begin_ns + measured_steps.run.column("step_host_ns")[ordered.positions]
    tail_ns = over_ns[:, ordered.steps] - resume_ns[:, :, -1]
    before = _find_predecessors(measured_steps, ordered.steps)
    at = np.searchsorted(ordered.steps, np.maximum(before, 0))
    known = (before >= 0) & (ordered.steps[np.minimum(at, len(ordered.steps) - 1)] == before)
    usual_ns = np.median(tail_ns, axis=1, keepdims=True)  # the last step's own tail counts in the next cycle
    tail_ns = np.where(known, tail_ns[:, np.minimum(at, len(ordered.steps) - 1)], usual_ns)
    idle_ns = _find_idle(measured_steps, ordered.positions, ordered.steps, before)
    gap_ns[:, :, 0] = arrival_ns[:, :, 0] - begin_ns[:, ordered.steps] + tail_ns + idle_ns
    last = ordered.phases[-1]
    there, over = _align(measured_steps, ordered, resume_ns)
    gap_ns = np.maximum(gap_ns, 0)
    start_ns = there[:, :, 0] - gap_ns[:, :, 0]
    start_ns -= _find_middle(start_ns)
    return SyncCycles(
        source="collectives", clock=Clock.HOST, positions=ordered.positions, steps=ordered.steps,
        parties=ordered.parties, blocking=ordered.blocking, gap_ns=gap_ns, exposed_ns=exposed_ns,
        transfer_ns=_find_transfers(ordered, there, over, exposed_ns), start_ns=np.nan_to_num(start_ns),
        phase_ns=_take_phases(measured_steps, Clock.HOST, ordered.positions, ordered.steps, before, last, idle_ns),
    )  # fmt: skip


def _align(
    measured_steps: MeasuredSteps, ordered: OrderedCollectives, resume_ns: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Arrivals, and when each rank could go on, on rank 0's clock; NaN: clock not compared, or end not seen."""
    clocks = map_clocks(measured_steps.run)
    left_ns = np.where(ordered.blocking, resume_ns, ordered.end_ns)
    there, over = np.empty_like(left_ns), np.empty_like(left_ns)
    for row, position in enumerate(ordered.positions.tolist()):
        there[row] = clocks.to_reference(position, ordered.arrival_ns[row])
        over[row] = clocks.to_reference(position, left_ns[row])
    return there, over


def _find_transfers(
    ordered: OrderedCollectives, there: FloatArray, over: FloatArray, exposed_ns: FloatArray
) -> FloatArray:
    """Where clocks can be compared: own end less the last arrival or the previous own end, whichever is later. Else the
    shortest wait of a member, which had nobody to wait for; 0 for collectives that nobody waits for."""
    transfer_ns = np.zeros_like(exposed_ns)
    free: dict[str, FloatArray] = {}
    for index, parties in enumerate(ordered.parties):
        for group, members in parties:
            arrived = there[members, :, index].max(axis=0)
            started = np.maximum(arrived, free.get(group, arrived))
            ended = over[members, :, index]
            took, shortest = ended - started, exposed_ns[members, :, index].min(axis=0)
            transfer_ns[members, :, index] = np.where(np.isfinite(took), np.maximum(took, 0), shortest)
            free[group] = np.where(np.isfinite(took), ended, started)
    return transfer_ns


def _from_rows(measured_steps: MeasuredSteps, timing: Timing) -> SyncCycles | None:
    positions = np.flatnonzero(measured_steps.present)
    steps = np.flatnonzero(timing.used)
    before = _find_predecessors(measured_steps, steps)
    waits_ns = np.nan_to_num(measured_steps.run.wait_ns(timing.clock)[np.ix_(positions, steps)]).sum(axis=2)
    exposed_ns = (
        measured_steps.run.phase_ns(timing.clock)[np.ix_(positions, steps)][:, :, _WAIT_CODES].sum(axis=2) + waits_ns
    )
    on_host = timing.clock is Clock.HOST  # the time between two steps is known on the host clock only
    idle_ns = _find_idle(measured_steps, positions, steps, before) if on_host else np.zeros(1)
    phase_ns = _take_phases(measured_steps, timing.clock, positions, steps, before, Phase.BACKWARD, idle_ns)
    own_ns = phase_ns.sum(axis=2)
    whole = np.isfinite(own_ns).all(axis=0) & np.isfinite(exposed_ns).all(axis=0)
    if not whole.any() or not exposed_ns[:, whole].any():
        return None
    own_ns, exposed_ns = own_ns[:, whole], exposed_ns[:, whole]
    transfer_ns = np.maximum(exposed_ns - (own_ns.max(axis=0) - own_ns), 0)
    return SyncCycles(
        source="rows", clock=timing.clock, positions=positions, steps=steps[whole],
        parties=((("default", np.arange(len(positions))),),), blocking=np.array([True]),
        start_ns=np.zeros_like(own_ns), gap_ns=own_ns[:, :, None], exposed_ns=exposed_ns[:, :, None],
        transfer_ns=transfer_ns[:, :, None], phase_ns=phase_ns[:, whole],
    )  # fmt: skip


def _find_predecessors(measured_steps: MeasuredSteps, steps: IntArray) -> IntArray:
    """Position of the step just before each, ``[num_cycles]``; -1: some rank has no whole row of it, or it ran under a
    kernel window, after which every rank writes its trace."""
    numbers = np.nanmax(measured_steps.run.column("step")[measured_steps.present], axis=0, initial=-1)
    whole = measured_steps.recorded[measured_steps.present].all(axis=0) & (
        measured_steps.run.column("failed")[measured_steps.present] == 0
    ).all(axis=0)
    whole &= ~(measured_steps.run.column("window")[measured_steps.present] == 1).any(axis=0)
    previous = steps - 1
    follows = (previous >= 0) & whole[previous] & (numbers[previous] == numbers[steps] - 1)
    return np.where(follows, previous, -1)


def _find_idle(measured_steps: MeasuredSteps, positions: IntArray, steps: IntArray, before: IntArray) -> FloatArray:
    """From the end of the step before to its begin, ns, ``[num_ranks, num_cycles]``; 0 without a step before."""
    begin_ns = measured_steps.run.column("begin_host_ns")[positions]
    over_ns = begin_ns + measured_steps.run.column("step_host_ns")[positions]
    idle_ns = np.where(before >= 0, begin_ns[:, steps] - over_ns[:, np.maximum(before, 0)], 0.0)
    idle: FloatArray = np.maximum(np.nan_to_num(idle_ns), 0)
    return idle


def _take_phases(
    measured_steps: MeasuredSteps,
    clock: Clock,
    positions: IntArray,
    steps: IntArray,
    before: IntArray,
    last: Phase,
    idle_ns: FloatArray,
) -> FloatArray:
    """Own phases by cycle. Those after the last wait are the previous step's or, if unknown, the rank's median."""
    after = [Phase.OPTIMIZER] if last is Phase.GRAD_NORM else [Phase.GRAD_NORM, Phase.OPTIMIZER]
    earlier = np.where(before >= 0, before, steps)
    taken = np.empty((len(positions), len(steps), len(OWN_PHASES)))
    for code, phase in enumerate(OWN_PHASES):
        waits_ns = np.nan_to_num(measured_steps.run.wait_ns(clock)[:, :, code])
        own_ns = np.maximum(measured_steps.run.phase_ns(clock)[:, :, _OWN_CODES[code]] - waits_ns, 0)
        taken[:, :, code] = own_ns[np.ix_(positions, steps)]
        if phase in after:
            there = own_ns[np.ix_(positions, earlier)]
            known = np.isfinite(there) & (before >= 0)
            taken[:, :, code] = np.where(known, there, np.median(taken[:, :, code], axis=1, keepdims=True))
    taken[:, :, OWN_PHASES.index(Phase.OTHER)] += idle_ns
    return taken
