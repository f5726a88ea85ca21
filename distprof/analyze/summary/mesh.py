"""Who is who? Words for process groups, according to the dimension that they belong to, and the ranks' coordinates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from distprof.facts.mesh import Dimension, Members, RankGroup, build_mesh, list_dimensions, shorten_name
from distprof.facts.run import Collectives, Run, name_ranks
from distprof.report.report import DimensionReport, MeshReport

_SHOWN_RANGES = 2
_RECORDED = re.compile(r"(.*) \S+ \((?:ranks|\d+ ranks:) [0-9, .]+\)")
"""The name of a group in a rank's stream: its description, torch's name of it, and its ranks."""


def name_groups(run: Run) -> tuple[Run, MeshReport | None]:
    """The run with its groups named after their dimensions, and these. None: all ranks do the same, as far as known.

    A group of no dimension keeps its name, and so does one whose words another one has already.
    """
    by_ranks: dict[frozenset[int], list[RankGroup]] = {}
    for group in run.meta.groups:
        by_ranks.setdefault(frozenset(group.ranks), []).append(group)
    tables = (*run.collectives, *run.device_collectives)
    whole = {_key(table): _identify(run, table, by_ranks) for table in tables}
    listed = dict.fromkeys([*run.meta.groups, *(group for group in whole.values() if group is not None)])
    dimensions = list_dimensions(listed, run.meta.world_size)
    if not dimensions:
        return run, None
    names = {(each.name if each.given else "", ranks): each.name for each in dimensions for ranks in each.groups}
    words: dict[tuple[str, Members], str] = {}
    taken: set[str] = set()
    for key, member in whole.items():
        name = None if member is None else names.get((shorten_name(member.name), member.ranks))
        if member is not None and name is not None:
            said = f"{name} ({name_ranks(member.ranks, most=_SHOWN_RANGES)})"
            words[key] = key[0] if said in taken else said
            taken.add(said)
    run = replace(
        run, collectives=tuple(_rename(table, words) for table in run.collectives),
        device_collectives=tuple(_rename(table, words) for table in run.device_collectives),
    )  # fmt: skip
    return run, _report(run, dimensions)


def _key(table: Collectives) -> tuple[str, Members]:
    return table.group, tuple(table.ranks.tolist())


def _rename(table: Collectives, words: dict[tuple[str, Members], str]) -> Collectives:
    return replace(table, group=words.get(_key(table), table.group))


def _identify(
    run: Run, table: Collectives, by_ranks: Mapping[frozenset[int], Sequence[RankGroup]]
) -> RankGroup | None:  # fmt: skip
    """The group of a table. None: members without facts are not known."""
    matched = _RECORDED.fullmatch(table.group)
    name = table.group if matched is None else matched[1]
    ranks = tuple(run.ranks[position].rank for position in table.ranks.tolist())
    whole = len(ranks) == table.size
    known = by_ranks.get(frozenset(ranks), []) if whole else _list_larger(run, table.size, ranks)
    same = [group for group in known if shorten_name(group.name) == shorten_name(name)]
    if whole:
        return same[0] if same else RankGroup(name=name, ranks=ranks)
    return same[0] if len(same) == 1 else None


def _list_larger(run: Run, size: int, ranks: Sequence[int]) -> list[RankGroup]:
    """The groups of that size that contain all these ranks."""
    return [group for group in run.meta.groups if len(group.ranks) == size and set(ranks) <= set(group.ranks)]


def _report(run: Run, dimensions: Sequence[Dimension]) -> MeshReport:
    mesh = build_mesh(dimensions)
    places = {} if mesh is None else {place.rank: place.at for place in mesh.places}
    return MeshReport(
        axes=() if mesh is None else mesh.axes,
        coordinates=tuple(places.get(info.rank) for info in run.ranks),
        dimensions=tuple(
            DimensionReport(name=each.name, given=each.given, num_ranks=each.size, num_groups=len(each.groups))
            for each in dimensions
        ),
    )  # fmt: skip
