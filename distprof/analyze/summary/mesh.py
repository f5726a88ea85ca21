"""Who is who? Words for process groups, according to the dimension that they belong to, and the ranks' coordinates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

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
    tables = (*run.collectives, *run.device_collectives)
    whole = {key: _identify(run, table) for table in tables if (key := _key(table))}
    listed = dict.fromkeys([*run.meta.groups, *(group for group in whole.values() if group is not None)])
    dimensions = list_dimensions(listed, run.meta.world_size)
    if not dimensions:
        return run, None
    words: dict[tuple[str, Members], str] = {}
    for key, group in whole.items():
        dimension = None if group is None else _look_up(dimensions, group)
        if group is not None and dimension is not None:
            said = f"{dimension.name} ({name_ranks(group.ranks, most=_SHOWN_RANGES)})"
            words[key] = key[0] if said in words.values() else said
    run = replace(
        run, collectives=tuple(_rename(table, words) for table in run.collectives),
        device_collectives=tuple(_rename(table, words) for table in run.device_collectives),
    )  # fmt: skip
    return run, _report(run, dimensions)


def _key(table: Collectives) -> tuple[str, Members]:
    return table.group, tuple(table.ranks.tolist())


def _rename(table: Collectives, words: dict[tuple[str, Members], str]) -> Collectives:
    return replace(table, group=words.get(_key(table), table.group))


def _identify(run: Run, table: Collectives) -> RankGroup | None:
    """The group of a table. None: members without facts are not known."""
    matched = _RECORDED.fullmatch(table.group)
    name = table.group if matched is None else matched[1]
    ranks = tuple(run.ranks[position].rank for position in table.ranks.tolist())
    if len(ranks) == table.size:
        known = (group for group in run.meta.groups if set(group.ranks) == set(ranks))
        same = next((group for group in known if shorten_name(group.name) == shorten_name(name)), None)
        return same or RankGroup(name=name, ranks=ranks)
    fits = [
        group for group in run.meta.groups
        if len(group.ranks) == table.size and {*ranks} <= {*group.ranks}
        and shorten_name(group.name) == shorten_name(name)
    ]  # fmt: skip
    return fits[0] if len(fits) == 1 else None


def _look_up(dimensions: Sequence[Dimension], group: RankGroup) -> Dimension | None:
    name = shorten_name(group.name)
    own = (each for each in dimensions if group.ranks in each.groups)
    return next((each for each in own if (each.name == name if name else not each.given)), None)


def _report(run: Run, dimensions: Sequence[Dimension]) -> MeshReport:
    mesh = build_mesh(dimensions)
    places = {} if mesh is None else dict(zip(mesh.ranks, mesh.coordinates, strict=True))
    return MeshReport(
        axes=() if mesh is None else mesh.axes,
        coordinates=tuple(places.get(info.rank) for info in run.ranks),
        dimensions=tuple(
            DimensionReport(name=each.name, given=each.given, num_ranks=each.size, num_groups=len(each.groups))
            for each in dimensions
        ),
    )  # fmt: skip
