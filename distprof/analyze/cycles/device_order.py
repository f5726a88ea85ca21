"""What a rank's compute stream goes through in a step: collectives that it issues, and waits for them.

Under FSDP2 a collective is issued at one point, on a stream of its own, and compute waits for it at a later one. So
waits are entries of their own, except where they begin when the collective is issued, as under DDP. An entry's place is
its time on the compute stream. A collective whose stream became ready while compute waited for another one is placed
next to that wait. One whose stream became ready when an earlier collective ended followed that one, and where compute
was by then tells nothing: it is placed where it is in other steps or on other ranks, else as early as may be.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.cycles.collective_order import OrderedCollectives, find_parties, find_steps
from distprof.analyze.cycles.device_entries import MIN_UNBOUND, NEAR_NS, Entry, list_entries, sort_entries
from distprof.analyze.cycles.device_follows import Lane
from distprof.analyze.cycles.device_transfers import measure_took
from distprof.analyze.stats.measured_steps import BoolArray, MeasuredSteps
from distprof.facts.run import Clock, CollectiveKind, Collectives, FloatArray, IntArray, Phase

MAX_DISORDER = 0.01
"""Share of the waits that may begin before another one has ended that comes first on the other ranks."""


def order_on_device(measured_steps: MeasuredSteps) -> OrderedCollectives | None:
    """Aligns the ranks' collectives and waits on the device clock, up to the last wait.

    Returns:
        None where the ranks do not issue the same kinds in the same order, wait in different orders, or not at all.
    """
    positions = np.flatnonzero(measured_steps.present)
    tables, steps = find_steps(measured_steps, len(positions), Clock.DEVICE)
    steps = _find_whole_steps(measured_steps, tables, steps, positions)
    parts = _find_parts(tables, positions)
    if not parts or not len(steps):
        return None
    lanes = [_read_lane(tables, part, steps) for part in parts]
    origin_ns = measured_steps.run.column("begin_device_ns")[np.ix_(positions, steps)]
    entries = sort_entries(list_entries(lanes, origin_ns))
    waits = [index for index, entry in enumerate(entries) if entry.left_ns is not None]
    if not waits:
        return None
    entries = entries[: waits[-1] + 1]
    placed = _place(entries, origin_ns)
    return None if placed is None else _assemble(tables, lanes, entries, positions, steps, *placed)


def _find_parts(tables: list[Collectives], positions: IntArray) -> list[list[tuple[int, int]]]:
    """For each part that a group plays, every rank's table, by number, and its row there; empty: ranks differ."""
    found: list[list[tuple[int, int]]] = []
    for position in positions.tolist():
        own = [
            (number, int(row)) for number, table in enumerate(tables) for row in np.flatnonzero(table.ranks == position)
        ]
        own.sort(key=lambda where: (*_describe(tables[where[0]]), tables[where[0]].size, where[0]))
        found.append(own)
    described = [[_describe(tables[number]) for number, _ in own] for own in found]
    alike = all(item == described[0] for item in described)
    return [list(part) for part in zip(*found, strict=True)] if alike else []


def _describe(table: Collectives) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(kind.value for kind in table.kinds), tuple(phase.value for phase in table.phases)


def _find_whole_steps(
    measured_steps: MeasuredSteps, tables: list[Collectives], steps: IntArray, positions: IntArray
) -> IntArray:
    """The steps in which all ranks know when each collective was issued and when the step began; of these the ones in
    which every end was seen, if that is most of them."""
    run = measured_steps.run
    times_ns = run.column("begin_device_ns") + run.column("step_device_ns")
    whole = np.isfinite(times_ns[np.ix_(positions, steps)]).all(axis=0)
    seen = np.ones(len(steps), dtype=bool)
    for table in tables:
        at = _find_at(table, steps)
        whole &= np.isfinite(table.arrival_ns[:, at]).all(axis=(0, 2))
        seen &= np.isfinite(table.end_ns[:, at]).all(axis=(0, 2))
    most = (whole & seen).sum() > whole.sum() / 2
    return steps[whole & seen] if most else steps[whole]


def _read_lane(tables: list[Collectives], part: list[tuple[int, int]], steps: IntArray) -> Lane:
    read: list[list[FloatArray]] = []
    numbers = dict.fromkeys(number for number, _ in part)
    took_ns = {number: measure_took(tables[number], _find_at(tables[number], steps)) for number in numbers}
    for number, row in part:
        table, at = tables[number], _find_at(tables[number], steps)
        arrival_ns, exposed_ns = table.arrival_ns[row, at], np.nan_to_num(table.exposed_ns[row, at])
        issued_left_ns = np.where(exposed_ns > 0, arrival_ns + exposed_ns, np.nan)
        left_ns = issued_left_ns if table.left_ns is None else table.left_ns[row, at]
        left_ns = np.where(np.isfinite(left_ns), left_ns, issued_left_ns)
        read.append([arrival_ns, table.end_ns[row, at], took_ns[number][row], left_ns - exposed_ns, left_ns])
    arrival, end, took, begin, left = (np.stack(values) for values in zip(*read, strict=True))
    return Lane(
        numbers=[number for number, _ in part], first=tables[part[0][0]], arrival_ns=arrival, end_ns=end, took_ns=took,
        begin_ns=begin, left_ns=left,
    )  # fmt: skip


def _find_at(table: Collectives, steps: IntArray) -> IntArray:
    at: IntArray = np.searchsorted(table.steps, steps)
    return at


def _place(entries: list[Entry], origin_ns: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """When the compute stream comes to each entry, and how long it waits there, ``[num_ranks, num_steps,
    num_entries]``. None: too many of the waits are in another order."""
    place_ns = np.stack([entry.at_ns for entry in entries], axis=2)
    wait_ns = np.zeros_like(place_ns)
    latest = np.full(origin_ns.shape, np.inf)
    for index in range(len(entries) - 1, -1, -1):
        latest = np.minimum(latest, entries[index].at_ns) if entries[index].left_ns is not None else latest
        place_ns[:, :, index] = latest  # the next wait
    now, moved, count = origin_ns.copy(), 0, 0
    resumed = origin_ns
    for index, entry in enumerate(entries):
        at_ns = _find_place(entry, resumed, place_ns[:, :, index])
        now = place_ns[:, :, index] = np.maximum(np.minimum(at_ns, place_ns[:, :, index]), now)
        if entry.left_ns is not None:
            waited = entry.left_ns > entry.at_ns
            moved += int((waited & (np.abs(now - entry.at_ns) > NEAR_NS)).sum())
            count += int(waited.sum())
            wait_ns[:, :, index] = np.maximum(entry.left_ns - now, 0)
            resumed = now = now + wait_ns[:, :, index]
    return None if moved > MAX_DISORDER * count else (place_ns, wait_ns)


def _find_place(entry: Entry, resumed_ns: FloatArray, until_ns: FloatArray) -> FloatArray:
    """When the compute stream comes to an entry, between the wait before it and the one after."""
    if entry.bound is None:
        return entry.at_ns
    long_ns = np.maximum(until_ns - resumed_ns, 0)
    tells = ~entry.bound & (long_ns > 0)
    share = 0.0
    if tells.mean() >= MIN_UNBOUND:
        share = float(np.median(np.clip((entry.at_ns - resumed_ns)[tells] / long_ns[tells], 0, 1)))
    return np.where(entry.bound, np.minimum(entry.at_ns, resumed_ns + share * long_ns), entry.at_ns)


def _assemble(
    tables: list[Collectives],
    lanes: list[Lane],
    entries: list[Entry],
    positions: IntArray,
    steps: IntArray,
    place_ns: FloatArray,
    wait_ns: FloatArray,
) -> OrderedCollectives:
    where = {(entry.lane, entry.column): index for index, entry in enumerate(entries) if not entry.is_await}
    unknown = np.full(place_ns.shape[:2], np.nan)

    def take(values: list[FloatArray]) -> FloatArray:
        return np.stack([
            unknown if entry.is_await else values[entry.lane][:, :, entry.column] for entry in entries
        ], axis=2)  # fmt: skip

    awaits = np.array([where[entry.lane, entry.column] if entry.is_await else -1 for entry in entries])
    follows = np.array([-1 if entry.follows is None else where.get(entry.follows, -1) for entry in entries])
    follows[follows >= np.arange(len(entries))] = -1
    blocking: BoolArray = np.array([entry.left_ns is not None for entry in entries])
    phases: list[Phase] = []
    for entry in entries:  # a wait belongs to the part that the rank has come to
        phases.append(phases[-1] if entry.is_await else lanes[entry.lane].first.phases[entry.column])
    kinds: list[CollectiveKind] = [lanes[entry.lane].first.kinds[entry.column] for entry in entries]
    return OrderedCollectives(
        positions=positions, steps=steps, clock=Clock.DEVICE, awaits=awaits if (awaits >= 0).any() else None,
        follows=follows if (follows >= 0).any() else None,
        parties=tuple(() if entry.is_await else find_parties(tables, lanes[entry.lane].numbers) for entry in entries),
        phases=tuple(phases), kinds=tuple(kinds), blocking=blocking,
        sizes_bytes=tuple(
            None if entry.is_await else lanes[entry.lane].first.sizes_bytes[entry.column] for entry in entries
        ),
        arrival_ns=place_ns, exposed_ns=wait_ns, end_ns=take([lane.end_ns for lane in lanes]),
        took_ns=take([lane.took_ns for lane in lanes]),
    )  # fmt: skip
