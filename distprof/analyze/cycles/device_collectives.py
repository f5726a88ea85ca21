"""What a rank's compute stream goes through in a step: collectives that it issues, and waits for them.

Under FSDP2 a collective is issued at one point, on a stream of its own, and compute waits for it at a later one. So
waits are entries of their own, except where they begin when the collective is issued, as under DDP. An entry's place is
its time on the compute stream. A collective whose stream became ready while compute waited for another one is placed
next to that wait. One whose stream became ready when an earlier collective ended followed that one, and where compute
was by then tells nothing: it is placed where it is in other steps or on other ranks, else as early as may be.

A rank's kernel starts when its stream is ready and the group's previous collective has ended there. It spins until the
last rank's has started; then the data move, and all of them end nearly together. So the rank that took least came last,
what it took is the transfer, and what another rank took beyond that it waited. Each time is the difference of two
stamps of one device: no clocks are compared. The roots of a broadcast or a reduction leave early, so nothing follows
from what these take.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.cycles.collective_order import OrderedCollectives, list_groups, list_steps
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import Clock, CollectiveKind, Collectives, Phase

MAX_DISORDER = 0.01
"""Share of the waits that may begin before another one has ended that comes first on the other ranks."""
NEAR_NS = 10_000.0
"""A wait that begins no further from where its collective was issued is one with it: a few launches take as long."""
AT_ONCE_RATIO = 0.9
"""Of the steps in which that must be so."""
MIN_UNBOUND = 0.05
"""Share of the cells from which the place of a collective in the others is taken."""
PLACE_STEP = 1e-6
"""Less than one place in an order."""
LAG_NS = 50_000.0
"""From the end of the one to when the other is ready: a copy of what was received takes as long."""
EARLY_NS = 10_000.0
"""The other way round: ends are noted a few launches late."""
MIN_FOLLOWED_RATIO = 0.5
"""Of a rank's steps in which that must be so."""
MAX_APART_NS = 1_000_000.0
"""Between the medians of the two times; further apart, the steps are not looked at."""
MAX_COMPARED_RANKS = 16
"""Whose medians are compared."""
RESOLUTION_NS = 1_000.0
"""Ranks of which one took less than another by no more than this came together."""


def compute_earliest_starts(table: Collectives, steps: IntArray) -> FloatArray:
    """When each collective could start on each rank, ``[num_members, num_steps, num_collectives]``.

    Args:
        table: On the device clock.
        steps: Positions in ``table.steps``.
    """
    arrival_ns, end_ns = table.arrival_ns[:, steps], table.end_ns[:, steps]
    over_ns = np.fmax.accumulate(end_ns, axis=2)  # the latest of those up to each, unseen ends left out
    starts_ns = arrival_ns.copy()
    starts_ns[:, :, 1:] = np.fmax(arrival_ns[:, :, 1:], over_ns[:, :, :-1])
    return starts_ns


def measure_took(table: Collectives, steps: IntArray) -> FloatArray:
    """From its start to its end on each rank, in the same shape; NaN: the end was not seen, or the kind is `OTHER`."""
    took_ns: FloatArray = np.maximum(table.end_ns[:, steps] - compute_earliest_starts(table, steps), 0)
    took_ns[:, :, [kind is CollectiveKind.OTHER for kind in table.kinds]] = np.nan
    return took_ns


def mark_last(took_ns: FloatArray) -> BoolArray:
    """Whether a member took less than each of the others, by more than the resolution; in the same shape."""
    if len(took_ns) < 2:
        return np.zeros(took_ns.shape, dtype=bool)
    ranked = np.sort(took_ns, axis=0)
    last: BoolArray = (took_ns == ranked[0]) & (ranked[1] - ranked[0] > RESOLUTION_NS)
    return last


class _Lane(Struct, frozen=True, kw_only=True):
    """The collectives of each rank's group that plays one part, such as the shards' or the replicas' group."""

    numbers: list[int]
    """Of the tables, ``[num_ranks]``."""
    first: Collectives
    """The first rank's table."""
    arrival_ns: FloatArray
    """``[num_ranks, num_steps, num_collectives]``, like all that follows."""
    end_ns: FloatArray
    took_ns: FloatArray
    begin_ns: FloatArray
    """Of the wait; NaN: none was seen."""
    left_ns: FloatArray

    def is_bound(self, column: int, other: _Lane, other_column: int) -> BoolArray:
        """Where a collective was ready just when one of another lane, or of this one, ended,
        ``[num_ranks, num_steps]``."""
        after_ns = self.arrival_ns[:, :, column] - other.end_ns[:, :, other_column]
        bound: BoolArray = (after_ns >= -EARLY_NS) & (after_ns <= LAG_NS)
        return bound


def _list_followed(lanes: list[_Lane], origin_ns: FloatArray) -> dict[tuple[int, int], tuple[int, int]]:
    """For each collective that usually follows another one on some rank, that one; both as lane and column.

    Args:
        lanes: All collectives.
        origin_ns: The begin of the steps, ``[num_ranks, num_steps]``.
    """
    places = [(number, column) for number, lane in enumerate(lanes) for column in range(len(lane.first.kinds))]
    rows = np.unique(np.linspace(0, len(origin_ns) - 1, MAX_COMPARED_RANKS).astype(np.int64))
    ready_ns, over_ns = (
        np.concatenate([np.median(values[rows] - origin_ns[rows][:, :, None], axis=1) for values in each], axis=1)
        for each in ([lane.arrival_ns for lane in lanes], [lane.end_ns for lane in lanes])
    )  # fmt: skip
    near = (np.abs(ready_ns[:, :, None] - over_ns[:, None, :]) <= MAX_APART_NS).any(axis=0)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    best = np.full(len(places), MIN_FOLLOWED_RATIO)
    for index, other in np.argwhere(near).tolist():
        (number, column), (before, before_column) = places[index], places[other]
        if number == before and before_column >= column:
            continue
        bound = lanes[number].is_bound(column, lanes[before], before_column)
        share = float(bound.mean(axis=1).max())
        if share >= best[index]:
            best[index] = share
            found[number, column] = (before, before_column)
    return found


class _Entry(Struct, frozen=True, kw_only=True):
    """A collective, the wait for it, or both at once."""

    lane: int
    column: int
    at_ns: FloatArray
    """When the compute stream comes to it, or at the latest then, ``[num_ranks, num_steps]``."""
    left_ns: FloatArray | None
    """When the compute stream goes on after the wait. None: it does not wait here."""
    is_await: bool
    predecessor: tuple[int, int] | None
    """Lane and column of the collective whose end may make its stream ready. None: compute does."""
    bound: BoolArray | None
    """Where that end did, in the shape of ``at_ns``."""
    usual_ns: FloatArray
    """When that usually is where it is known, from the begin of the step on, ``[num_ranks]``; NaN: nowhere."""


def _list_entries(lanes: list[_Lane], origin_ns: FloatArray) -> list[_Entry]:
    """Everything that ranks issue or wait for, lane by lane, each wait next to its collective."""
    entries = []
    followed = _list_followed(lanes, origin_ns)
    for number, lane in enumerate(lanes):
        for column in range(len(lane.first.kinds)):
            arrival_ns, begin_ns, left_ns = (
                values[:, :, column] for values in (lane.arrival_ns, lane.begin_ns, lane.left_ns)
            )
            waited = _is_waited(begin_ns, left_ns)
            away_ns = np.abs(begin_ns - arrival_ns)[np.isfinite(begin_ns)]
            at_once = waited and bool(np.quantile(away_ns, AT_ONCE_RATIO) <= NEAR_NS)
            if waited:
                begin_ns = _fill(begin_ns, origin_ns)
                left_ns = np.where(np.isfinite(left_ns), left_ns, begin_ns)
            at_ns = begin_ns if at_once else arrival_ns
            other = None if at_once else followed.get((number, column))
            bound = None if other is None else lane.is_bound(column, lanes[other[0]], other[1])
            entry = _Entry(
                lane=number, column=column, at_ns=at_ns, left_ns=left_ns if at_once else None, is_await=False,
                predecessor=other, bound=bound, usual_ns=_mean_where_known(at_ns - origin_ns, bound),
            )  # fmt: skip
            entries.append(entry)
            if waited and not at_once:
                later_ns = (begin_ns - origin_ns).mean(axis=1)
                entries.append(
                    structs.replace(
                        entry, at_ns=begin_ns, left_ns=left_ns, is_await=True, predecessor=None, bound=None,
                        usual_ns=later_ns,
                    )
                )  # fmt: skip
    return entries


def _mean_where_known(since_ns: FloatArray, bound: BoolArray | None) -> FloatArray:
    """Each rank's mean over the steps that tell; NaN: too few do."""
    known = np.ones_like(since_ns) if bound is None else (~bound).astype(float)
    mean_ns: FloatArray = (since_ns * known).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.where(known.mean(axis=1) >= MIN_UNBOUND, mean_ns, np.nan)


def _sort_entries(entries: list[_Entry]) -> list[_Entry]:
    """By each one's mean place in the orders of the ranks, of which some come to all of them later than others. None
    comes before what it waits for or follows, nor before what was issued earlier in its lane."""
    usual_ns = np.stack([entry.usual_ns for entry in entries])
    known = np.isfinite(usual_ns)
    orders = np.argsort(np.where(known, usual_ns, np.inf), axis=0, kind="stable")
    ordinals = np.argsort(orders, axis=0, kind="stable") / np.maximum(known.sum(axis=0), 1)
    sums, counts = np.where(known, ordinals, 0.0).sum(axis=1), known.sum(axis=1)
    places = np.where(counts > 0, sums / np.maximum(counts, 1), -1.0).tolist()
    where = {(entry.lane, entry.column): index for index, entry in enumerate(entries) if not entry.is_await}
    before = [
        [where[item] for item in _list_needed(entry) if item in where and where[item] != index]
        for index, entry in enumerate(entries)
    ]
    for _ in entries:  # as often as it takes, which is hardly more than once
        moved = False
        for index, earlier in enumerate(before):
            least = max((places[item] for item in earlier), default=-1.0) + PLACE_STEP
            if places[index] < least:
                places[index], moved = least, True
        if not moved:
            break
    return [entries[index] for index in sorted(range(len(entries)), key=places.__getitem__)]


def _list_needed(entry: _Entry) -> list[tuple[int, int]]:
    """Lane and column of the collectives that come before an entry."""
    if entry.is_await:
        return [(entry.lane, entry.column)]
    return [(entry.lane, entry.column - 1), *([] if entry.predecessor is None else [entry.predecessor])]


def _is_waited(begin_ns: FloatArray, left_ns: FloatArray) -> bool:
    """Whether ranks wait for a collective: usually, even if it is over by then, or now and then for some time."""
    seen = np.isfinite(left_ns)
    return bool(seen.mean() >= 0.5 or (left_ns[seen] > begin_ns[seen]).any())


def _fill(begin_ns: FloatArray, origin_ns: FloatArray) -> FloatArray:
    """The begin of a wait also where none was seen: when it begins in other steps of the rank, or on other ranks."""
    since_ns = begin_ns - origin_ns
    seen = np.isfinite(since_ns)
    if seen.all():
        return begin_ns
    sums, counts = np.where(seen, since_ns, 0.0).sum(axis=1), seen.sum(axis=1)
    usual_ns = np.where(counts > 0, sums / np.maximum(counts, 1), sums.sum() / counts.sum())
    return np.where(seen, begin_ns, origin_ns + usual_ns[:, None])


def order_on_device(measured_steps: MeasuredSteps) -> OrderedCollectives | None:
    """Aligns the ranks' collectives and waits on the device clock, up to the last wait.

    Returns:
        None where the ranks do not issue the same kinds in the same order, wait in different orders, or not at all.
    """
    positions = np.flatnonzero(measured_steps.present)
    tables, steps = list_steps(measured_steps, len(positions), Clock.DEVICE)
    steps = _keep_whole_steps(measured_steps, tables, steps, positions)
    parts = _list_parts(tables, positions)
    if not parts or not len(steps):
        return None
    lanes = [_read_lane(tables, part, steps) for part in parts]
    origin_ns = measured_steps.run.column("begin_device_ns")[np.ix_(positions, steps)]
    entries = _sort_entries(_list_entries(lanes, origin_ns))
    waits = [index for index, entry in enumerate(entries) if entry.left_ns is not None]
    if not waits:
        return None
    entries = entries[: waits[-1] + 1]
    placed = _place(entries, origin_ns)
    return None if placed is None else _assemble(tables, lanes, entries, positions, steps, *placed)


def _list_parts(tables: list[Collectives], positions: IntArray) -> list[list[tuple[int, int]]]:
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


def _keep_whole_steps(
    measured_steps: MeasuredSteps, tables: list[Collectives], steps: IntArray, positions: IntArray
) -> IntArray:
    """The steps in which all ranks know when each collective was issued and when the step began; of these the ones in
    which every end was seen, if that is most of them."""
    run = measured_steps.run
    times_ns = run.column("begin_device_ns") + run.column("step_device_ns")
    whole = np.isfinite(times_ns[np.ix_(positions, steps)]).all(axis=0)
    seen = np.ones(len(steps), dtype=bool)
    for table in tables:
        at = _positions_of(table, steps)
        whole &= np.isfinite(table.arrival_ns[:, at]).all(axis=(0, 2))
        seen &= np.isfinite(table.end_ns[:, at]).all(axis=(0, 2))
    most = (whole & seen).sum() > whole.sum() / 2
    return steps[whole & seen] if most else steps[whole]


def _read_lane(tables: list[Collectives], part: list[tuple[int, int]], steps: IntArray) -> _Lane:
    read: list[list[FloatArray]] = []
    numbers = dict.fromkeys(number for number, _ in part)
    took_ns = {number: measure_took(tables[number], _positions_of(tables[number], steps)) for number in numbers}
    for number, row in part:
        table, at = tables[number], _positions_of(tables[number], steps)
        arrival_ns, exposed_ns = table.arrival_ns[row, at], np.nan_to_num(table.exposed_ns[row, at])
        issued_left_ns = np.where(exposed_ns > 0, arrival_ns + exposed_ns, np.nan)
        left_ns = issued_left_ns if table.left_ns is None else table.left_ns[row, at]
        left_ns = np.where(np.isfinite(left_ns), left_ns, issued_left_ns)
        read.append([arrival_ns, table.end_ns[row, at], took_ns[number][row], left_ns - exposed_ns, left_ns])
    arrival, end, took, begin, left = (np.stack(values) for values in zip(*read, strict=True))
    return _Lane(
        numbers=[number for number, _ in part], first=tables[part[0][0]], arrival_ns=arrival, end_ns=end, took_ns=took,
        begin_ns=begin, left_ns=left,
    )  # fmt: skip


def _positions_of(table: Collectives, steps: IntArray) -> IntArray:
    at: IntArray = np.searchsorted(table.steps, steps)
    return at


def _place(entries: list[_Entry], origin_ns: FloatArray) -> tuple[FloatArray, FloatArray] | None:
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
        at_ns = _estimate_place(entry, resumed, place_ns[:, :, index])
        now = place_ns[:, :, index] = np.maximum(np.minimum(at_ns, place_ns[:, :, index]), now)
        if entry.left_ns is not None:
            waited = entry.left_ns > entry.at_ns
            moved += int((waited & (np.abs(now - entry.at_ns) > NEAR_NS)).sum())
            count += int(waited.sum())
            wait_ns[:, :, index] = np.maximum(entry.left_ns - now, 0)
            resumed = now = now + wait_ns[:, :, index]
    return None if moved > MAX_DISORDER * count else (place_ns, wait_ns)


def _estimate_place(entry: _Entry, resumed_ns: FloatArray, until_ns: FloatArray) -> FloatArray:
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
    lanes: list[_Lane],
    entries: list[_Entry],
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

    waits_for = np.array([where[entry.lane, entry.column] if entry.is_await else -1 for entry in entries])
    follows = np.array([-1 if entry.predecessor is None else where.get(entry.predecessor, -1) for entry in entries])
    follows[follows >= np.arange(len(entries))] = -1
    is_waited_on: BoolArray = np.array([entry.left_ns is not None for entry in entries])
    phases: list[Phase] = []
    for entry in entries:  # a wait belongs to the part that the rank has come to
        phases.append(phases[-1] if entry.is_await else lanes[entry.lane].first.phases[entry.column])
    kinds: list[CollectiveKind] = [lanes[entry.lane].first.kinds[entry.column] for entry in entries]
    return OrderedCollectives(
        positions=positions, steps=steps, clock=Clock.DEVICE, waits_for=waits_for if (waits_for >= 0).any() else None,
        predecessor=follows if (follows >= 0).any() else None,
        groups=tuple(() if entry.is_await else list_groups(tables, lanes[entry.lane].numbers) for entry in entries),
        issued=tuple(phases), kinds=tuple(kinds), is_waited_on=is_waited_on,
        sizes_bytes=tuple(
            None if entry.is_await else lanes[entry.lane].first.sizes_bytes[entry.column] for entry in entries
        ),
        arrival_ns=place_ns, exposed_ns=wait_ns, end_ns=take([lane.end_ns for lane in lanes]),
        took_ns=take([lane.took_ns for lane in lanes]),
    )  # fmt: skip
