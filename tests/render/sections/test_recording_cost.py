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

COST = OverheadReport(clock="host", ratio=0.009, low_ratio=0.004, high_ratio=0.013, shadow_steps=12)
SAID = "costs 0.9 % of a recorded step (0.4 % to 1.3 %, 12 shadow steps)"


def test_the_cost_stands_with_its_interval() -> None:
    assert describe_overhead(COST) == SAID
    device = structs.replace(COST, clock="device")
    assert describe_overhead(device) == SAID.replace("12 shadow steps", "12 shadow steps, device clock")
    assert describe_overhead(None).startswith("n/a")


@pytest.mark.parametrize("ratio", [-0.003, 0.009])
def test_what_noise_may_be_all_of_is_told_by_how_much_it_is_at_most(ratio: float) -> None:
    noise = structs.replace(COST, ratio=ratio, low_ratio=-0.02)
    said = "costs at most 1.3 % of a recorded step, by 12 shadow steps, which cannot tell it from nothing"
    assert describe_overhead(noise) == said
    vague = structs.replace(noise, high_ratio=0.84)
    assert (
        describe_overhead(vague) == "unclear: 12 shadow steps allow anything from nothing to 84.0 % of a recorded step"
    )
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
