"""What did every rank do in a usual step, and in the longest?

Shown is what the ranks kept of that step: segments, micro-batches, sends and receives, collectives with their arrivals.
Of more than `MAX_LANES` ranks, those that stand out are shown, and some others evenly spread by own time; of a pipeline
always whole copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.clocks.clocks import UNKNOWN as NO_CLOCK
from distprof.analyze.clocks.clocks import ClockMap, map_clocks
from distprof.analyze.clocks.device_clock import map_device_clocks
from distprof.analyze.cycles.pipeline_operations import PipelineOperations, list_operations
from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing, compute_own_times
from distprof.analyze.timeline.blocks import LaneBlock, fit_lanes, flatten
from distprof.analyze.timeline.step_collectives import list_step_collectives
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.operations import NUMBERS, SEND_NUMBERS, Kind
from distprof.facts.run import COLUMN, COMMUNICATION_PHASES, PHASES, Clock, Phase, Run
from distprof.facts.trace_summary import DEVICE_STATES
from distprof.report.report import MeshReport
from distprof.report.step_timeline import (
    STEP,
    WAIT,
    StepChoice,
    StepTimeline,
    TimelineCollective,
    TimelineLane,
    TimelineTransfers,
)

MAX_LANES = 64
MAX_TRANSFERS = 1_500
Transfer = tuple[int, int, float, float, bool]
"""The lanes of sender and receiver, when it was sent and received, and whether it is a gradient."""
_COMPUTES = {NUMBERS[Kind.FORWARD]: Phase.FORWARD, NUMBERS[Kind.BACKWARD]: Phase.BACKWARD}
_HIDDEN = (Phase.FORWARD, Phase.BACKWARD, Phase.OTHER, STEP)
"""Phases whose place the micro-batches take, where they were recorded."""


def report_timelines(
    measured_steps: MeasuredSteps, timing: Timing | None, mesh: MeshReport | None, named: Sequence[int]
) -> tuple[StepTimeline, ...]:
    """The step nearest to the median, and the longest one.

    Args:
        measured_steps: The ranks and steps that count.
        timing: The headline's clock. None: no step was measured.
        mesh: The ranks' coordinates.
        named: Global ranks that the verdict or a cause names, which are always shown.
    """
    if timing is None:
        return ()
    run, columns = measured_steps.run, np.flatnonzero(timing.used)
    chosen = _choose_ranks(measured_steps, timing, named)
    away_ns = np.abs(timing.elapsed_ns - np.median(timing.elapsed_ns))
    shown: dict[int, StepTimeline] = {}
    for choice, order in (
        (StepChoice.TYPICAL, np.argsort(away_ns)),
        (StepChoice.WORST, np.argsort(-timing.elapsed_ns)),
    ):
        place = _find_kept(run, columns[order], chosen)
        if place is None or int(columns[order[place]]) in shown:
            continue
        column = int(columns[order[place]])
        drawn = _draw_step(measured_steps, column, chosen, mesh)
        if drawn is not None:
            step_ns = float(timing.elapsed_ns[order[place]])
            shown[column] = structs.replace(drawn, choice=choice, of_all=place == 0, step_ns=step_ns)
    return tuple(shown.values())


def _choose_ranks(measured_steps: MeasuredSteps, timing: Timing, named: Sequence[int]) -> list[int]:
    """Positions of all ranks that are present or, of too many, of the most telling ones, these first."""
    present = np.flatnonzero(measured_steps.present)
    if len(present) <= MAX_LANES:
        return [*present.tolist()]
    own_ns = np.nan_to_num(compute_own_times(measured_steps, timing)[present])
    by_time = present[np.argsort(own_ns, kind="stable")].tolist()
    numbers = measured_steps.numbers
    first = [position for position in present.tolist() if numbers[position] in named]
    spread = [by_time[at] for at in np.linspace(0, len(by_time) - 1, MAX_LANES).astype(int)]
    return [*dict.fromkeys([*first, by_time[-1], by_time[0], by_time[len(by_time) // 2], *spread])][:MAX_LANES]


def _find_kept(run: Run, columns: IntArray, chosen: Sequence[int]) -> int | None:
    """The first of the steps of which all these ranks kept a timeline, and their micro-batches. None: of none."""
    ranks = [run.ranks[position].rank for position in chosen]
    numbers: IntArray = np.nan_to_num(run.column("step")[chosen[0], columns], nan=-1.0).astype(np.int64)
    piped = [own.step for position in chosen if run.operations and (own := run.operations[position]) is not None]
    steps = set(piped[0].tolist()).intersection(*(own.tolist() for own in piped[1:])) if piped else None
    for place, step in enumerate(numbers.tolist()):
        if (steps is None or step in steps) and all((rank, step) in run.segments for rank in ranks):
            return place
    return 0 if len(columns) and not run.segments else None


class StepView(Struct, frozen=True, kw_only=True):
    """One step of a run, and how its times are placed in the picture."""

    run: Run
    column: int
    """Position on axis 1 of ``Run.rows``."""
    step: int
    """Its number."""
    clocks: ClockMap
    origin_ns: float
    """On rank 0's clock."""
    first_ns: dict[int, float]
    """By position, the first time of the ranks whose clocks are not known, on their own."""

    def place(self, position: int, times_ns: FloatArray) -> FloatArray:
        """Times of a rank's host clock, in the picture."""
        if self.clocks.clock[position] == NO_CLOCK:
            return times_ns - self.first_ns[position]
        return self.clocks.to_reference(position, times_ns) - self.origin_ns

    def place_shifted(self, position: int, times_ns: FloatArray) -> FloatArray:
        """The same of times that are on rank 0's clock already, where that is known."""
        return times_ns - self.first_ns.get(position, self.origin_ns)

    def begin_ns(self, position: int) -> float:
        """When the step began on the rank's host clock."""
        return float(self.run.rows[position, self.column, COLUMN["begin_host_ns"]])

    def bound_ns(self, positions: Sequence[int], *, on_device: bool) -> float | None:
        """How far two of these ranks' times, or their devices', may be apart for one moment. None: not known."""
        worst_ns: dict[int, float] = {}
        for position in positions:
            bound = float(self.clocks.bound_ns(position, self.origin_ns))
            worst_ns[int(self.clocks.clock[position])] = bound
        whole = sum(sorted(worst_ns.values())[-2:]) if len(worst_ns) > 1 else 0.0
        if on_device:
            devices = map_device_clocks(self.run).devices
            whole += sum(sorted(float(devices.bound_ns(at, self.begin_ns(at))) for at in positions)[-2:])
        return whole if NO_CLOCK not in worst_ns and np.isfinite(whole) else None


def _draw_step(
    measured_steps: MeasuredSteps, column: int, chosen: Sequence[int], mesh: MeshReport | None
) -> StepTimeline | None:
    run, numbers = measured_steps.run, measured_steps.numbers
    operations = _list_operations(measured_steps, column)
    places = _locate(operations)
    present = int(measured_steps.present.sum())
    if operations is not None and present > MAX_LANES:
        chosen = _choose_replicas(measured_steps, chosen, places)
    view = _view_step(run, column, chosen, operations)
    if view is None:
        return None
    coordinates = [None] * len(run.ranks) if mesh is None else list(mesh.coordinates)
    lanes = sorted(
        chosen,
        key=lambda position: (*places.get(numbers[position], (0, 0)), coordinates[position] or (), numbers[position]),
    )
    clock = Clock.HOST if operations is None else operations.clock
    devices = [_list_device(view, position) for position in lanes]
    collectives, left_out = list_step_collectives(view, lanes)
    layers = []
    for at, position in enumerate(lanes):
        phases = [*_list_phases(view, position, operations)]
        passes = _list_passes(view, position, operations)
        layers.append(flatten([*phases, *_list_waits(view, phases, collectives, at), *passes]))
    transfers, too_many = list_transfers(_pair_transfers(view, lanes, operations))
    ends = [block.end_ns for lane in layers for block in lane] + [
        end for each in collectives for end in each.end_ns if end
    ]
    span_ns = max(ends, default=0.0)
    if span_ns <= 0:
        return None
    blocks, on_device = fit_lanes(layers, span_ns), fit_lanes(devices, span_ns)
    return StepTimeline(
        choice=StepChoice.TYPICAL, of_all=True, step=view.step, clock=clock, step_ns=0.0, span_ns=round(span_ns),
        bound_ns=view.bound_ns(lanes, on_device=clock is Clock.DEVICE),
        lanes_left_out=present - len(lanes), collectives=collectives,
        collectives_left_out=left_out, transfers=transfers, transfers_left_out=too_many,
        lanes=tuple(
            TimelineLane(
                rank=numbers[position], replica=replica, stage=stage, blocks=own,
                device=device if device.kinds else None,
            )
            for position, own, device in zip(lanes, blocks, on_device, strict=True)
            for replica, stage in [places.get(numbers[position], (None, None))]
        ),
    )  # fmt: skip


def _list_operations(measured_steps: MeasuredSteps, column: int) -> PipelineOperations | None:
    """The operations of one step."""
    counted = np.zeros_like(measured_steps.counted)
    counted[column] = True
    if not measured_steps.run.operations:
        return None
    operations = list_operations(structs.replace(measured_steps, counted=counted))
    return operations if operations is not None and are_placed(measured_steps.run, operations) else None


def are_placed(run: Run, operations: PipelineOperations) -> bool:
    """Whether the times of all operations are on rank 0's host clock, or on their own host's: not where they were timed
    on a device whose clock is not known."""
    if operations.clock is Clock.HOST:
        return True
    clocks, ranks = map_device_clocks(run), set(operations.rank.tolist())
    positions = [at for at, info in enumerate(run.ranks) if info.rank in ranks]
    return clocks.devices.comparable(*positions) and clocks.hosts.comparable(*positions)


def _locate(operations: PipelineOperations | None) -> dict[int, tuple[int, int]]:
    """Replica and stage by rank."""
    if operations is None:
        return {}
    ranks, first = np.unique(operations.rank, return_index=True)
    return {
        rank: (int(operations.dp[at]), int(operations.pp[at]))
        for rank, at in zip(ranks.tolist(), first.tolist(), strict=True)
    }


def _choose_replicas(
    measured_steps: MeasuredSteps, chosen: Sequence[int], places: dict[int, tuple[int, int]]
) -> list[int]:
    """Whole copies of the pipeline, those of the most telling ranks first, as many as there is room for."""
    members: dict[int, list[int]] = {}
    for position in np.flatnonzero(measured_steps.present).tolist():
        if (place := places.get(measured_steps.numbers[position])) is not None:
            members.setdefault(place[0], []).append(position)
    taken: dict[int, None] = {}
    for position in chosen:
        place = places.get(measured_steps.numbers[position])
        own = [] if place is None else members[place[0]]
        if own and (not taken or len(taken) + len(set(own) - taken.keys()) <= MAX_LANES):
            taken |= dict.fromkeys(own)
    return [*taken][:MAX_LANES] or [*chosen]


def _view_step(
    run: Run, column: int, chosen: Sequence[int], operations: PipelineOperations | None
) -> StepView | None:  # fmt: skip
    """None: no rank says when the step began."""
    begin_ns, clocks = run.column("begin_host_ns")[:, column], map_clocks(run)
    first_ns: dict[int, float] = {}
    known: list[float] = []
    for position in chosen:
        at_ns = clocks.to_reference(position, begin_ns[position])
        own = float(begin_ns[position] if clocks.clock[position] == NO_CLOCK else at_ns)
        if operations is not None:
            mine = operations.start_ns[operations.rank == run.ranks[position].rank]
            own = float(np.nanmin([own, *([mine.min()] if len(mine) else [])]))
        if clocks.clock[position] == NO_CLOCK:
            first_ns[position] = own
        elif np.isfinite(own):
            known.append(own)
    if not known and not first_ns:
        return None
    step = int(np.nanmax(run.column("step")[list(chosen), column]))
    return StepView(
        run=run, column=column, step=step, clocks=clocks, origin_ns=min(known, default=0.0), first_ns=first_ns
    )


def _list_phases(view: StepView, position: int, operations: PipelineOperations | None) -> Iterator[LaneBlock]:
    """The step's segments or, where none were kept, the step as a whole."""
    rank = view.run.ranks[position].rank
    piped = operations is not None and bool((operations.rank == rank).any())
    if piped and operations is not None and operations.clock is Clock.DEVICE:
        return  # when the host launched them is another clock's time
    kept = view.run.segments.get((rank, view.step))
    if kept is not None:
        borders_ns = kept.begin_ns + np.cumsum([0, *kept.durations_ns]).astype(np.float64)
        kinds: tuple[str, ...] = tuple(PHASES[code] for code in kept.codes)
    else:
        row = view.run.rows[position, view.column]
        begin_ns, long_ns = row[COLUMN["begin_host_ns"]], row[COLUMN["step_host_ns"]]
        borders_ns, kinds = np.array([begin_ns, begin_ns + long_ns]), (STEP,)
    borders_ns = view.place(position, borders_ns)
    if np.isfinite(borders_ns).all():
        for kind, begin_ns, end_ns in zip(kinds, borders_ns[:-1].tolist(), borders_ns[1:].tolist(), strict=True):
            if not (piped and kind in _HIDDEN):
                yield LaneBlock(kind=kind, begin_ns=begin_ns, end_ns=end_ns)


def _list_waits(
    view: StepView, phases: Sequence[LaneBlock], collectives: Sequence[TimelineCollective], lane: int
) -> Iterator[LaneBlock]:
    """What of a lane's exposed communication is waiting for the last rank to arrive. Not known where collectives ran on
    a device, whose waits are not the host's."""
    if any(view.column in table.steps for table in view.run.device_collectives):
        return
    exposed = [block for block in phases if block.kind in COMMUNICATION_PHASES]
    for each in collectives:
        if each.last_arrival_ns is None or lane not in each.lanes:
            continue
        arrival_ns = each.arrival_ns[each.lanes.index(lane)]
        for block in exposed:
            begin_ns, end_ns = max(block.begin_ns, arrival_ns), min(block.end_ns, each.last_arrival_ns)
            if end_ns > begin_ns:
                yield LaneBlock(kind=WAIT, begin_ns=begin_ns, end_ns=end_ns)


def _list_passes(view: StepView, position: int, operations: PipelineOperations | None) -> list[LaneBlock]:
    """Forwards and backwards by micro-batch, and above them the time in which the rank stood still."""
    if operations is None:
        return []
    own = np.flatnonzero(operations.rank == view.run.ranks[position].rank)
    begins_ns = view.place_shifted(position, operations.start_ns[own])
    passes, waits = [], []
    columns = (operations.kind[own], begins_ns, operations.duration_ns[own], operations.waited_ns[own],
               operations.micro_batch[own])  # fmt: skip
    for kind, begin_ns, long_ns, waited_ns, number in zip(*(column.tolist() for column in columns), strict=True):
        if not np.isfinite(long_ns):
            continue
        if kind in _COMPUTES:
            batch = number if number >= 0 else None
            passes.append(
                LaneBlock(kind=_COMPUTES[kind], begin_ns=begin_ns, end_ns=begin_ns + long_ns, micro_batch=batch)
            )
        elif waited_ns > 0:
            waits.append(LaneBlock(kind=WAIT, begin_ns=begin_ns + long_ns - waited_ns, end_ns=begin_ns + long_ns))
    return [*passes, *waits]


def _list_device(view: StepView, position: int) -> list[LaneBlock]:
    """What a trace shows of the rank's device."""
    rank = view.run.ranks[position].rank
    lane = next((own.lanes.get(view.step) for own in view.run.activity if own.rank == rank), None)
    begin_ns = view.begin_ns(position)
    if lane is None or not np.isfinite(begin_ns):
        return []
    states = np.frombuffer(lane.states, dtype=np.uint8)
    starts = np.flatnonzero(np.diff(states, prepend=-1))
    edges = np.append(starts, len(states)) / len(states) * (lane.end_ns - lane.begin_ns) + lane.begin_ns
    borders_ns = view.place(position, begin_ns + edges).tolist()
    return [
        LaneBlock(kind=DEVICE_STATES[states[start]], begin_ns=max(begin, 0.0), end_ns=max(end, 0.0))
        for start, (begin, end) in zip(starts.tolist(), itertools.pairwise(borders_ns), strict=True)
    ]


def _pair_transfers(
    view: StepView, lanes: Sequence[int], operations: PipelineOperations | None
) -> list[Transfer]:  # fmt: skip
    """Sends that were matched, between lanes that are shown."""
    if operations is None:
        return []
    found: list[Transfer] = []
    lane = {view.run.ranks[position].rank: at for at, position in enumerate(lanes)}
    ends_ns = operations.start_ns + operations.duration_ns
    for send in np.flatnonzero(np.isin(operations.kind, SEND_NUMBERS) & (operations.partner >= 0)).tolist():
        receive = int(operations.partner[send])
        source, target = (lane.get(int(operations.rank[at])) for at in (send, receive))
        if source is not None and target is not None and np.isfinite(ends_ns[receive]):
            begin_ns = view.place_shifted(lanes[source], operations.start_ns[send])
            end_ns = view.place_shifted(lanes[target], ends_ns[receive])
            backward = int(operations.kind[send]) == SEND_NUMBERS[1]
            found.append((source, target, float(begin_ns), float(end_ns), backward))
    return found


def list_transfers(found: Sequence[Transfer]) -> tuple[TimelineTransfers, int]:
    """The first of them, as many as there is room for; and how many there is none for."""
    kept = sorted(found, key=lambda each: each[2])[:MAX_TRANSFERS]
    sources, targets, begins_ns, ends_ns, backward = zip(*kept, strict=True) if kept else ((), (), (), (), ())
    drawn = TimelineTransfers(
        sources=sources, targets=targets, begin_ns=tuple(max(round(at), 0) for at in begins_ns),
        end_ns=tuple(max(round(at), 0) for at in ends_ns), backward=backward,
    )  # fmt: skip
    return drawn, len(found) - len(kept)
