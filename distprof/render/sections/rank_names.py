"""Ranks and process groups by name: a rank with its coordinates, where the job has a mesh."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from distprof.facts.run import name_ranks
from distprof.render.units import clean_text
from distprof.report.operations_report import PipelineCause, PipelineCauseKind
from distprof.report.report import Report

GROUP_LIMIT, MESH_GROUP_LIMIT = 24, 36
_AXIS_LIMIT = 16


def name_rank(report: Report, rank: int | None) -> str:
    """``rank 5 (dp 1, tp 0)``; without a mesh ``rank 5``."""
    place = describe_place(report, rank)
    return f"rank {rank} ({place})" if place else f"rank {rank}"


def describe_place(report: Report, rank: int | None) -> str:
    """``dp 1, tp 0``; empty: the rank has no coordinates."""
    return "" if rank is None else describe_common(report, [rank])


def describe_common(report: Report, ranks: Sequence[int]) -> str:
    """The coordinates that all these ranks share: ``dp 1``. Empty: they share none, or some have none."""
    if report.mesh is None or not ranks:
        return ""
    places = [_find(report, rank) for rank in ranks]
    return ", ".join(
        f"{clean_text(axis, _AXIS_LIMIT)} {min(at)}"
        for axis, *at in zip(report.mesh.axes, *(place for place in places if place is not None), strict=True)
        if len(at) == len(places) and len({*at}) == 1
    )


def name_several(report: Report, ranks: Sequence[int], *, most: int | None = None) -> str:
    """``ranks 4-7 (pp 1)``: `name_ranks` with what they share."""
    named, place = name_ranks(ranks, most=most), describe_common(report, ranks)
    return f"{named} ({place})" if place else named


def _find(report: Report, rank: int) -> tuple[int, ...] | None:
    """A rank's coordinates; ranks ascend."""
    position = bisect_left(report.ranks, rank, key=lambda each: each.rank)
    if report.mesh is None or position == len(report.ranks) or report.ranks[position].rank != rank:
        return None
    return report.mesh.coordinates[position]


def list_rank_heads(report: Report) -> list[str]:
    """The heads of a column per rank: its name, and its coordinates in a second line."""
    return [f"rank {each.rank}\n{describe_place(report, each.rank)}".rstrip() for each in report.ranks]


def read_dimension(report: Report, group: str) -> str:
    """The dimension in a group's name; empty: it is of none."""
    name = group.rpartition(" (")[0]
    known = () if report.mesh is None else report.mesh.dimensions
    return name if any(each.name == name for each in known) else ""


def name_groups(report: Report, groups: Sequence[str]) -> str:
    """One group by name, or of several of one dimension their number: ``tp, 512 groups``."""
    if len(groups) == 1:
        return clean_text(groups[0], GROUP_LIMIT if report.mesh is None else MESH_GROUP_LIMIT)
    name = read_dimension(report, groups[0])
    return f"{clean_text(name, GROUP_LIMIT)}, {len(groups):,} groups" if name else f"{len(groups):,} groups"


def describe_pipeline_place(cause: PipelineCause) -> str:
    """Where in the pipeline it is; empty: all over."""
    replica = [] if cause.replica is None else [f"dp {cause.replica}"]
    if cause.stage is None:
        return ", ".join(replica)
    stage = f"stage {cause.stage}" if cause.kind is not PipelineCauseKind.SLOW_LINK else f"after stage {cause.stage}"
    return ", ".join([*replica, stage])
