"""What recording costs, in words; and shadow steps where points of many steps are made."""

from __future__ import annotations

import io

import numpy as np
import pytest
from msgspec import structs
from rich.console import Console

from distprof.analyze import analyze
from distprof.analyze.live.live_metrics import make_points
from distprof.facts.run import Phase
from distprof.render.html.html import render_html
from distprof.render.sections.coverage import describe_overhead
from distprof.render.terminal.terminal import render_terminal
from distprof.report.wait_report import OverheadReport
from tests.factories import MS, make_run

COST = OverheadReport(clock="host", ratio=0.004, low_ratio=-0.002, high_ratio=0.011, shadow_steps=12)
SAID = "costs 0.4 % of a recorded step (0 % to 1.1 %, 12 shadow steps)"


def test_the_cost_stands_with_its_interval() -> None:
    assert describe_overhead(COST) == SAID
    device = structs.replace(COST, clock="device")
    assert describe_overhead(device) == SAID.replace("12 shadow steps", "12 shadow steps, device clock")
    assert describe_overhead(None).startswith("n/a")


def test_no_cost_is_below_nothing() -> None:
    """What noise makes negative is 0, and the interval goes on from there."""
    noise = structs.replace(COST, ratio=-0.003, low_ratio=-0.02)
    assert describe_overhead(noise) == "costs 0 % of a recorded step (0 % to 1.1 %, 12 shadow steps)"
    slower = structs.replace(COST, ratio=-0.03, low_ratio=-0.04, high_ratio=-0.01)
    assert describe_overhead(slower) == "costs nothing measurable (12 shadow steps)"


def test_every_report_says_it() -> None:
    run = make_run()
    report = structs.replace(analyze(run), overhead=COST)
    file = io.StringIO()
    render_terminal(report, Console(file=file, width=120))
    assert f"recording      {SAID}" in file.getvalue()
    assert f"recording: {SAID}" in render_html(report)


@pytest.mark.parametrize("num_steps", [3, 80], ids=["one by one", "as one point"])
def test_shadow_steps_take_no_phases_from_the_points_of_others(num_steps: int) -> None:
    shadow = (np.arange(num_steps) % 20 == 2).astype(float)
    forward_ns = np.where(shadow == 1, np.nan, 20.0 * MS)
    run = make_run(num_steps=num_steps, num_warmup=0, columns={"shadow": shadow, "forward_host_ns": forward_ns})
    assert np.isnan(run.column(f"{Phase.FORWARD}_host_ns")).any()
    points = make_points(run.rows, run.meta, [None, None])
    with_phases = [point for point in points if "phase/forward/host_ms" in point]
    assert len(points) == (3 if num_steps == 3 else 1) and len(with_phases) == (2 if num_steps == 3 else 1)
    assert all(point["phase/forward/host_ms"] == 20 for point in with_phases)
    assert all("step/loss" in point and "step/time_ms" in point for point in points)
