"""Steps cut at synchronisation: a cycle lasts from the end of one step's last wait to the end of the next step's.

Between two waits a rank works on its own, so own time is the difference of two stamps of one clock. What a rank does
after a step's last wait, such as the optimizer, makes it late at the next step's first wait and counts in that cycle.
Where ranks meet only every k-th step, a cycle is such a round, and its times are the mean of its steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from distprof.analyze.cycles.collective_order import (
    IssuedCollectives,
    OrderedCollectives,
    order_collectives,
    resume_times,
)
from distprof.analyze.cycles.cycle_parts import TimeBetween, guess_tails, read_between, take_from_before, take_parts
from distprof.analyze.cycles.device_collectives import order_on_device
from distprof.analyze.cycles.rounds import Rounds, locate_rounds, measure_rounds
from distprof.analyze.cycles.transfers import Ahead, align_times, measure_device_transfers, measure_transfers
from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing
from distprof.analyze.stats.statistics import choose_blocks, fast_median
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import COMMUNICATION_PHASES, PHASE_CODE, Clock, CollectiveKind, Phase, Stretch

MIN_CYCLES = 8
"""With fewer, nothing can be said about a rank."""
MIN_PRESENT_RATIO = 0.5
"""Share of the ranks."""
APART_FACTOR = 2.0
"""Ranks that synchronise at every step take about as long for it; if one takes this many times longer, they do not."""
MAX_FORETOLD = 2_500_000
"""Largest ranks x cycles x collectives from which it is foretold what other settings would do."""
_WAIT_CODES = [PHASE_CODE[phase] for phase in COMMUNICATION_PHASES]


class SyncCycles(IssuedCollectives, frozen=True, kw_only=True):
    """Own time, waits and transfers of the ranks that count, collective by collective, in order of issue."""

    source: str
    """"collectives": every collective is known. "rows": one wait per cycle stands for all of them."""
    span: int = 1
    """Steps of a cycle. All its times are the mean of these steps, and ``steps`` is the last one of each."""
    work_ns: FloatArray
    """Own time before each arrival, ``[num_ranks, num_cycles, num_collectives]``; so are the next two."""
    blocked_ns: FloatArray
    """Waited for it; 0 where ranks do not wait."""
    transfer_ns: FloatArray
    """From when the last member has arrived and the previous collective has ended, until the rank can go on."""
    start_ns: FloatArray
    """When each rank left the wait before, less the median rank's, ``[num_ranks, num_cycles]``; 0: unknown."""
    phase_ns: FloatArray
    """Own time by part without waits, ``[num_ranks, num_cycles, len(OWN_PARTS)]``; NaN: not measured."""
    tail_phases: tuple[Phase, ...] = ()
    """Of ``phase_ns``, those from the step before: they follow its last wait."""
    absent: BoolArray | None = None
    """Where a collective is missing from a cycle, ``[num_cycles, num_collectives]``. None: nowhere."""
    ahead: Ahead | None = None
    """How far transfers were ahead when their last rank arrived. None: all ranks are on one host, or not known."""
    num_in_run: int = 0
    """Cycles of the run since the warm-up, with those that were not recorded and are not here. 0: not known."""

    @property
    def waited(self) -> tuple[tuple[tuple[str, IntArray], ...], ...]:
        """As ``groups``, and for a later wait the groups that run what is waited for."""
        of_which = self.list_awaited().tolist()
        return tuple(self.groups[index] for index in of_which)

    @property
    def turns(self) -> IntArray:
        """Which cycle of the job each is, from some cycle on; those that were left out count, ``[num_cycles]``."""
        return self.steps if self.span == 1 else (self.steps - self.steps[0]) // self.span

    def average(self, values: FloatArray) -> FloatArray:
        """The mean over the steps of each cycle, ``[num_ranks, num_cycles]``, of a column of the run."""
        found: FloatArray = np.mean([values[:, self.steps - back] for back in range(self.span)], axis=0)
        return found[self.positions]

    @property
    def knows_starts(self) -> bool:
        """Whether it is known when each rank left the wait before. Where ranks wait later than they issue, the device
        clock tells."""
        return bool(self.start_ns.any()) or self.waits_for is not None

    def list_awaited(self) -> IntArray:
        """For each entry the index of the collective that it is or waits for, ``[num_collectives]``."""
        own = np.arange(len(self.groups))
        return own if self.waits_for is None else np.where(self.waits_for >= 0, self.waits_for, own)

    @property
    def cycle_ns(self) -> FloatArray:
        """How long each cycle took, ``[num_cycles]``."""
        return self.measure_length(self.start_ns + self.work_ns.sum(axis=2) + self.blocked_ns.sum(axis=2))

    def measure_length(self, through_ns: FloatArray) -> FloatArray:
        """Length of cycles from when their ranks leave the last wait, ``[num_cycles]``.

        Ranks leave a wait together, except one that is held up just then. The median of two ranks would count half of
        that delay in this cycle and half in the next, although it makes the rank late at the next cycle's first wait.
        So the lower median counts (the earlier of the two middle ranks), where it is known when each began.

        Args:
            through_ns: From the same moment as ``start_ns``, ``[num_ranks, num_cycles]``.
        """
        return lower_median(through_ns) if self.knows_starts else fast_median(through_ns, axis=0)


def lower_median(times_ns: FloatArray) -> FloatArray:
    """The lower median of the ranks; NaN where one is unknown."""
    ranked = np.sort(np.ascontiguousarray(times_ns.T), axis=-1)  # by lanes, which is faster
    middle: FloatArray = np.where(np.isnan(ranked[:, -1]), np.nan, ranked[:, (len(times_ns) - 1) // 2])
    return middle


def build_cycles(measured_steps: MeasuredSteps, timing: Timing | None) -> SyncCycles | None:
    """The cycles of a run: from its collectives where the ranks recorded them, else from its rows.

    Args:
        measured_steps: The ranks and steps that count.
        timing: The headline clock, whose rows are used.

    Returns:
        None with fewer than two ranks, or where no wait was measured.
    """
    if timing is None or measured_steps.present.sum() < 2 or not bool(timing.measured[measured_steps.present].all()):
        return None
    if (rounds := locate_rounds(measured_steps)) is not None:
        cycles = _from_rounds(measured_steps, timing, rounds)
    elif (found := _from_collectives(measured_steps, timing) or _from_rows(measured_steps, timing)) is not None:
        cycles = _drop_beginnings(measured_steps, found)
    else:
        return None
    warmup = (measured_steps.run.column("warmup")[measured_steps.present] == 1).any(axis=0)
    num_steps = len(warmup) - max(int(warmup.sum()), 1)  # the first step of all begins no cycle
    return None if cycles is None else structs.replace(cycles, num_in_run=num_steps // cycles.span)


def _order(measured_steps: MeasuredSteps, timing: Timing) -> OrderedCollectives | None:
    if timing.clock is Clock.HOST:
        return order_collectives(measured_steps)
    ordered = order_on_device(measured_steps)
    few = ordered is not None and len(ordered.steps) < MIN_CYCLES <= int(timing.used.sum())
    return None if few else ordered  # collectives are timed in some of the steps, rows in all


def _drop_beginnings(measured_steps: MeasuredSteps, cycles: SyncCycles) -> SyncCycles:
    """Drops cycles without a recorded step before them, if enough are left: how late their ranks began is unknown."""
    follows = _list_predecessors(measured_steps, cycles.steps) >= 0
    if follows.all() or follows.sum() < MIN_CYCLES:
        return cycles
    return take_cycles(cycles, np.flatnonzero(follows))


def take_cycles(cycles: SyncCycles, chosen: IntArray) -> SyncCycles:
    """Some of the cycles, by index, ascending; neighbours are not copied."""
    first, end = (int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else (0, 0)
    where = slice(first, end) if end - first == len(chosen) else chosen
    return structs.replace(
        cycles, steps=cycles.steps[where], work_ns=cycles.work_ns[:, where], blocked_ns=cycles.blocked_ns[:, where],
        transfer_ns=cycles.transfer_ns[:, where], start_ns=cycles.start_ns[:, where],
        phase_ns=cycles.phase_ns[:, where], absent=None if cycles.absent is None else cycles.absent[where],
        ahead=None if cycles.ahead is None else cycles.ahead.map(lambda ahead_ns: ahead_ns[where]),
    )  # fmt: skip


def take_sample(cycles: SyncCycles) -> SyncCycles:
    """Enough of the cycles of a large job to foretell from: all, or blocks of neighbours."""
    cells = cycles.work_ns.shape[0] * cycles.work_ns.shape[2]
    return take_cycles(cycles, choose_blocks(len(cycles.steps), MAX_FORETOLD // max(cells, 1)))


def renumber(indices: IntArray | None, order: Sequence[int]) -> IntArray | None:
    """``SyncCycles.waits_for`` or ``predecessor`` of other cycles, of which each entry was one of these, by index, -1:
    a new one. What is awaited or followed is the last one before it."""
    if indices is None:
        return None
    at: dict[int, int] = {}
    found = []
    for index, source in enumerate(order):
        found.append(-1 if source < 0 else at.get(int(indices[source]), -1))
        if source >= 0:
            at[source] = index
    return np.array(found)


def _from_collectives(measured_steps: MeasuredSteps, timing: Timing) -> SyncCycles | None:
    """With a thousand ranks, every array counts: they are overwritten on the host, and given up when they are used."""
    ordered = _order(measured_steps, timing)
    if ordered is None:
        return None
    arrival_ns, clock, positions, steps = ordered.arrival_ns, ordered.clock, ordered.positions, ordered.steps
    blocked_ns = _read_blocked(ordered)
    resume_ns = resume_times(ordered, blocked_ns)
    work_ns = np.empty_like(arrival_ns)
    np.subtract(arrival_ns[:, :, 1:], resume_ns[:, :, :-1], out=work_ns[:, :, 1:])
    begin_ns = measured_steps.run.column(f"begin_{clock}_ns")[ordered.positions]
    over_ns = begin_ns + measured_steps.run.column(f"step_{clock}_ns")[ordered.positions]
    work_ns[:, :, 0] = arrival_ns[:, :, 0] - begin_ns[:, steps]
    own_tail_ns = over_ns[:, steps] - resume_ns[:, :, -1]
    before = _list_predecessors(measured_steps, steps)
    if clock is Clock.DEVICE:
        before = np.where(np.isfinite(over_ns[:, before]).all(axis=0), before, -1)
        tail_ns = guess_tails(measured_steps, clock, positions, steps, before, own_tail_ns, last=ordered.issued[-1])
        first_arrival_ns, transfer_ns, ahead = *measure_device_transfers(ordered), None
    else:
        tail_ns = take_from_before(own_tail_ns, steps, before)
        align_times(measured_steps, ordered, resume_ns)
        del resume_ns
        first_arrival_ns, transfer_ns, ahead = measure_transfers(measured_steps, ordered, blocked_ns)
    issued = {name: getattr(ordered, name) for name in IssuedCollectives.__struct_fields__}
    last = ordered.issued[-1]
    del ordered, arrival_ns
    between = read_between(measured_steps, positions, steps, before, clock)
    lead_ns = tail_ns + between.idle_ns - between.wait_ns - between.after_ns
    work_ns[:, :, 0] += between.after_ns
    start_ns = first_arrival_ns - np.maximum(work_ns[:, :, 0], 0) - np.maximum(lead_ns, 0) - between.wait_ns
    start_ns -= lower_median(start_ns)
    np.maximum(work_ns, 0, out=work_ns)
    phase_ns, tail_phases = take_parts(
        measured_steps, clock, positions, steps, before, last=last, tail_ns=own_tail_ns, between=between
    )
    cycles = SyncCycles(
        **issued, source="collectives", work_ns=work_ns, blocked_ns=blocked_ns, transfer_ns=transfer_ns,
        start_ns=np.nan_to_num(start_ns), ahead=ahead, phase_ns=phase_ns, tail_phases=tail_phases,
    )  # fmt: skip
    return _lead_in(cycles, between, np.maximum(lead_ns, 0))


def _read_blocked(ordered: OrderedCollectives) -> FloatArray:
    """Waited for each collective; on the host in place of what was recorded."""
    blocked_ns = ordered.exposed_ns if ordered.clock is Clock.HOST else np.copy(ordered.exposed_ns)
    for index, is_waited_on in enumerate(ordered.is_waited_on.tolist()):
        each_ns = blocked_ns[:, :, index]
        each_ns[...] = np.nan_to_num(each_ns) if is_waited_on else 0.0
    return blocked_ns


def _lead_in(cycles: SyncCycles, between: TimeBetween, lead_ns: FloatArray) -> SyncCycles:
    """Adds what precedes the step: own time, and where all ranks meet between the steps, a collective of their own.

    Args:
        cycles: Without it.
        between: The time between the steps.
        lead_ns: Own time from the last wait to the last wait between the steps or, without one, to the step.
    """
    if not between.together.any():
        cycles.work_ns[:, :, 0] += lead_ns
        return cycles
    everyone, after = np.arange(len(cycles.positions)), [-1, *range(len(cycles.groups))]
    wait_ns = between.wait_ns
    skipped = np.zeros((len(cycles.steps), len(cycles.groups) + 1), dtype=bool)
    skipped[:, 0] = ~between.together

    def prepend(first: FloatArray, values: FloatArray) -> FloatArray:
        return np.moveaxis(np.concatenate([first[None], np.moveaxis(values, 2, 0)]), 0, 2)

    return structs.replace(
        cycles, groups=((("between steps", everyone),), *cycles.groups), absent=skipped,
        is_waited_on=np.concatenate([[True], cycles.is_waited_on]), issued=(Stretch.BETWEEN, *cycles.issued),
        kinds=(CollectiveKind.OTHER, *cycles.kinds), sizes_bytes=(None, *cycles.sizes_bytes),
        work_ns=prepend(lead_ns, cycles.work_ns), blocked_ns=prepend(wait_ns, cycles.blocked_ns),
        transfer_ns=prepend(np.broadcast_to(wait_ns.min(axis=0), wait_ns.shape), cycles.transfer_ns),
        ahead=None if cycles.ahead is None else cycles.ahead.map(lambda ahead_ns: np.pad(ahead_ns, ((0, 0), (1, 0)))),
        waits_for=renumber(cycles.waits_for, after), predecessor=renumber(cycles.predecessor, after),
    )  # fmt: skip


def _from_rows(measured_steps: MeasuredSteps, timing: Timing) -> SyncCycles | None:
    positions = np.flatnonzero(measured_steps.present)
    steps = np.flatnonzero(timing.used)
    before = _list_predecessors(measured_steps, steps)
    on_host = timing.clock is Clock.HOST  # the time between two steps is known on the host clock only
    between = read_between(measured_steps, positions, steps, before) if on_host else None
    waits_ns = np.nan_to_num(measured_steps.run.wait_ns(timing.clock)[np.ix_(positions, steps)]).sum(axis=2)
    blocked_ns = (
        measured_steps.run.phase_ns(timing.clock)[np.ix_(positions, steps)][:, :, _WAIT_CODES].sum(axis=2) + waits_ns
    )
    blocked_ns += 0.0 if between is None else between.wait_ns
    phase_ns, tail_phases = take_parts(
        measured_steps, timing.clock, positions, steps, before, last=Phase.BACKWARD, tail_ns=None, between=between
    )
    own_ns = phase_ns.sum(axis=2)
    whole = np.isfinite(own_ns).all(axis=0) & np.isfinite(blocked_ns).all(axis=0)
    if not whole.any() or not blocked_ns[:, whole].any():
        return None
    return _make_from_waits(
        timing.clock, positions, steps[whole], own_ns[:, whole], blocked_ns[:, whole], phase_ns[:, whole],
        tail_phases=tail_phases,
    )  # fmt: skip


def _from_rounds(measured_steps: MeasuredSteps, timing: Timing, rounds: Rounds) -> SyncCycles | None:
    positions = np.flatnonzero(measured_steps.present)
    before = _list_predecessors(measured_steps, np.arange(len(timing.used)))
    times = measure_rounds(measured_steps, rounds, positions, before, timing.clock) if len(rounds.first) else None
    if times is None:
        return None
    own_ns = times.phase_ns.sum(axis=2)
    whole = np.isfinite(own_ns).all(axis=0)
    if not times.blocked_ns[:, whole].any():
        return None
    return _make_from_waits(
        timing.clock, positions, rounds.last[whole], own_ns[:, whole], times.blocked_ns[:, whole],
        times.phase_ns[:, whole], span=rounds.span,
    )  # fmt: skip


def _make_from_waits(
    clock: Clock,
    positions: IntArray,
    steps: IntArray,
    own_ns: FloatArray,
    blocked_ns: FloatArray,
    phase_ns: FloatArray,
    *,
    tail_phases: tuple[Phase, ...] = (),
    span: int = 1,
) -> SyncCycles:
    """Cycles with one wait each; a transfer is what a rank waits for longer than for the last one."""
    transfer_ns = np.maximum(blocked_ns - (own_ns.max(axis=0) - own_ns), 0)
    return SyncCycles(
        source="rows", clock=clock, positions=positions, steps=steps, span=span,
        groups=((("default", np.arange(len(positions))),),), is_waited_on=np.array([True]),
        start_ns=np.zeros_like(own_ns), work_ns=own_ns[:, :, None], blocked_ns=blocked_ns[:, :, None],
        transfer_ns=transfer_ns[:, :, None], phase_ns=phase_ns, tail_phases=tail_phases,
    )  # fmt: skip


def read_all_parts(measured_steps: MeasuredSteps, cycles: SyncCycles) -> tuple[IntArray, FloatArray]:
    """Own time by part in all counted steps, of which the cycles may be some: rows are there of each.

    Returns:
        Positions on axis 1 of ``Run.rows``; and ns, ``[num_ranks, num_steps, len(OWN_PARTS)]``.
    """
    steps = np.flatnonzero(measured_steps.counted)
    before = _list_predecessors(measured_steps, steps)
    between = read_between(measured_steps, cycles.positions, steps, before, cycles.clock)
    last = cycles.issued[-1] if cycles.issued else Phase.BACKWARD
    phase_ns, _ = take_parts(
        measured_steps, cycles.clock, cycles.positions, steps, before, last=last, tail_ns=None, between=between
    )
    return steps, phase_ns


def _list_predecessors(measured_steps: MeasuredSteps, steps: IntArray) -> IntArray:
    """Position of the step just before each, ``[num_cycles]``; -1: some rank has no whole row of it, or it ran in a
    profiler's window, after which every rank writes a file."""
    numbers = np.nanmax(measured_steps.run.column("step")[measured_steps.present], axis=0, initial=-1)
    whole = measured_steps.recorded[measured_steps.present].all(axis=0) & (
        measured_steps.run.column("failed")[measured_steps.present] == 0
    ).all(axis=0)
    whole &= ~(measured_steps.run.column("window")[measured_steps.present] == 1).any(axis=0)
    previous = steps - 1
    follows = (previous >= 0) & whole[previous] & (numbers[previous] == numbers[steps] - 1)
    return np.where(follows, previous, -1)


def explain_shortage(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> str | None:
    """Why nothing can be said about who holds whom up and what a change would save; None: the data suffice."""
    present, world = int(measured_steps.present.sum()), measured_steps.run.meta.world_size
    if world == 1:
        return "one rank: nobody to wait for"
    if not present:
        return "no rank recorded a measured step"
    if present < max(2, MIN_PRESENT_RATIO * world):
        return f"{present} of {world} ranks are present: too few to compare"
    infos = [info for info, here in zip(measured_steps.run.ranks, measured_steps.present, strict=True) if here]
    if any(info.point_to_point for info in infos):
        return (
            "ranks send to each other point to point, and wait for each other in that by design: nobody is named or "
            "cleared"
        )
    if cycles is None and (rounds := locate_rounds(measured_steps)) is not None:
        return _explain_no_rounds(measured_steps, rounds)
    if cycles is None and (counted := int(measured_steps.counted.sum())) < MIN_CYCLES:
        return _explain_few(counted)
    if cycles is None:
        return (
            "no waits were measured: they need profile=phases, a strategy that synchronises, collectives outside of "
            "compiled graphs, and no communication hook that distprof cannot see into"
        )
    if len(cycles.steps) < MIN_CYCLES and cycles.span > 1:
        found = f"{len(cycles.steps)} whole round{'' if len(cycles.steps) == 1 else 's'} of {cycles.span} steps"
        return f"ranks meet only now and then: {found}, and at least {MIN_CYCLES} are needed to tell a rank from chance"
    if len(cycles.steps) < MIN_CYCLES:
        return _explain_few(len(cycles.steps))
    long_ns = (cycles.work_ns.sum(axis=2) + cycles.blocked_ns.sum(axis=2)).mean(axis=1)
    if long_ns.max() > APART_FACTOR * long_ns.min():
        longest = measured_steps.numbers[int(cycles.positions[int(long_ns.argmax())])]
        return f"the ranks are not in lockstep: rank {longest}'s steps take more than twice as long as others'"
    return None


def _explain_few(count: int) -> str:
    steps = f"{count} measured step{'' if count == 1 else 's'}"
    return f"{steps}: at least {MIN_CYCLES} are needed to tell a slow rank from chance"


def _explain_no_rounds(measured_steps: MeasuredSteps, rounds: Rounds) -> str:
    """Why there are no cycles although ranks meet now and then."""
    if len(rounds.first):
        return "ranks meet between steps only, and how long they wait there is not known on the device's clock"
    steps = int(measured_steps.counted.sum())
    return f"ranks meet only now and then, and never twice within the {steps} measured steps with all between recorded"
