"""Points of scalars, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.facts.run import COLUMN, Run
from distprof.render.wandb_scalars import make_points
from distprof.render.wandb_summary import make_summary
from tests.factories import MS, USUAL_NS, make_run


def test_waits_inside_phases_are_exposed_communication() -> None:
    """Of a step of 100 ms, 15 are all_reduce, and 5 of grad_norm's and forward's a wait in there."""
    run = make_run(columns={"grad_norm_wait_host_ns": 2 * MS, "forward_wait_host_ns": 3 * MS})
    points = make_points(run.rows, run.meta, [])
    assert [point["comm/exposed_host_ratio"] for point in points] == pytest.approx([0.2] * 4)
    (without, *_) = make_points(make_run().rows, run.meta, [])
    assert without["comm/exposed_host_ratio"] == pytest.approx(0.15)


def make_uneven_run() -> Run:
    """Steps of 100, 180 and 400 ms, of which the ranks wait 10, 120 and 0 ms."""
    times = {"forward": np.array([[90], [80], [400]]) * MS, "all_reduce": np.array([[10], [100], [0]]) * MS}
    return make_run(num_ranks=3, host_ns=times, columns={"forward_wait_host_ns": np.array([[0], [20], [0]]) * MS})


def test_the_live_chart_and_the_summary_define_exposed_alike() -> None:
    run = make_uneven_run()
    summary = make_summary(analyze(run))["summary/exposed_ratio"]
    assert summary == pytest.approx(130 / 680)
    assert [point["comm/exposed_host_ratio"] for point in make_points(run.rows, run.meta, [])] == [summary] * 4


def test_a_rank_without_phases_is_in_neither() -> None:
    run = make_uneven_run()
    run.rows[1, :, COLUMN["all_reduce_host_ns"]] = np.nan
    summary = make_summary(analyze(run))["summary/exposed_ratio"]
    assert summary == pytest.approx(10 / 500)
    assert [point["comm/exposed_host_ratio"] for point in make_points(run.rows, run.meta, [])] == [summary] * 4


@pytest.mark.parametrize(("delay_ms", "named"), [(0, False), (4, False), (20, True)])
def test_the_summary_names_a_busiest_rank_only_if_one_stands_out(delay_ms: float, named: bool) -> None:
    late = np.arange(4)[:, None] == 2
    times = {**USUAL_NS, "data": (10 + late * delay_ms) * MS, "all_reduce": (15 + ~late * delay_ms) * MS}
    facts = make_summary(analyze(make_run(num_ranks=4, host_ns=times)))
    told = {name: value for name, value in facts.items() if name.startswith("summary/busiest")}
    assert told == ({"summary/busiest_rank": 2, "summary/busiest_phase": "data"} if named else {})
