"""Matches the steps of different ranks by number, and their collectives by (group, step, position, kind, bytes) or not
at all."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import COLUMN, UNEVEN_KINDS, Clock, CollectiveKind, Collectives, Phase, make_rows, name_ranks
from distprof.storage.collective_records import GroupInfo, RankCollectives
from distprof.storage.row_table import find_table

Item = tuple[CollectiveKind, int | None]
Shape = tuple[Item, ...]
"""Kind and bytes of the collectives of one group in a step. Bytes are 0 for `UNEVEN_KINDS`, whose sizes differ between
ranks, and None throughout a group if they are not known on some rank."""
_SHOWN_RANGES = 4
MAX_FILL = 2
"""Cells of a table of ranks and steps per existing row, at most; steps that few ranks have are left out first."""
ALWAYS_PLACES = 1 << 18
"""This many cells are allocated in any case: about 160 MB."""


class _GroupPart(Struct, frozen=True, kw_only=True):
    """The part of one order of one rank that belongs to one group."""

    table: RankCollectives
    columns: IntArray
    """Which collectives of the table."""
    shape: Shape


class _Divergence(Struct, frozen=True, kw_only=True):
    step: int
    group: str
    text: str
    num_steps: int


def align_rows(own: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray, tuple[str, ...]]:
    """Aligns the rows of all ranks by step number.

    If ranks had no steps in common, memory would grow with the square of their number, for statistics that need
    steps which all ranks have: `MAX_FILL` limits that.

    Args:
        own: Each rank's rows, ``[num_rows, ROW_WIDTH]``.

    Returns:
        Step numbers, ascending, ``[num_steps]``; rows as in `distprof.facts.run.Run`; and a warning if steps were left
        out.
    """
    numbers = [rows[:, COLUMN["step"]] for rows in own]
    axis, shared = np.unique(np.concatenate(numbers) if numbers else np.empty(0), return_counts=True)
    room = max(ALWAYS_PLACES, MAX_FILL * int(shared.sum())) // max(len(own), 1)
    left_out = len(axis) - room
    if left_out > 0:
        axis = np.sort(axis[np.argsort(-shared, kind="stable")[:room]])
    if left_out <= 0 and all(np.array_equal(axis, steps) for steps in numbers):
        table = own[0][np.newaxis] if len(own) == 1 else find_table(own)
        if table is not None:  # rows may be very many
            return axis, table, ()
    rows = make_rows(len(own), len(axis))
    for position, (steps, filled) in enumerate(zip(numbers, own, strict=True)):
        there = np.isin(steps, axis)
        rows[position, np.searchsorted(axis, steps[there])] = filled[there]
    if left_out <= 0:
        return axis, rows, ()
    return axis, rows, (f"{left_out:,} steps left out: those recorded by the fewest of the {len(own):,} ranks",)


def match_collectives(
    ranks: Sequence[int],
    tables: Sequence[Sequence[RankCollectives]],
    axis: IntArray,
    *,
    world_size: int,
    clock: Clock = Clock.HOST,
) -> tuple[tuple[Collectives, ...], tuple[str, ...]]:
    """Matches the collectives of all ranks, group by group.

    Args:
        ranks: The ranks present, ascending.
        tables: The collectives that each of them observed, in the same order.
        axis: Step numbers, ascending: axis 1 of the run's rows.
        world_size: Number of ranks in the job, present or not.
        clock: Of the times.

    Returns:
        A table per group and shape, over the steps in which all members with data agree; and a warning if ranks
        disagree in some step, which describes the first.
    """
    found: list[Collectives] = []
    parted: list[_Divergence] = []
    by_group = [[_group_columns(table) for table in own] for own in tables]
    for group in dict.fromkeys(info for own in tables for table in own for info in table.groups.values()):
        inside = None if group.ranks is None else frozenset(group.ranks)
        members = [index for index, rank in enumerate(ranks) if tables[index] and (inside is None or rank in inside)]
        if not members:
            continue  # none of the ranks that name the group is in it: damaged
        own = [
            [(table, columns.get(group, [])) for table, columns in zip(tables[index], by_group[index], strict=True)]
            for index in members
        ]
        sized = all(_has_known_sizes(table, columns) for pairs in own for table, columns in pairs)
        parts = [[_cut(table, columns, sized=sized) for table, columns in pairs] for pairs in own]
        common = functools.reduce(np.intersect1d, (_steps(own) for own in parts), axis)
        shapes: dict[Shape, int] = {}
        seen = np.stack([_number_shapes(own, common, shapes) for own in parts])
        agreed = np.all(seen == seen[0], axis=0)
        for shape, number in shapes.items():
            steps = common[agreed & (seen[0] == number)]
            if shape and len(steps):
                size = world_size if group.ranks is None else len(group.ranks)
                table = _tabulate(group.name, size, members, parts, shape, steps, axis)
                found.append(table if clock is Clock.HOST else replace(table, clock=clock))
        if not agreed.all():
            first = int(np.flatnonzero(~agreed)[0])
            names = list(shapes)
            said = [(ranks[index], names[number]) for index, number in zip(members, seen[:, first], strict=True)]
            text, missed = _describe(said), int((~agreed).sum())
            parted.append(_Divergence(step=int(common[first]), group=group.name, text=text, num_steps=missed))
    return tuple(found), _warn(parted)


def _steps(parts: Iterable[_GroupPart]) -> IntArray:
    steps = [part.table.steps for part in parts]
    return np.concatenate(steps) if steps else np.empty(0, dtype=np.int64)


def _group_columns(table: RankCollectives) -> dict[GroupInfo, list[int]]:
    """The table's collectives by group, as columns."""
    by_code: dict[int, list[int]] = {}
    for column, issue in enumerate(table.order):
        by_code.setdefault(issue.group, []).append(column)
    found: dict[GroupInfo, list[int]] = {}
    for code, columns in by_code.items():
        found.setdefault(table.groups[code], []).extend(columns)
    return {group: sorted(columns) for group, columns in found.items()}


def _has_known_sizes(table: RankCollectives, columns: Sequence[int]) -> bool:
    """Whether the sizes of all these collectives are known, as far as they are equal on all ranks."""
    issues = [table.order[column] for column in columns]
    return all(issue.size_bytes is not None for issue in issues if issue.kind not in UNEVEN_KINDS)


def _cut(table: RankCollectives, columns: Sequence[int], *, sized: bool) -> _GroupPart:
    issues = [table.order[column] for column in columns]
    shape = tuple((issue.kind, 0 if issue.kind in UNEVEN_KINDS else issue.size_bytes) for issue in issues)
    if not sized:
        shape = tuple((kind, None) for kind, _ in shape)
    return _GroupPart(table=table, columns=np.array(columns, dtype=np.int64), shape=shape)


def _number_shapes(parts: Sequence[_GroupPart], steps: IntArray, shapes: dict[Shape, int]) -> IntArray:
    """The number of one rank's shape in each step, ``[num_steps]``; new shapes are added to ``shapes``."""
    numbers = np.full(len(steps), -1)
    for part in parts:
        numbers[np.isin(steps, part.table.steps)] = shapes.setdefault(part.shape, len(shapes))
    return numbers


def _tabulate(
    name: str,
    size: int,
    members: Sequence[int],
    parts: Sequence[Sequence[_GroupPart]],
    shape: Shape,
    steps: IntArray,
    axis: IntArray,
) -> Collectives:
    issues = [next(part for part in own if part.shape == shape) for own in parts]
    apart = all(part.table.left_ns is not None for part in issues)
    tables = np.full((4 if apart else 3, len(members), len(steps), len(shape)), np.nan)
    brings = any(part.table.received_bytes is not None for part in issues)
    received = np.full((len(members), len(steps), len(shape)), np.nan) if brings else None
    for index, own in enumerate(parts):
        for part in own:
            if part.shape == shape:
                table = part.table
                times = (table.arrival_ns, table.end_ns, table.exposed_ns, table.left_ns)
                _copy(part, steps, tables[:, index], times)
                if received is not None:
                    _copy(part, steps, received[index : index + 1], (table.received_bytes,))
    written = zip(*([part.table.order[column].size_bytes for column in part.columns] for part in issues), strict=True)
    sizes = [*map(_largest_known, written)]
    if received is not None:  # of the rank that gets most
        largest = received.mean(axis=1).max(axis=0)
        sizes = [round(most) if np.isfinite(most) else size for most, size in zip(largest.tolist(), sizes, strict=True)]
    phases: list[Phase] = [issues[0].table.order[column].phase for column in issues[0].columns]
    return Collectives(
        group=name, ranks=np.array(members, dtype=np.int64), size=size,
        kinds=tuple(kind for kind, _ in shape), phases=tuple(phases), sizes_bytes=tuple(sizes),
        received_bytes=received,
        steps=np.searchsorted(axis, steps), arrival_ns=tables[0], end_ns=tables[1], exposed_ns=tables[2],
        left_ns=tables[3] if apart else None,
    )  # fmt: skip


def _largest_known(sizes_bytes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes_bytes if size is not None]
    return max(known) if len(known) == len(sizes_bytes) else None


def _copy(part: _GroupPart, steps: IntArray, target: FloatArray, sources: Sequence[FloatArray | None]) -> None:
    """Copies a rank's values of the given steps into ``target``, ``[num_sources, num_steps, num_collectives]``."""
    unique, rows = np.unique(part.table.steps, return_index=True)
    index = np.searchsorted(steps, unique)
    there = np.zeros(len(unique), dtype=bool)
    within = index < len(steps)
    there[within] = steps[index[within]] == unique[within]
    where = np.ix_(rows[there], part.columns)
    for kept, source in zip(target, sources, strict=False):
        if source is not None:
            kept[index[there]] = source[where]


def _describe(said: Sequence[tuple[int, Shape]]) -> str:
    """The first position at which the ranks differ, and what each of them issued there."""
    for index, items in enumerate(zip_longest(*(shape for _, shape in said))):
        if len(set(items)) > 1:
            by_item: dict[Item | None, list[int]] = {}
            for (rank, _), item in zip(said, items, strict=True):
                by_item.setdefault(item, []).append(rank)
            parts = [f"{_name(item)} on {name_ranks(ranks, most=_SHOWN_RANGES)}" for item, ranks in by_item.items()]
            return f"collective {index}, counted from 0, is {' and '.join(parts)}"
    raise AssertionError("different shapes must have a first difference")


def _name(item: Item | None) -> str:
    if item is None:
        return "missing"
    kind, size_bytes = item
    if kind is CollectiveKind.OTHER:
        return "of another kind"
    return f"{kind}" if size_bytes is None or kind in UNEVEN_KINDS else f"{kind} of {size_bytes} B"


def _warn(parted: Sequence[_Divergence]) -> tuple[str, ...]:
    if not parted:
        return ()
    first = min(parted, key=lambda item: item.step)
    total = max(item.num_steps for item in parted)
    steps = "1 step is" if total == 1 else f"{total} steps are"
    where = f"not the same collectives were seen on all ranks: step {first.step}, group {first.group}: {first.text}"
    return (f"{where}; {steps} left out of all waits",)
