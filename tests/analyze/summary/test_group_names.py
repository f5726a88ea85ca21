"""The names of groups in a report, and the ranks' coordinates in its words."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.summary.mesh import name_groups
from distprof.facts.mesh import RankGroup
from distprof.facts.run import CollectiveKind, Run
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.sections import list_rank_sections, show_bandwidths
from distprof.render.sections.verdict import list_waits
from distprof.render.wandb.wandb_summary import make_table as make_wandb_table
from tests.analyze.device_tables import make_device_run, make_table

REDUCE = CollectiveKind.ALL_REDUCE
DP, TP = ((0, 2), (1, 3)), ((0, 1), (2, 3))


def make_job(dp: str = "mesh_dp", tp: str = "mesh_tp", *, more: str = "") -> Run:
    """Four ranks in two groups of each dimension, whose collectives are named as ranks record them."""
    return make_device_run(
        *(
            make_table(1e6, kinds=(REDUCE,), sizes=(2**20,), ranks=ranks, seed=ranks[1],
                       group=f"{name} {ranks[1]}{more} (ranks {ranks[0]}, {ranks[1]})")
            for name, family in ((dp, DP), (tp, TP)) for ranks in family
        ),
        num_ranks=4,
    )  # fmt: skip


def test_groups_and_ranks_have_the_names_of_the_mesh() -> None:
    report = analyze(make_job())
    assert {item.group for item in report.waits} == {
        "dp (ranks 0, 2)", "dp (ranks 1, 3)", "tp (ranks 0-1)", "tp (ranks 2-3)",
    }  # fmt: skip
    assert report.mesh is not None and report.mesh.axes == ("dp", "tp")
    assert name_rank(report, 3) == "rank 3 (dp 1, tp 1)"
    assert [row[:2] for row in list_waits(report)] == [
        ["dp: all_reduce in backward", "dp, 2 groups"], ["tp: all_reduce in backward", "tp, 2 groups"],
    ]  # fmt: skip
    assert show_bandwidths(report).columns[2].cells == ("dp, 2 groups", "tp, 2 groups")
    place = next(column for column in list_rank_sections(report)[0].columns if column.head == "place")
    assert place.cells == ("dp 0, tp 0", "dp 0, tp 1", "dp 1, tp 0", "dp 1, tp 1")
    table = make_wandb_table(report)
    assert table.columns[:2] == ("rank", "place") and table.rows[1][:2] == [1, "dp 0, tp 1"]


def test_groups_without_names_are_named_neutrally_and_ranks_not_at_all() -> None:
    report = analyze(make_job("group", "group"))
    assert {row[0] for row in list_waits(report)} == {
        "2 ranks 2 apart: all_reduce in backward", "2 neighbours: all_reduce in backward",
    }  # fmt: skip
    assert name_rank(report, 3) == "rank 3"
    assert "place" not in [column.head for column in list_rank_sections(report)[0].columns]


def test_a_rank_that_is_missing_does_not_hide_the_name_of_its_group() -> None:
    run = make_job()
    groups = tuple(
        RankGroup(name=name, ranks=ranks) for name, family in (("mesh_dp", DP), ("mesh_tp", TP)) for ranks in family
    )
    tables = tuple(
        structs.replace(table, ranks=table.ranks[:1]) if table.group.startswith("mesh_dp 3") else table
        for table in run.device_collectives
    )
    run = structs.replace(run, device_collectives=tables, meta=structs.replace(run.meta, groups=groups))
    named, _ = name_groups(run)
    assert "dp (ranks 1, 3)" in {table.group for table in named.device_collectives}


def test_two_groups_of_the_same_ranks_and_name_stay_apart() -> None:
    first, second = make_job(), make_job(more="0")
    both = structs.replace(first, device_collectives=(*first.device_collectives, *second.device_collectives))
    named, _ = name_groups(both)
    assert len({table.group for table in named.device_collectives}) == 8


def test_a_job_of_one_dimension_stays_as_it_is() -> None:
    run = make_device_run(
        make_table(1e6, kinds=(REDUCE,), sizes=(2**20,), ranks=range(4)),
        make_table(1e6, kinds=(REDUCE,), sizes=(8,), ranks=(0, 1), group="group 1 (ranks 0, 1)"),
        num_ranks=4,
    )
    same, mesh = name_groups(run)
    assert same is run and mesh is None
    assert np.all([name_rank(analyze(run), rank) == f"rank {rank}" for rank in range(4)])
