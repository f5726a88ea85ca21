"""A run as a timeline: a process per rank, with its steps, phases, micro-batches, exchanges, collectives and counters.

Ranks whose clocks are known against rank 0's stand on its host clock. The others begin at 0, those of each host
together: distances between such hosts mean nothing, as the file says of itself. Nothing is kept of what was written,
so memory does not grow with the number of steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.clocks.clocks import UNKNOWN as NO_CLOCK
from distprof.analyze.clocks.clocks import ClockMap, map_clocks
from distprof.analyze.clocks.device_clock import DeviceClockMap, map_device_clocks
from distprof.analyze.cycles.pipeline_operations import (
    PipelineOperations,
    list_operations,
)
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.analyze.timeline.step_timelines import are_placed
from distprof.facts.arrays import FloatArray
from distprof.facts.operations import KINDS as OPERATION_KINDS
from distprof.facts.operations import SEND_NUMBERS, Kind
from distprof.facts.run import COLUMN, KINDS, PHASES, Clock, Collectives, Run
from distprof.facts.trace_summary import TraceSummary
from distprof.render.files.trace_events import (
    FlowPoint,
    FlowRole,
    TraceCounter,
    TraceEvent,
    TraceProcess,
    TraceSlice,
    Tracks,
)
from distprof.render.units import clean_text

MOST_SLICES = 300_000
"""The steps that a report shows come first, then the first steps, as many as have so many slices together: some 3 s."""
STEPS_AT_ONCE = 100
OPERATIONS_AT_ONCE = 50_000
"""Sends and receives are matched for a few steps at a time."""
STEPS, STEPS_ON_DEVICE, PHASE_TRACK, PASSES, SENDS, RECEIVES, COLLECTIVES = range(7)
"""Tracks from top to bottom; each process group has one of its own from the last on, and so have then the streams."""
_PASS_NAMES = {Kind.FORWARD: "forward", Kind.BACKWARD: "backward"}


def describe_trace(
    run: Run, names: Mapping[int, str], first: Sequence[int] = (), most_slices: int = MOST_SLICES
) -> tuple[dict[str, object], Iterator[TraceEvent]]:
    """What the file says of itself, and its events.

    Args:
        run: The facts.
        names: What ranks are called, with their coordinates; the others by number.
        first: Numbers of steps that are shown if there are too many for all.
        most_slices: So many are shown at most, but at least one step's.
    """
    writer = _RunTrace(run, names, first, most_slices)
    return writer.describe(), writer.list_events()


class _Placed(Struct, frozen=True, kw_only=True):
    """The operations of some steps, on the timeline."""

    operations: PipelineOperations
    positions: Mapping[int, int]
    """In ``Run.ranks``, by rank."""
    begins_ns: FloatArray
    ends_ns: FloatArray
    """NaN: not seen."""


class _RunTrace:
    """One pass over a run."""

    def __init__(self, run: Run, names: Mapping[int, str], first: Sequence[int], most_slices: int) -> None:
        self.run, self.names = run, names
        self.measured_steps = choose_measured_steps(run)
        self.clocks: ClockMap = map_clocks(run)
        self.devices: DeviceClockMap = map_device_clocks(run)
        self.columns, self.num_steps = _choose_columns(run, first, most_slices)
        self.numbers = np.nanmax(run.column("step"), axis=0, initial=-1)
        self.origins_ns = self._find_origins()
        self.shifts_ns = [self._find_shift(position) for position in range(len(run.ranks))]
        self.tracks, self.flows = Tracks(), itertools.count(1)
        tracks = [(table.group, table.clock) for table in (*run.collectives, *run.device_collectives)]
        self.groups = {track: at for at, track in enumerate(dict.fromkeys(tracks))}

    def describe(self) -> dict[str, object]:
        """The run, how well its clocks are known, and what is left out."""
        run = self.run
        bounds: dict[str, object] = {}
        for position, info in enumerate(run.ranks):
            times_ns = run.column("begin_host_ns")[position]
            known = self.clocks.clock[position] != NO_CLOCK and bool(np.isfinite(times_ns).any())
            worst_ns = np.inf
            if known:
                ends = (float(np.nanmin(times_ns)), float(np.nanmax(times_ns)))
                worst_ns = self.clocks.worst_bound_ns(position, *ends)
            bounds[str(info.rank)] = float(worst_ns) if np.isfinite(worst_ns) else None
        unknown = any(bound is None for bound in bounds.values())
        apart = "; each host of ranks without a bound starts at 0, so distances between hosts mean nothing"
        return {
            "run": clean_text(run.meta.run_id), "name": clean_text(run.meta.name),
            "clock": f"rank 0's host clock, monotonic, ns in the facts{apart if unknown else ''}",
            "clock_bound_ns_by_rank": bounds,
            "device_clock": "slices on the device are placed by readings of both clocks",
            "steps": len(self.columns), "of_steps": self.num_steps,
        }  # fmt: skip

    def list_events(self) -> Iterator[TraceEvent]:
        """Process by process their names, then step by step what all ranks did."""
        for info in self.run.ranks:
            name = f"{self.names.get(info.rank, f'rank {info.rank}')} ({clean_text(info.host)})"
            yield TraceProcess(pid=info.rank, name=name)
        tables = [(table, {int(step): at for at, step in enumerate(table.steps)})
                  for table in (*self.run.collectives, *self.run.device_collectives)]  # fmt: skip
        for columns in self._group_columns():
            placed, speeds = self._match_operations(columns), _measure_speeds(self.run.rows, columns)
            for at, column in enumerate(columns):
                for position in range(len(self.run.ranks)):
                    yield from self._list_step(position, column)
                    yield from self._list_counters(position, column, at, speeds)
                if placed is not None:
                    yield from self._list_operations(placed, int(self.numbers[column]))
                for table, places in tables:
                    if column in places:
                        yield from self._list_collectives(table, places[column])
        for summary in self.run.activity:
            yield from self._list_kernels(summary)

    def _find_origins(self) -> dict[int, float]:
        """By position, where its own host clock, or rank 0's if that is known, shows the timeline's zero."""
        known_ns, by_host = np.inf, dict[str, float]()
        for position, info in enumerate(self.run.ranks):
            own_ns = min((self._read_begin(position, column) for column in self.columns), default=np.inf)
            if self.run.operations and (done := self.run.operations[position]) is not None:
                shown = np.isin(done.step, self.numbers[self.columns]) & ~done.on_device
                own_ns = min(own_ns, float(done.start_ns[shown].min(initial=np.inf)))
            if not np.isfinite(own_ns):
                continue
            if self.clocks.clock[position] == NO_CLOCK:
                by_host[info.host] = min(by_host.get(info.host, np.inf), own_ns)
            else:
                known_ns = min(known_ns, float(self.clocks.to_reference(position, own_ns)))
        return {
            position: by_host.get(info.host, 0.0) if self.clocks.clock[position] == NO_CLOCK else known_ns
            for position, info in enumerate(self.run.ranks)
        }

    def _read_begin(self, position: int, column: int) -> float:
        """When the step began on the rank's host clock; inf: not known."""
        kept = self.run.segments.get((self.run.ranks[position].rank, int(self.numbers[column])))
        begin_ns = self.run.rows[position, column, COLUMN["begin_host_ns"]] if kept is None else float(kept.begin_ns)
        return float(begin_ns) if math.isfinite(begin_ns) else np.inf

    def _find_shift(self, position: int) -> float | None:
        """What its host clock shows at the timeline's zero. None: it drifts against rank 0's clock, or never began."""
        number, origin_ns = int(self.clocks.clock[position]), self.origins_ns[position]
        if not np.isfinite(origin_ns):
            return None
        if number == NO_CLOCK:
            return origin_ns
        offsets_ns = self.clocks.tracks[number].offset_ns
        return origin_ns + float(offsets_ns[0]) if len(offsets_ns) == 1 else None

    def _place(self, position: int, times_ns: FloatArray) -> FloatArray:
        """Times of the rank's host clock, on the timeline."""
        if (shift_ns := self.shifts_ns[position]) is None:
            return np.round(self.clocks.to_reference(position, times_ns) - self.origins_ns[position])
        return np.round(times_ns - shift_ns)

    def _place_all(self, position: int, times_ns: Iterable[float]) -> list[int]:
        """The same of a few times, all of which are known."""
        if (shift_ns := self.shifts_ns[position]) is None:
            return [int(time_ns) for time_ns in self._place(position, np.array([*times_ns])).tolist()]
        return [round(time_ns - shift_ns) for time_ns in times_ns]

    def _place_device(self, position: int, times_ns: FloatArray) -> FloatArray:
        return self._place(position, self.devices.to_host(position, times_ns))

    def _put(
        self, position: int, kind: int, track: str, name: str, span_ns: Sequence[float], args: Mapping[str, object],
        flow: FlowPoint | None = None,
    ) -> list[TraceEvent]:  # fmt: skip
        """A slice and, where it is new, its track before it."""
        pid, begin, end = self.run.ranks[position].rank, int(span_ns[0]), int(span_ns[1])
        tid, new = self.tracks.place(pid, kind, track, begin, end)
        there = TraceSlice(pid, tid, name, begin, end, args, () if flow is None else (flow,))
        return [there] if new is None else [new, there]

    def _list_step(self, position: int, column: int) -> Iterator[TraceEvent]:
        """The step, its segments, and what was counted in it."""
        row, rank = self.run.rows[position, column], self.run.ranks[position].rank
        kept = self.run.segments.get((rank, int(self.numbers[column])))
        begin_ns, long_ns = self._read_begin(position, column), row[COLUMN["step_host_ns"]]
        if kept is not None and not (kept.truncated and math.isfinite(long_ns)):
            long_ns = float(sum(kept.durations_ns))
        if not math.isfinite(begin_ns) or not math.isfinite(long_ns):
            return
        step = int(self.numbers[column])
        args: dict[str, object] = {"step": step, "warmup": bool(row[COLUMN["warmup"]] == 1)}
        if kept is not None and kept.truncated:
            args["truncated"] = True
        ends = self._place_all(position, (begin_ns, begin_ns + long_ns))
        yield from self._put(position, STEPS, "steps (host clock)", f"step {step}", ends, args)
        if kept is not None:
            borders_ns = self._place_all(position, itertools.accumulate(kept.durations_ns, initial=kept.begin_ns))
            for code, (start, end) in zip(kept.codes, itertools.pairwise(borders_ns), strict=True):
                if end > start:
                    yield from self._put(position, PHASE_TRACK, "phases (host clock)", PHASES[code], (start, end),
                                         {"step": step})  # fmt: skip
        yield from self._list_device_step(position, row, step)

    def _list_counters(
        self, position: int, column: int, at: int, speeds: Mapping[Clock, FloatArray]
    ) -> Iterator[TraceEvent]:  # fmt: skip
        """Memory at the step's end, and how fast its collectives moved data."""
        rank, row = self.run.ranks[position].rank, self.run.rows[position, column]
        begin_ns, memory_bytes = row[COLUMN["begin_host_ns"]], row[COLUMN["memory_bytes"]]
        over_ns = begin_ns + row[COLUMN["step_host_ns"]]
        if not math.isfinite(over_ns) or not math.isfinite(self.origins_ns[position]):
            return
        ends = self._place_all(position, (float(begin_ns), float(over_ns)))
        if math.isfinite(memory_bytes):
            yield TraceCounter(pid=rank, name="memory (bytes)", at_ns=ends[1], value=float(memory_bytes))
        for clock, found in speeds.items():
            if math.isfinite(value := float(found[position, at])):
                name = f"collectives, {clock} clock (bytes/s)"
                yield TraceCounter(pid=rank, name=name, at_ns=ends[0], value=value)

    def _list_device_step(self, position: int, row: FloatArray, step: int) -> Iterator[TraceEvent]:
        """The step on the device, with the sums of its phases there: where each lies in it was not recorded."""
        begin_ns, long_ns = row[COLUMN["begin_device_ns"]], row[COLUMN["step_device_ns"]]
        if math.isfinite(begin_ns) and math.isfinite(long_ns):
            ends = self._place_device(position, np.array([begin_ns, begin_ns + long_ns]))
            if np.isfinite(ends).all():
                sums = {f"{phase}_ns": row[COLUMN[f"{phase}_{Clock.DEVICE}_ns"]] for phase in PHASES}
                args = {"step": step, **{name: float(value) for name, value in sums.items() if np.isfinite(value)}}
                yield from self._put(position, STEPS_ON_DEVICE, "steps (device clock)", f"step {step}",
                                     ends.tolist(), args)  # fmt: skip

    def _list_collectives(self, table: Collectives, at: int) -> Iterator[TraceEvent]:
        """Each from its arrival to its end on every member, joined by arrows from the first arrival to the last."""
        place = self._place if table.clock is Clock.HOST else self._place_device
        members = table.ranks.tolist()
        step = int(self.numbers[int(table.steps[at])])
        arrivals_ns, ends_ns = (
            np.stack([place(position, times[row, at]) for row, position in enumerate(members)])
            for times in (table.arrival_ns, table.end_ns)
        )
        kind = COLLECTIVES + self.groups[table.group, table.clock]
        track = f"{clean_text(table.group)} ({table.clock} clock)"
        comparable = self.clocks.comparable(*members)
        points: dict[tuple[int, int], FlowPoint] = {}
        if comparable:
            points = self._join_arrivals(arrivals_ns, ends_ns)
        last_ns = arrivals_ns.max(axis=0) if comparable and len(members) == table.size else None
        for row, position in enumerate(members):
            begins, ends = arrivals_ns[row].tolist(), ends_ns[row].tolist()
            for index in sorted(range(len(begins)), key=begins.__getitem__):
                begin_ns, end_ns = begins[index], ends[index]
                if end_ns > begin_ns:  # else it was not seen to end
                    args: dict[str, object] = {"step": step, "phase": table.phases[index].value}
                    if (size_bytes := table.sizes_bytes[index]) is not None:
                        args["bytes"] = size_bytes
                    if last_ns is not None and math.isfinite(last_ns[index]):
                        args["waited_ns"] = float(last_ns[index]) - begin_ns
                    span_ns = begin_ns, end_ns
                    yield from self._put(position, kind, track, table.kinds[index], span_ns, args,
                                         points.get((row, index)))  # fmt: skip

    def _list_kernels(self, summary: TraceSummary) -> Iterator[TraceEvent]:
        """What a trace shows of the rank's device, by stream."""
        slices = summary.slices
        position = next((at for at, info in enumerate(self.run.ranks) if info.rank == summary.rank), None)
        column = np.flatnonzero(self.numbers == slices.step).tolist() if slices is not None else []
        if slices is None or position is None or not column:
            return
        host_ns = float(self.run.rows[position, column[0], COLUMN["begin_host_ns"]])
        if not math.isfinite(host_ns) or not math.isfinite(self.origins_ns[position]):
            return
        begins, ends = (
            self._place(position, host_ns + times.astype(np.float64)).tolist()
            for times in (slices.begin_ns, slices.end_ns)
        )
        streams = {stream: at for at, stream in enumerate(np.unique(slices.stream).tolist())}
        for begin, end, stream, name in zip(begins, ends, slices.stream.tolist(), slices.name.tolist(), strict=True):
            kind, track = COLLECTIVES + len(self.groups) + streams[stream], f"stream {stream} (first kernels)"
            yield from self._put(position, kind, track, slices.names[name], (begin, end), {})

    def _join_arrivals(self, arrivals_ns: FloatArray, ends_ns: FloatArray) -> dict[tuple[int, int], FlowPoint]:
        points: dict[tuple[int, int], FlowPoint] = {}
        for index in range(arrivals_ns.shape[1]):
            seen = np.flatnonzero(ends_ns[:, index] > arrivals_ns[:, index])
            if len(seen) < 2:
                continue
            order, number = seen[np.argsort(arrivals_ns[seen, index], kind="stable")].tolist(), next(self.flows)
            for row in order:
                role: FlowRole = "s" if row == order[0] else "f" if row == order[-1] else "t"
                points[row, index] = FlowPoint(number=number, role=role, at_ns=int(arrivals_ns[row, index]))
        return points

    def _group_columns(self) -> Iterator[list[int]]:
        """The steps, a few at a time, in order."""
        sizes = dict.fromkeys(self.columns, 0)
        by_step = {int(self.numbers[column]): column for column in self.columns}
        for done in self.run.operations:
            if done is not None:
                steps, counts = np.unique(done.step, return_counts=True)
                for step, count in zip(steps.tolist(), counts.tolist(), strict=True):
                    if step in by_step:
                        sizes[by_step[step]] += count
        group: list[int] = []
        size = 0
        for column in self.columns:
            if group and (size + sizes[column] > OPERATIONS_AT_ONCE or len(group) == STEPS_AT_ONCE):
                yield group
                group, size = [], 0
            group.append(column)
            size += sizes[column]
        if group:
            yield group

    def _match_operations(self, columns: Sequence[int]) -> _Placed | None:
        if not self.run.operations:
            return None
        counted = np.zeros_like(self.measured_steps.counted)
        counted[list(columns)] = True
        operations = list_operations(structs.replace(self.measured_steps, counted=counted))
        if operations is None or not are_placed(self.run, operations):
            return None
        positions = {info.rank: position for position, info in enumerate(self.run.ranks)}
        origin_ns = np.array([self.origins_ns[positions[rank]] for rank in operations.rank.tolist()])
        begins_ns = np.round(operations.start_ns - origin_ns)
        return _Placed(
            operations=operations, positions=positions, begins_ns=begins_ns,
            ends_ns=np.round(begins_ns + operations.duration_ns),
        )  # fmt: skip

    def _list_operations(self, placed: _Placed, step: int) -> Iterator[TraceEvent]:
        """Forwards and backwards by micro-batch; sends with arrows to the receives that belong to them."""
        operations, begins_ns, ends_ns = placed.operations, placed.begins_ns, placed.ends_ns
        points = self._join_exchanges(placed, step)
        for row in np.flatnonzero(operations.step == step).tolist():
            kind, begin_ns, end_ns = OPERATION_KINDS[operations.kind[row]], float(begins_ns[row]), float(ends_ns[row])
            if not end_ns > begin_ns or kind is Kind.OTHER:
                continue
            number, position = int(operations.micro_batch[row]), placed.positions[int(operations.rank[row])]
            args: dict[str, object] = {"step": step, "waited_ns": float(operations.waited_ns[row])}
            if number >= 0:
                args["micro_batch"] = number
            said = f" {number}" if number >= 0 else ""
            if kind in _PASS_NAMES:
                weights = " (weights)" if operations.weights[row] else ""
                name = f"{_PASS_NAMES[kind]}{said}{weights}"
                yield from self._put(
                    position, PASSES, f"micro-batches ({operations.clock} clock)", name, (begin_ns, end_ns), args
                )
            else:
                args["peer"] = int(operations.peer[row])
                track, which = ("sends", SENDS) if operations.kind[row] in SEND_NUMBERS else ("receives", RECEIVES)
                yield from self._put(position, which, track, f"{kind}{said}", (begin_ns, end_ns), args,
                                     points.get(row))  # fmt: skip

    def _join_exchanges(self, placed: _Placed, step: int) -> dict[int, FlowPoint]:
        """From the begin of a send to the receive, at the moment when both were there."""
        operations, begins_ns, ends_ns = placed.operations, placed.begins_ns, placed.ends_ns
        points: dict[int, FlowPoint] = {}
        for send in np.flatnonzero((operations.step == step) & np.isin(operations.kind, SEND_NUMBERS)).tolist():
            receive = int(operations.partner[send])
            if receive < 0 or not ends_ns[send] > begins_ns[send] or not ends_ns[receive] > begins_ns[receive]:
                continue
            from_ns = int(begins_ns[send])
            at_ns = max(int(begins_ns[receive]), min(from_ns, int(ends_ns[receive]) - 1))
            if at_ns >= from_ns:  # else the clocks are too far apart to say
                number = next(self.flows)
                points[send] = FlowPoint(number=number, role="s", at_ns=from_ns)
                points[receive] = FlowPoint(number=number, role="f", at_ns=at_ns)
        return points


def _choose_columns(run: Run, first: Sequence[int], most_slices: int) -> tuple[list[int], int]:
    """Positions of the steps that are shown, in order, and how many there are."""
    numbers = np.nanmax(run.column("step"), axis=0, initial=-1)
    there = np.flatnonzero(numbers >= 0).tolist()
    slices = np.ones(len(numbers)) * len(run.ranks)
    column_of = {int(numbers[column]): column for column in there}
    kept = [(table.steps, table.counts) for table in run.segments.by_rank.values()]
    for table in (*run.collectives, *run.device_collectives):
        slices[table.steps] += table.arrival_ns.shape[0] * table.arrival_ns.shape[2] * 2
    kept += [np.unique(done.step, return_counts=True) for done in run.operations if done is not None]
    for steps, counts in kept:
        for step, count in zip(steps.tolist(), counts.tolist(), strict=True):
            if step in column_of:
                slices[column_of[step]] += count
    told = [column_of[step] for step in first if step in column_of]
    order = [*dict.fromkeys([*told, *there])]
    fit = np.cumsum(slices[order]) <= most_slices if order else np.zeros(0, dtype=bool)
    return sorted(order[: max(int(fit.sum()), 1)]), len(there)


def _measure_speeds(rows: FloatArray, columns: Sequence[int]) -> dict[Clock, FloatArray]:
    """How fast the collectives of steps moved data while they were under way, bytes/s, ``[num_ranks, len(columns)]`` by
    clock; NaN: not measured.

    Args:
        rows: ``[num_ranks, num_steps, ROW_WIDTH]``
        columns: Positions of the steps on its axis 1.
    """

    def read(name: str) -> FloatArray:
        return np.nan_to_num(rows[:, :, COLUMN[name]][:, columns])

    speeds = {}
    for clock in Clock:
        whole_ns, moved_bytes = np.zeros((2, len(rows), len(columns)))
        for kind in KINDS:
            busy_ns = read(f"{kind}_busy_{clock}_ns")
            whole_ns += busy_ns
            moved_bytes += np.where(busy_ns > 0, read(f"{kind}_bytes"), 0.0)
        speeds[clock] = moved_bytes / np.where(whole_ns > 0, whole_ns, np.nan) * 1e9
    return speeds
