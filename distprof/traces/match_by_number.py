"""Lines up the collectives of ranks by their numbers within their groups, which torch's profiler writes from 2.12 on.

Without numbers, a collective is the n-th of its group in its step. That is wrong where a rank's trace lacks one, or
where ranks begin their steps between different collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from distprof.facts.run import UNEVEN_KINDS
from distprof.storage.collective_records import GroupInfo, IssuedCollective, Order, RankCollectives

Tables = tuple[RankCollectives, ...]
Key = tuple[int, int]
"""A collective's number, and how many with that number the rank had before: those issued as one share it."""


class _Seen(NamedTuple):
    """One collective of one rank."""

    step: int
    place: Key
    """Its order within the step and group."""
    issue: IssuedCollective
    times_ns: tuple[float, float, float]
    """Arrival, end and exposed."""


class Numbered(Struct, frozen=True, kw_only=True):
    """The collectives of all ranks, lined up as far as their numbers allow."""

    tables: tuple[Tables, ...]
    """Of each rank: matched by order, they give what the numbers say."""
    groups: frozenset[GroupInfo]
    """The groups that were lined up by number."""
    warnings: tuple[str, ...]


def line_up_by_number(ranks: Sequence[int], tables: Sequence[Tables]) -> Numbered:
    """Moves each collective into the step in which its group's first rank has it; drops what only some ranks have.

    A group is left as it is, to be matched by order, unless all of its collectives have numbers and these agree about
    kinds and sizes. Sends and receives have none that ranks share.

    Args:
        ranks: The ranks present, ascending.
        tables: The collectives of each of them, in the same order.
    """
    if not any(table.number is not None for own in tables for table in own):
        return Numbered(tables=tuple(tables), groups=frozenset(), warnings=())
    seen = [_list_seen(own) for own in tables]
    numbered, moved, warnings = set(), False, []
    for group in dict.fromkeys(group for own in seen for group in own):
        inside = None if group.ranks is None else frozenset(group.ranks)
        members = [
            index for index, rank in enumerate(ranks) if tables[index] and (inside is None or rank in inside)
        ]  # fmt: skip
        keyed = [_key_by_number(seen[index].get(group, [])) for index in members]
        if len(members) < 2 or None in keyed:
            continue
        found = [own for own in keyed if own is not None]
        common = sorted(set(found[0]).intersection(*found[1:]))
        if not common or not _agree(found, common):
            warnings.append(f"group {group.name}: the numbers of collectives contradict each other: matched by order")
            continue
        numbered.add(group)
        if _is_lined_up(found, common):
            continue
        moved = True
        if alone := sum(common[0] < key < common[-1] for key in set().union(*found) - set(common)):
            warnings.append(
                f"group {group.name}: {alone:,} collectives are not in every rank's trace, according to their numbers: "
                "left out of all waits"
            )
        for index, own in zip(members, found, strict=True):
            seen[index][group] = [own[key]._replace(step=found[0][key].step, place=key) for key in common]
    lined_up = tuple(map(_tabulate, seen)) if moved else tuple(tables)
    return Numbered(tables=lined_up, groups=frozenset(numbered), warnings=tuple(warnings))


def _list_seen(tables: Tables) -> dict[GroupInfo, list[_Seen]]:
    """A rank's collectives by group, by step and order; without a number, the place's first part is -1."""
    found: dict[GroupInfo, list[_Seen]] = {}
    for table in tables:
        times = np.stack([table.arrival_ns, table.end_ns, table.exposed_ns], axis=-1).tolist()
        numbers = np.full(table.arrival_ns.shape, -1) if table.number is None else table.number
        for step, row, own in zip(table.steps.tolist(), times, numbers.tolist(), strict=True):
            for place, (issue, times_ns, number) in enumerate(zip(table.order, row, own, strict=True)):
                seen = _Seen(step, (number, place), issue, tuple(times_ns))
                found.setdefault(table.groups[issue.group], []).append(seen)
    return {group: sorted(own, key=lambda seen: (seen.step, seen.place[1])) for group, own in found.items()}


def _key_by_number(own: Sequence[_Seen]) -> dict[Key, _Seen] | None:
    """The collectives by number. None: not all of them have one."""
    counts: Counter[int] = Counter()
    found = {}
    for seen in own:
        number = seen.place[0]
        if number < 0:
            return None
        found[number, counts[number]] = seen
        counts[number] += 1
    return found


def _agree(found: Sequence[dict[Key, _Seen]], common: Sequence[Key]) -> bool:
    """Whether every rank has the same kind, and the same size as far as it is known, under each number."""
    for key in common:
        issues = [own[key].issue for own in found]
        if len({issue.kind for issue in issues}) > 1:
            return False
        if issues[0].kind not in UNEVEN_KINDS and len({issue.size_bytes for issue in issues} - {None}) > 1:
            return False
    return True


def _is_lined_up(found: Sequence[dict[Key, _Seen]], common: Sequence[Key]) -> bool:
    """Whether all ranks have the same numbers in the same steps, so that matching by order gives the same."""
    return all(len(own) == len(common) for own in found) and all(
        len({own[key].step for own in found}) == 1 for key in common
    )


def _tabulate(seen: dict[GroupInfo, list[_Seen]]) -> Tables:
    """A rank's collectives as tables, one per order of a step."""
    groups = dict(enumerate(seen))
    placed = [
        (one.step, code, one.place, one._replace(issue=one.issue._replace(group=code)))
        for code, own in enumerate(seen.values()) for one in own
    ]  # fmt: skip
    placed.sort(key=lambda item: item[:3])
    by_order: dict[Order, list[list[_Seen]]] = {}
    for _, items in groupby(placed, key=lambda item: item[0]):
        row = [seen for *_, seen in items]
        by_order.setdefault(tuple(one.issue for one in row), []).append(row)
    return tuple(_make_table(order, rows, groups) for order, rows in by_order.items())


def _make_table(order: Order, rows: Sequence[Sequence[_Seen]], groups: dict[int, GroupInfo]) -> RankCollectives:
    times = np.array([[one.times_ns for one in row] for row in rows], dtype=np.float64)
    return RankCollectives(
        order=order, groups={issue.group: groups[issue.group] for issue in order},
        steps=np.array([row[0].step for row in rows], dtype=np.int64),
        arrival_ns=times[:, :, 0], end_ns=times[:, :, 1], exposed_ns=times[:, :, 2],
    )  # fmt: skip
