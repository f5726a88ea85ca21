"""Ranks with their coordinates, wherever a report names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from distprof.analyze import analyze
from distprof.facts.run import Run
from distprof.facts.stand import RankState
from distprof.render.html.html import render_html
from distprof.render.sections.hangs import describe_hang
from distprof.render.sections.rank_names import describe_common, describe_place, name_several
from distprof.render.sections.sections import show_phases
from distprof.render.sections.verdict import list_what_ifs
from distprof.render.terminal.terminal_tables import fit_table
from distprof.render.wandb.wandb_heat_map import collect_times
from distprof.render.wandb.wandb_summary import make_tables
from distprof.report.report import MeshReport, RankReport, Report
from distprof.report.wait_report import Estimate, WhatIf
from tests.factories import make_run

PLACES = ((0, 0), (0, 1), (1, 0), (1, 1))


def place_ranks(run: Run, axes: tuple[str, ...] = ("pp", "tp"), places: Sequence[tuple[int, ...]] = PLACES) -> Report:
    """A report whose ranks have coordinates."""
    return structs.replace(analyze(run), mesh=MeshReport(axes=axes, coordinates=tuple(places), dimensions=()))


@pytest.fixture(scope="module")
def report() -> Report:
    return place_ranks(make_run(num_ranks=4))


def test_several_ranks_are_named_with_what_they_share(report: Report) -> None:
    assert name_several(report, [2, 3]) == "ranks 2-3 (pp 1)"
    assert name_several(report, [1, 3]) == "ranks 1, 3 (tp 1)"
    assert name_several(report, [3]) == "rank 3 (pp 1, tp 1)"
    assert (describe_common(report, [0, 3]), describe_common(report, [2, 9]), describe_common(report, [])) == ("",) * 3


class CountedRanks(tuple[RankReport, ...]):
    """Ranks that count how often one of them is looked at."""

    looked = 0

    def __getitem__(self, at: Any) -> Any:
        CountedRanks.looked += 1
        return super().__getitem__(at)


def test_a_rank_is_found_among_4096_without_looking_at_each(report: Report) -> None:
    ranks = CountedRanks(structs.replace(report.ranks[0], rank=2 * number) for number in range(4096))
    mesh = MeshReport(axes=("dp",), coordinates=tuple((number,) for number in range(4096)), dimensions=())
    large = structs.replace(report, ranks=ranks, mesh=mesh)
    assert (describe_place(large, 8190), describe_place(large, 8191), describe_place(large, 9000)) == (
        "dp 4095",
        "",
        "",
    )
    assert 0 < CountedRanks.looked < 60


def test_a_hang_is_told_with_coordinates() -> None:
    stand = RankState(source="none", step=12, inside=True, phase="backward", stalled_s=480.0, groups=())
    late = structs.replace(stand, phase="data")
    told = {rank: {"ended": None, "stand": late if rank == 3 else stand} for rank in range(4)}
    sentence = describe_hang(place_ranks(make_run(num_ranks=4, infos=told)))
    assert "ranks 0-2 in step 12, backward" in sentence and "rank 3 (pp 1, tp 1) in step 12, data" in sentence


def test_what_if_names_the_rank_with_its_coordinates(report: Report) -> None:
    saved = Estimate(value=0.1, low=0.1, high=0.1)
    rows = [
        WhatIf(change=change, rank=rank, step_ns=1e6, saved_ratio=saved, tokens_per_s=None, rank_hours_per_day=None,
               assumption="")
        for change, rank in (("rank 3 at normal speed", 3), ("without rank 2's stalls", 2), ("8 ranks", None))
    ]  # fmt: skip
    names = [row[0] for row in list_what_ifs(structs.replace(report, what_if=tuple(rows)))]
    assert names == ["rank 3 (pp 1, tp 1) at normal speed", "without rank 2 (pp 1, tp 0)'s stalls", "8 ranks"]


def test_columns_of_ranks_have_coordinates_in_a_second_line(report: Report) -> None:
    section = show_phases(report, report.steps[0])
    assert [column.head for column in section.by_rank] == [f"rank {2 * pp + tp}\npp {pp}, tp {tp}" for pp, tp in PLACES]
    console = Console(width=100, record=True)
    console.print(fit_table(section, console))
    lines = console.export_text().splitlines()
    assert lines[0].split() == ["rank", "0", "rank", "1", "rank", "2", "rank", "3"]
    assert lines[1].split()[1:5] == ["pp", "0,", "tp", "0"] and all(len(line) <= 100 for line in lines)
    cells = {column.head: column.cells for column in section.columns}
    assert cells["rank"][0] == "0 (pp 0, tp 0)"


def test_the_table_of_steps_has_coordinates() -> None:
    run = make_run(num_ranks=4, num_steps=3)
    placed = place_ranks(run)
    table = make_tables(placed, collect_times(run, placed))["rank_by_step"]
    assert table.columns[:2] == ("rank", "place") and [row[1] for row in table.rows[-2:]] == ["pp 1, tp 1"] * 2


def test_the_name_of_an_axis_is_text_in_the_page() -> None:
    page = render_html(place_ranks(make_run(num_ranks=4), axes=("<b>x</b>", "tp")))
    assert "<b>x" not in page and "&lt;b&gt;x&lt;/b&gt; 0, tp 1" in page
