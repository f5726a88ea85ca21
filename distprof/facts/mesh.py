"""Who is who: the dimensions along which the ranks of a job are grouped, and each rank's coordinates.

A dimension is a set of groups that do not overlap and are of one size. It has the name that the script gave its groups.
Groups without a name make one if they share out all ranks and each of them takes ranks at one distance from the next:
they are named after that, and not after what they might be for.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

Members = tuple[int, ...]
MAX_AXES = 8
"""Named dimensions among which coordinates are looked for."""
_UNNAMED = re.compile(r"|undefined|group|default|default_pg|mesh_dim_\d+|mesh_default|.*:split:.*|\d+")
"""Descriptions that torch gives to groups by itself."""
_MEGATRON = {
    "DATA_PARALLEL_GROUP": "dp", "TENSOR_MODEL_PARALLEL_GROUP": "tp", "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp", "EXPERT_MODEL_PARALLEL_GROUP": "ep",
}  # fmt: skip
_CAPITALS = re.compile(r"[A-Z0-9_]+")


class RankGroup(Struct, frozen=True, kw_only=True):
    """A process group of some of the ranks."""

    name: str
    """As the script described it to torch; empty or "undefined": it did not."""
    ranks: Members
    """Global ranks, by rank within the group."""


class Dimension(Struct, frozen=True, kw_only=True):
    """Groups that do the same for different ranks."""

    name: str
    """"tp", or in words what the groups look like: "2 neighbours"."""
    given: bool
    """Whether the script gave that name."""
    groups: tuple[Members, ...]

    @property
    def size(self) -> int:
        """Ranks of each group."""
        return len(self.groups[0])

    def place_ranks(self) -> dict[int, int]:
        """Each rank's place within its group."""
        return {rank: place for group in self.groups for place, rank in enumerate(group)}


class RankPlace(Struct, frozen=True, kw_only=True):
    """A rank's coordinates."""

    rank: int
    at: Members
    """Its place within its group of each axis."""


class Mesh(Struct, frozen=True, kw_only=True):
    """The coordinates of ranks."""

    axes: tuple[str, ...]
    """Names of the dimensions, from the outermost, whose neighbours are farthest apart."""
    places: tuple[RankPlace, ...]
    """Of the ranks that have coordinates, ascending."""


def list_dimensions(groups: Iterable[RankGroup], world_size: int) -> list[Dimension]:
    """The dimensions that some process groups make; one group alone makes none."""
    families: dict[tuple[str, int, int], dict[Members, None]] = {}
    for group in groups:
        name, ranks = shorten_name(group.name), group.ranks
        distance = 0 if name else measure_distance(ranks)
        if len(ranks) > 1 and (name or distance is not None):
            families.setdefault((name, 0 if name else len(ranks), distance or 0), {})[ranks] = None
    found = []
    for (name, size, distance), family in families.items():
        members = [rank for ranks in family for rank in ranks]
        apart = len(set(members)) == len(members) and len({len(ranks) for ranks in family}) == 1
        if apart and len(family) > 1 and (name or len(members) == world_size):
            shape = f"{size} neighbours" if distance == 1 else f"{size} ranks {distance} apart"
            found.append(Dimension(name=name or shape, given=bool(name), groups=tuple(sorted(family))))
    named = {each.groups for each in found if each.given}
    return [each for each in found if each.given or each.groups not in named]  # torch makes copies of its own


def build_mesh(dimensions: Sequence[Dimension]) -> Mesh | None:
    """The coordinates in the named dimensions that tell most ranks apart, and of those that tell as many, in the most
    dimensions: products of others then have none of their own. None: nothing is named."""
    named = [each for each in dimensions if each.given and not _is_of_several(each.name)][:MAX_AXES]
    best: tuple[int, int] = (0, 0)
    chosen: tuple[Dimension, ...] = ()
    for count in range(1, len(named) + 1):
        for axes in itertools.combinations(named, count):
            rating = (math.prod(axis.size for axis in axes), count)
            room = min(len(axis.groups) * axis.size for axis in axes)
            if best < rating and rating[0] <= room and len(set(_locate(axes).values())) == rating[0]:
                best, chosen = rating, axes
    if not chosen:
        return None
    ordered = sorted(chosen, key=lambda axis: -abs(axis.groups[0][1] - axis.groups[0][0]))
    places = sorted(_locate(ordered).items())
    return Mesh(
        axes=tuple(axis.name for axis in ordered), places=tuple(RankPlace(rank=rank, at=at) for rank, at in places)
    )


def _is_of_several(name: str) -> bool:
    """Whether it is one of Megatron's other groups: parts and products of the dimensions, and copies of them."""
    return _CAPITALS.fullmatch(name) is not None and ("_GROUP_" in name[1:-1] or name[1:].endswith("_GROUP"))


def _locate(axes: Sequence[Dimension]) -> dict[int, Members]:
    """The coordinates of the ranks that all these dimensions have."""
    places: list[Mapping[int, int]] = [axis.place_ranks() for axis in axes]
    common = set(places[0]).intersection(*places[1:])
    return {rank: tuple(place[rank] for place in places) for rank in common}


def shorten_name(described: str) -> str:
    """The name of the dimension that a group's description has; empty: the script gave none."""
    if _UNNAMED.fullmatch(described) is not None:
        return ""
    return _MEGATRON.get(described, described.removeprefix("mesh_"))


def measure_distance(ranks: Sequence[int]) -> int | None:
    """How far apart neighbours in a group are. None: not equally far."""
    distances = {after - before for before, after in itertools.pairwise(ranks)}
    return min(distances) if len(distances) == 1 and min(distances) > 0 else None
