"""The table of bandwidths on the terminal and the page: one row for groups of one shape, at any width."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from distprof.analyze import analyze
from distprof.facts.run import CollectiveKind
from distprof.render.html.html import render_html
from distprof.render.sections.sections import show_bandwidths
from distprof.render.terminal.terminal import render_terminal
from distprof.report.report import Report
from tests.analyze.device_tables import make_device_run, make_table
from tests.factories import make_run

REDUCE, OTHER = CollectiveKind.ALL_REDUCE, CollectiveKind.OTHER
PAIRS = [(0, 4), (1, 5), (2, 6), (3, 7)]
REPORT = analyze(
    make_device_run(
        make_table(10e6, kinds=(REDUCE, OTHER), sizes=(2**28, 4), ranks=range(8), group="data parallel"),
        *(
            make_table(took_ns, kinds=(REDUCE,), sizes=(2**20,), ranks=ranks, group=f"replicate {ranks[0]}")
            for ranks, took_ns in zip(PAIRS, (1e5, 1e5, 4e5, 1e5), strict=True)
        ),
        num_ranks=8, ranks_per_host=4,
    )
)  # fmt: skip


def print_report(report: Report, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    render_terminal(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_groups_of_one_shape_share_a_row_that_names_the_slowest() -> None:
    columns = show_bandwidths(REPORT).columns
    assert [column.cells for column in columns] == [
        ("all_reduce", "other", "all_reduce"), ("256.0 MiB", "4 B", "1.0 MiB"),
        ("data parallel", "data parallel", "4 groups"), ("8", "8", "2"), ("10", "0", "40"),
        ("10.0 ms", "n/a", "100.0 us"), ("26.84 GB/s", "n/a", "10.49 GB/s"), ("46.98 GB/s", "n/a", "10.49 GB/s"),
        ("", "", "replicate 2: 2.62 GB/s"),
    ]  # fmt: skip
    first = analyze(make_device_run(make_table(1e6, kinds=(REDUCE,), sizes=(8,))))
    assert "slowest group" not in [column.head for column in show_bandwidths(first).columns]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_table_fits_and_keeps_what_counts(width: int) -> None:
    text = print_report(REPORT, width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "bus bandwidth" in text and "46.98 GB/s" in text and "replicate 2: 2.62 GB/s" in text


def test_both_renderers_show_it_only_where_something_was_timed_on_a_device() -> None:
    assert "replicate 2: 2.62 GB/s" in render_html(REPORT)
    live = analyze(make_run())
    assert "bandwidth:" not in print_report(live, 80) + render_html(live)
