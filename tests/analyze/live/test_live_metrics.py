"""LiveMetrics of scalars, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.analyze.live.live_metrics import LiveMetrics, make_points
from distprof.facts.run import COLUMN, Run
from distprof.render.wandb.wandb_summary import make_summary
from tests.factories import MS, USUAL_NS, make_run
from tests.wandb_file import read_details


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
    assert [point["comm/exposed_host_ratio"] for point in make_points(run.rows, run.meta, [])] == pytest.approx(
        [summary] * 4, rel=1e-5
    )


def test_a_rank_without_phases_is_in_neither() -> None:
    run = make_uneven_run()
    run.rows[1, :, COLUMN["all_reduce_host_ns"]] = np.nan
    summary = make_summary(analyze(run))["summary/exposed_ratio"]
    assert summary == pytest.approx(10 / 500)
    assert [point["comm/exposed_host_ratio"] for point in make_points(run.rows, run.meta, [])] == pytest.approx(
        [summary] * 4, rel=1e-5
    )


def test_the_live_charts_and_the_summary_define_flops_and_mfu_alike() -> None:
    run = make_uneven_run()
    facts = make_summary(analyze(run))
    peaks = [info.peak.flops_per_s for info in run.ranks]
    for point in make_points(run.rows, run.meta, peaks):
        assert point["flops/mfu_ratio"] == pytest.approx(facts["summary/mfu_ratio"], rel=1e-5)
    (point, *_) = make_points(run.rows[:1], run.meta, peaks[:1])
    assert point["flops/achieved_per_device"] == pytest.approx(analyze(run).ranks[0].achieved_flops_per_s, rel=1e-5)


def test_details_come_every_few_steps_and_at_the_end_and_replace_nothing() -> None:
    """Forward takes 1 ms in step 0, 2 in step 1 and so on; the mean of the first 100 steps is 50.5."""
    times = {**USUAL_NS, "forward": np.arange(1, 121)[None] * MS}
    run = make_run(num_steps=120, host_ns=times)
    points = LiveMetrics(run.meta, run.ranks)
    told = [point for first in range(0, 120, 40) for point in points.add(run.rows[:, first : first + 40])]
    assert [point["phase/forward/host_ms"] for point in told] == list(range(1, 121))
    assert [point["step"] for point in told if "phase/forward/host_ms_max" in point] == [99]
    assert told[99]["phase/forward/host_ms_max"] == 50.5
    end = points.end()
    assert (end["step"], end["phase/forward/host_ms_max"]) == (119, 110.5)
    assert "phase/forward/host_ms" not in end and "comm/exposed_host_ratio" not in end
    assert points.end() == {}


def test_the_steps_of_a_window_and_the_one_that_counts_operations_are_in_no_chart() -> None:
    """Steps 10 to 19 take ten times as long, and the first of them, which counts, longer still."""
    steps = np.arange(120)
    inside = (steps >= 10) & (steps < 20)
    forward_ms = np.where(inside, np.where(steps == 10, 9000, 500), 50 + steps)
    run = make_run(
        num_steps=120, num_warmup=0, host_ns={"forward": forward_ms[None] * MS}, columns={"window": inside[None]}
    )
    points = LiveMetrics(run.meta, run.ranks)
    told = [point for first in range(0, 120, 40) for point in points.add(run.rows[:, first : first + 40])]
    assert [point["step"] for point in told] == steps[~inside].tolist()
    for name in ("step/time_ms", "phase/forward/host_ms"):
        assert [point[name] for point in told] == forward_ms[~inside].tolist(), name
    (details,) = [point for point in told if "phase/forward/host_ms_max" in point]
    usual_ms = forward_ms[~inside]
    assert (details["step"], details["phase/forward/host_ms_max"]) == (109, float(usual_ms[:100].mean()))
    assert points.end()["phase/forward/host_ms_max"] == float(usual_ms[100:].mean())
    assert points.add(run.rows[:, inside]) == []


def test_what_some_steps_lack_is_the_mean_of_the_others() -> None:
    """Before the first step of a job there is no time between steps."""
    run = make_run(columns={"checkpoint_host_ns": np.array([[np.nan, 4 * MS, 8 * MS, 0]])})
    assert read_details(run.rows)["between/checkpoint_host_ms"] == 4
    rows = make_run(columns={"shadow": np.array([[1, 0, 0, 0]]), "checkpoint_host_ns": [[9e9, 4e6, 8e6, 0]]}).rows
    assert read_details(rows)["between/checkpoint_host_ms"] == 4
    assert read_details(rows[:, :1])["between/checkpoint_host_ms"] == 9000


def test_memory_is_that_of_the_last_step() -> None:
    details = read_details(make_run(columns={"memory_peak_bytes": [[1e9, 2e9, 2e9, 5e9], [1e9, 1e9, 1e9, 3e9]]}).rows)
    assert details["memory/peak_bytes_max"] == 5e9


@pytest.mark.parametrize(("delay_ms", "named"), [(0, False), (4, False), (20, True)])
def test_the_summary_names_a_busiest_rank_only_if_one_stands_out(delay_ms: float, named: bool) -> None:
    late = np.arange(4)[:, None] == 2
    times = {**USUAL_NS, "data": (10 + late * delay_ms) * MS, "all_reduce": (15 + ~late * delay_ms) * MS}
    facts = make_summary(analyze(make_run(num_ranks=4, host_ns=times)))
    told = {name: value for name, value in facts.items() if name.startswith("summary/busiest")}
    for point in make_points(make_run(num_ranks=4, host_ns=times).rows, make_run().meta, []):  # in each step alike
        assert point["straggler/excess_ms"] == delay_ms
    assert told == ({"summary/busiest_rank": 2, "summary/busiest_phase": "data"} if named else {})
