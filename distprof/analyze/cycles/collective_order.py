"""Which collectives of different ranks belong together? Merges the groups' tables into one order per step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import choose_blocks
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import Clock, CollectiveKind, Collectives, Part, Phase, Run

MAX_CELLS = 8_400_000
"""Largest ranks x steps x collectives that are analysed; of larger runs, blocks of neighbouring steps are."""

ROUNDED_NS = 1.0
"""Differences of times on one clock up to this are none."""


class IssuedCollectives(Struct, frozen=True, kw_only=True):
    """What the ranks that count issue and wait for in a step, in order of issue.

    On the device clock, waits that begin later than their collective is issued are entries of their own.
    """

    clock: Clock = Clock.HOST
    positions: IntArray
    """Positions in ``Run.ranks``, ``[num_ranks]``."""
    steps: IntArray
    """Positions on axis 1 of ``Run.rows``, ``[num_steps]``."""
    groups: tuple[tuple[tuple[str, IntArray], ...], ...]
    """For each collective the groups that run it: name, and members as rows of axis 0 of what is measured. Empty: it is
    a later wait for one."""
    is_waited_on: BoolArray
    """Whether the ranks wait here, where they issue it or later, ``[num_collectives]``; always true of the last one."""
    issued: tuple[Part, ...] = ()
    """The part in which each collective is issued, ``[num_collectives]``. Empty, like the next two: not known."""
    kinds: tuple[CollectiveKind, ...] = ()
    sizes_bytes: tuple[int | None, ...] = ()
    """Of the group that is listed first; None: not known."""
    waits_for: IntArray | None = None
    """Of a wait for an earlier collective, the index of that one; -1: a collective, ``[num_collectives]``. None: ranks
    wait only where they issue."""
    predecessor: IntArray | None = None
    """Of a collective, the index of an earlier one after which it comes on its stream; -1: none. None: nowhere, except
    that each follows the one before it in its group."""


class OrderedCollectives(IssuedCollectives, frozen=True, kw_only=True):
    """When that was; the same index means the same kind and phase on every rank."""

    arrival_ns: FloatArray
    """On the rank's own clock, ``[num_ranks, num_steps, num_collectives]``; so are the next two."""
    end_ns: FloatArray
    exposed_ns: FloatArray
    took_ns: FloatArray | None = None
    """On the device clock, from when it could start on a rank until its end there; NaN: nothing follows from it."""


def order_collectives(measured_steps: MeasuredSteps) -> OrderedCollectives | None:
    """Aligns the ranks' collectives, up to the last one that a rank waits for.

    Returns:
        None where the ranks do not issue the same kinds in the same order, or none is waited for.
    """
    positions = np.flatnonzero(measured_steps.present)
    tables, steps = list_steps(measured_steps, len(positions))
    if not len(steps):
        return None
    found = [_sort_by_arrival(tables, int(position), steps) for position in positions]
    first, orders = found[0], [item for item in found if item is not None]
    if first is None or len(orders) < len(found) or any(other.shape != first.shape for other in orders):
        return None
    shape = (len(first.order), len(positions), len(steps))
    arrival_ns, end_ns, exposed_ns = (np.moveaxis(np.empty(shape), 0, 2) for _ in range(3))  # one collective at a time
    for row, item in enumerate(orders):
        for index, (number, member, column) in enumerate(item.order):
            table = tables[number]
            at = np.searchsorted(table.steps, steps)
            arrival_ns[row, :, index] = table.arrival_ns[member, at, column]
            end_ns[row, :, index] = table.end_ns[member, at, column]
            exposed_ns[row, :, index] = table.exposed_ns[member, at, column]
    is_waited_on: BoolArray = np.logical_or.reduce(exposed_ns > 0, axis=(0, 1))
    if not is_waited_on.any():
        return None
    count = int(np.flatnonzero(is_waited_on)[-1]) + 1
    groups = tuple(list_groups(tables, [item.order[index][0] for item in orders]) for index in range(count))
    return OrderedCollectives(
        positions=positions, steps=steps, groups=groups, issued=tuple(phase for _, phase in first.shape[:count]),
        kinds=tuple(CollectiveKind(kind) for kind, _ in first.shape[:count]),
        sizes_bytes=tuple(tables[number].sizes_bytes[column] for number, _, column in first.order[:count]),
        is_waited_on=is_waited_on[:count], arrival_ns=arrival_ns[:, :, :count], end_ns=end_ns[:, :, :count],
        exposed_ns=exposed_ns[:, :, :count],
    )  # fmt: skip


class _Order(Struct, frozen=True, kw_only=True):
    """One rank's collectives in the order it issues them."""

    shape: tuple[tuple[str, Phase], ...]
    """Kind and phase of each."""
    order: tuple[tuple[int, int, int], ...]
    """Where each is: number of the table, member's row, column."""


def list_tables(run: Run, clock: Clock) -> tuple[Collectives, ...]:
    """The tables whose times are on one clock."""
    return run.device_collectives if clock is Clock.DEVICE else run.collectives


def choose_tables(measured_steps: MeasuredSteps, clock: Clock = Clock.HOST) -> list[Collectives]:
    """Each group's table with the most counted steps; groups without counted steps are left out."""
    best: dict[tuple[str, tuple[int, ...]], tuple[int, Collectives]] = {}
    for table in list_tables(measured_steps.run, clock):
        key = (table.group, tuple(table.ranks.tolist()))
        used = int(measured_steps.counted[table.steps].sum())
        if used > best.get(key, (0, None))[0]:
            best[key] = (used, table)
    return [table for _, table in best.values()]


def list_steps(
    measured_steps: MeasuredSteps, num_ranks: int, clock: Clock = Clock.HOST
) -> tuple[list[Collectives], IntArray]:
    """The tables of the groups that take part in most steps, and the counted steps in which these and no others do.

    Where these are too many, blocks of them. A group that is used now and then, as for a barrier before a checkpoint,
    so costs the steps that it is used in, and not all others.
    """
    chosen = choose_tables(measured_steps, clock)
    counts = [int(measured_steps.counted[table.steps].sum()) for table in chosen]
    tables = [table for table, count in zip(chosen, counts, strict=True) if count > max(counts) / 2]
    usual = {(table.group, tuple(table.ranks.tolist())) for table in tables}
    steps = np.flatnonzero(measured_steps.counted)
    for table in tables:
        steps = np.intersect1d(steps, table.steps, assume_unique=True)
    for table in list_tables(measured_steps.run, clock):
        if (table.group, tuple(table.ranks.tolist())) not in usual:
            steps = np.setdiff1d(steps, table.steps, assume_unique=True)
    widths = np.zeros(len(measured_steps.present), dtype=np.int64)
    for table in tables:
        widths[table.ranks] += len(table.kinds)
    return tables, steps[choose_blocks(len(steps), MAX_CELLS // (num_ranks * int(widths.max(initial=1))))]


def _sort_by_arrival(tables: list[Collectives], position: int, steps: IntArray) -> _Order | None:
    seen = []
    for number, table in enumerate(tables):
        for member in np.flatnonzero(table.ranks == position).tolist():
            at = np.searchsorted(table.steps, steps)
            begin_ns = table.arrival_ns[member, at].min(axis=1)
            seen += [
                (table.arrival_ns[member, at, column], begin_ns, (number, member, column))
                for column in range(len(table.kinds))
            ]
    if not seen:
        return None
    earliest_ns = np.min([begin_ns for _, begin_ns, _ in seen], axis=0)
    seen.sort(key=lambda item: float((item[0] - earliest_ns).mean()))
    order = tuple(where for _, _, where in seen)
    return _Order(
        shape=tuple((tables[number].kinds[column].value, tables[number].phases[column]) for number, _, column in order),
        order=order,
    )


def list_groups(tables: Sequence[Collectives], numbers: Sequence[int]) -> tuple[tuple[str, IntArray], ...]:
    """The groups that run a collective, with their members, from the number of each rank's table."""
    members: dict[int, list[int]] = {}
    for row, number in enumerate(numbers):
        members.setdefault(number, []).append(row)
    return tuple((tables[number].group, np.array(rows)) for number, rows in members.items())


def resume_times(ordered: OrderedCollectives, exposed_ns: FloatArray) -> FloatArray:
    """When each rank goes on after each collective, in the shape of the arrivals and on the same clocks.

    A host may issue several collectives before it waits for the first one. Then the waits follow each other, and none
    of them is own time.

    Args:
        ordered: The collectives.
        exposed_ns: Waited for each; 0 where ranks do not wait.
    """
    arrival_ns = ordered.arrival_ns
    resume_ns: FloatArray = arrival_ns + exposed_ns
    later = range(1, arrival_ns.shape[2])
    if ordered.clock is Clock.HOST and any(
        (arrival_ns[:, :, index] < resume_ns[:, :, index - 1] - ROUNDED_NS).any() for index in later
    ):
        for index in later:
            begin_ns = np.maximum(arrival_ns[:, :, index], resume_ns[:, :, index - 1])
            resume_ns[:, :, index] = begin_ns + exposed_ns[:, :, index]
    return resume_ns
