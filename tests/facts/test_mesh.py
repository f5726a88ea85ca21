"""Dimensions from process groups, and coordinates from dimensions; the expected ones are worked out by hand."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from distprof.facts.mesh import Mesh, RankGroup, build_mesh, list_dimensions, measure_distance, shorten_name


def make_groups(sizes: Sequence[int], names: Sequence[str]) -> list[RankGroup]:
    """The groups of every axis of a mesh whose last axis has ranks next to each other; an empty name: none given."""
    places = list(itertools.product(*map(range, sizes)))
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for rank, place in enumerate(places):
        for axis, name in enumerate(names):
            others = (*place[:axis], -1, *place[axis + 1 :])
            groups.setdefault((f"{axis} {name}", others), []).append(rank)
    return [RankGroup(name=key.partition(" ")[2], ranks=tuple(ranks)) for (key, _), ranks in groups.items()]


def build(groups: Sequence[RankGroup], world_size: int) -> Mesh | None:
    return build_mesh(list_dimensions(groups, world_size))


def test_two_by_two() -> None:
    groups = [
        RankGroup(name="mesh_dp", ranks=(0, 2)), RankGroup(name="mesh_dp", ranks=(1, 3)),
        RankGroup(name="mesh_tp", ranks=(0, 1)), RankGroup(name="mesh_tp", ranks=(2, 3)),
    ]  # fmt: skip
    assert [(each.name, each.size, each.given) for each in list_dimensions(groups, 4)] == [
        ("dp", 2, True), ("tp", 2, True),
    ]  # fmt: skip
    mesh = build(groups, 4)
    assert mesh is not None and mesh.axes == ("dp", "tp")
    assert [(place.rank, place.at) for place in mesh.places] == [(0, (0, 0)), (1, (0, 1)), (2, (1, 0)), (3, (1, 1))]


def test_any_mesh_gives_back_the_coordinates_that_it_was_made_of() -> None:
    draw = random.Random(5)
    for _ in range(60):
        sizes = [draw.choice((2, 3, 4)) for _ in range(draw.randint(2, 3))]
        names = ["mesh_pp", "mesh_dp", "mesh_tp"][: len(sizes)]
        groups = make_groups(sizes, names)
        draw.shuffle(groups)
        mesh = build(groups, math.prod(sizes))
        assert mesh is not None and mesh.axes == tuple(name[5:] for name in names)
        assert [place.at for place in mesh.places] == list(itertools.product(*map(range, sizes)))


def test_megatrons_groups_are_known_and_products_of_them_are_no_axes() -> None:
    names = ("PIPELINE_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP", "TENSOR_MODEL_PARALLEL_GROUP")
    groups = make_groups((2, 2, 2), names)
    groups += [
        RankGroup(name="MODEL_PARALLEL_GROUP", ranks=(0, 1, 4, 5)),
        RankGroup(name="MODEL_PARALLEL_GROUP", ranks=(2, 3, 6, 7)),
        *(RankGroup(name="DATA_PARALLEL_GROUP_GLOO", ranks=each.ranks) for each in groups if each.name == names[1]),
    ]
    mesh = build(groups, 8)
    assert mesh is not None and mesh.axes == ("pp", "dp", "tp") and mesh.places[5].at == (1, 0, 1)


def test_a_flattened_dimension_has_no_coordinate_beside_its_parts() -> None:
    groups = make_groups((2, 2, 2), ("mesh_replicate", "mesh_shard", "mesh_tp"))
    groups += [RankGroup(name="mesh_dp", ranks=(0, 2, 4, 6)), RankGroup(name="mesh_dp", ranks=(1, 3, 5, 7))]
    mesh = build(groups, 8)
    assert mesh is not None and mesh.axes == ("replicate", "shard", "tp")


def test_a_dimension_inside_another_one_does_not_stand_in_its_place() -> None:
    groups = make_groups((4, 2), ("mesh_dp", "mesh_tp"))
    groups += [RankGroup(name="mesh_ep", ranks=ranks) for ranks in ((0, 2), (1, 3), (4, 6), (5, 7))]
    mesh = build(groups, 8)
    assert mesh is not None and mesh.axes == ("dp", "tp")


def test_groups_without_a_name_are_told_by_how_their_ranks_lie() -> None:
    groups = make_groups((2, 4), ("", "undefined"))
    assert [(each.name, each.given, each.size) for each in list_dimensions(groups, 8)] == [
        ("2 ranks 4 apart", False, 2), ("4 neighbours", False, 4),
    ]  # fmt: skip
    assert build(groups, 8) is None


@pytest.mark.parametrize(
    ("groups", "world_size"),
    [
        ([("", (0, 1))], 4),  # the others are in no such group
        ([("", (0, 1)), ("", (1, 2)), ("", (2, 3))], 4),  # they overlap
        ([("", (0, 3)), ("", (1, 2))], 4),  # not equally far apart
        ([("mesh_dp", (0, 1, 2, 3))], 4),  # one dimension
        ([("mesh_dp", (0, 1, 2))], 4),  # and one of some of the ranks
        ([("mesh_dp", (0, 1)), ("mesh_dp", (2, 3, 4))], 5),
        ([("mesh_dp", (0, 1)), ("mesh_dp", (0, 2))], 4),
    ],
)
def test_what_makes_no_dimension(groups: list[tuple[str, tuple[int, ...]]], world_size: int) -> None:
    assert list_dimensions([RankGroup(name=name, ranks=ranks) for name, ranks in groups], world_size) == []


def test_names_that_torch_gives_by_itself_are_none() -> None:
    torchs = ("", "undefined", "default_pg", "mesh_dim_0", "mesh_default", "mesh_dp:split:1", "7")
    assert [shorten_name(name) for name in torchs] == [""] * len(torchs)
    assert [shorten_name(name) for name in ("mesh_dp_shard", "experts")] == ["dp_shard", "experts"]
    assert [measure_distance(ranks) for ranks in ((0, 1), (3, 7, 11), (0, 1, 3), (2, 0))] == [1, 4, None, None]


def test_copies_without_a_name_are_no_further_dimension() -> None:
    groups = make_groups((2, 2), ("mesh_dp", "mesh_tp"))
    copies = [RankGroup(name="", ranks=group.ranks) for group in groups if group.name == "mesh_tp"]
    assert [each.name for each in list_dimensions([*groups, *copies], 4)] == ["dp", "tp"]
