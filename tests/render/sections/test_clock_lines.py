"""How far the clocks of a job are known, in a line each."""

from __future__ import annotations

import html
import io
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from distprof.analyze import analyze
from distprof.render.html.html import render_html
from distprof.render.sections.coverage import describe_device_clocks
from distprof.render.terminal.terminal import render_terminal
from distprof.report.report import DeviceClockReport, Report
from tests.factories import make_run

US = 10**3
FIRST: dict[str, Any] = {"against": None, "end_gap_ns": None, "agrees": None}
BLANK: dict[str, Any] = {"anchors": 0, "drift_ratio": None, "host_bound_ns": None, "bound_ns": None, **FIRST}
SOME = "by 12 or more readings of each; drift up to 31.0 ppm; ends of common collectives"
CASES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "all is well": ([FIRST, {"bound_ns": 9 * US, "anchors": 15}], f"within 9.0 us of rank 0's host clock {SOME} agree"),
    "one rank": ([FIRST], "within 8.0 us of rank 0's host clock by 12 or more readings of each; drift up to 31.0 ppm"),
    "one reading": ([{**FIRST, "anchors": 1, "drift_ratio": None}],
                    "within 8.0 us of rank 0's host clock by 1 or more readings of each"),
    "ends that disagree": ([FIRST, {}, {"bound_ns": 200 * US, "end_gap_ns": -200 * US, "agrees": False}],
                           f"within 200.0 us of rank 0's host clock {SOME} contradict those of rank 2"),
    "a rank without": ([FIRST, {}, BLANK], f"within 8.0 us of rank 0's host clock {SOME} agree; not known: rank 2"),
    "a host apart": ([FIRST, {}, {**FIRST, "bound_ns": None, "host_bound_ns": 90 * US}],
                     f"within 8.0 us of rank 0's host clock {SOME} agree; not known: rank 2"),
    "no rank 0": (
        [{**FIRST, "bound_ns": None}],
        f"within 7.0 us of the clocks of their own hosts, which were not compared, {SOME.split('; ends')[0]}",
    ),
    "none at all": ([BLANK], ""),
    "on a CPU": ([], ""),
}  # fmt: skip


def make_report(changes: list[dict[str, Any]]) -> Report:
    usual: dict[str, Any] = {
        "anchors": 12, "anchors_left_out": 0, "drift_ratio": -31e-6, "host_bound_ns": 7.0 * US, "bound_ns": 8.0 * US,
        "against": 0, "end_gap_ns": 3.0 * US, "agrees": True,
    }  # fmt: skip
    clocks = tuple(DeviceClockReport(rank=rank, **{**usual, **change}) for rank, change in enumerate(changes))
    return structs.replace(analyze(make_run(num_ranks=max(len(changes), 1))), device_clocks=clocks)


@pytest.mark.parametrize(("changes", "line"), CASES.values(), ids=CASES)
def test_the_devices_clocks_are_one_line(changes: list[dict[str, Any]], line: str) -> None:
    report = make_report(changes)
    assert describe_device_clocks(report) == line
    console = Console(width=250, file=io.StringIO(), color_system=None)
    render_terminal(report, console)
    assert isinstance(console.file, io.StringIO)
    for shown in (console.file.getvalue(), html.unescape(render_html(report))):
        assert line in shown and ("devices' clocks" in shown) == bool(line)
