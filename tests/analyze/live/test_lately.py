"""Whom a running job's last steps name, on recorded jobs: nobody where the report names nobody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.analyze.live import lately
from distprof.analyze.live.lately import LatestSteps
from distprof.analyze.live.live_metrics import LiveMetrics
from distprof.analyze.stats.measured_steps import sum_exposed
from distprof.analyze.summary.headline import pick_busiest
from distprof.facts.run import COLUMN, Clock, Run
from distprof.profiler.metrics.metrics import Metrics
from tests.factories import MS, USUAL_NS, make_run

RECORDED = Path(__file__).parents[2] / "data" / "four_ranks.npz"


def read_job(name: str) -> Run:
    with np.load(RECORDED) as found:
        columns = dict(zip(found["names"].tolist(), found[name], strict=True))
    return make_run(num_ranks=4, num_steps=43, columns=columns)


def tell_both(run: Run, steps: int) -> tuple[list[float | None], list[bool]]:
    """The rank in each point of the charts, and after every few steps whether there is one in the metrics."""
    points, metrics = LiveMetrics(run.meta, run.ranks), Metrics(run.meta, run.ranks)
    charted, served = list[float | None](), list[bool]()
    for first in range(0, run.rows.shape[1], steps):
        rows = run.rows[:, first : first + steps]
        charted += [point.get("straggler/rank") for point in points.add(rows)]
        metrics.add(rows)
        served.append("\ndistprof_straggler_rank 2.0\n" in metrics.render())
        assert served[-1] or "straggler_rank" not in metrics.render()
    return charted, served


@pytest.mark.parametrize("steps", [1, 6, 43])
def test_nobody_is_named_where_the_report_names_nobody(steps: int) -> None:
    """The rank with the most own time exceeds the others by 5 % of nearly every single step: another one by turns."""
    run = read_job("quiet")
    own_ns = run.step_ns(Clock.HOST) - sum_exposed(run.rows, Clock.HOST)
    stands_out = [pick_busiest(own_ns[:, step], run.step_ns(Clock.HOST)[:, step].mean())[2] for step in range(43)]
    assert analyze(run).verdict.rank is None and sum(stands_out) > 30
    charted, served = tell_both(run, steps)
    assert set(charted) == {None} and not any(served)


def test_a_rank_that_the_report_names_is_named_as_soon_as_there_are_steps_enough() -> None:
    run = read_job("late")
    assert analyze(run).verdict.rank == 2
    charted, served = tell_both(run, 6)
    assert charted == [None] * 18 + [2.0] * 25 and served == [False] * 3 + [True] * 5


def test_it_is_judged_seldom_and_on_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 100 ms, ten at a time: at 30, 60 and 120, and then after every 20 s of steps."""
    judged = list[tuple[int, int]]()

    def judge(run: Run) -> None:
        judged.append((int(run.rows[0, -1, COLUMN["step"]]) + 1, run.rows.shape[1]))

    monkeypatch.setattr(lately, "_name_rank", judge)
    run = make_run(num_ranks=2, num_steps=900, host_ns=USUAL_NS)
    latest = LatestSteps(run.meta, run.ranks)
    for first in range(0, 900, 10):
        latest.add(run.rows[:, first : first + 10])
    assert judged == [(30, 30), (60, 60), (120, 100), (240, 100), (440, 100), (640, 100), (840, 100)]
    many = make_run(num_ranks=300, num_steps=60, host_ns={"forward": 2e3 * MS})
    latest = LatestSteps(many.meta, many.ranks)
    latest.add(many.rows)
    assert judged[-1] == (60, 27)


def test_one_rank_or_ranks_that_are_not_known_are_never_named() -> None:
    run = make_run(num_ranks=1, num_steps=60)
    for ranks in (run.ranks, ()):
        latest = LatestSteps(run.meta, ranks)
        latest.add(run.rows)
        assert latest.rank is None
