"""Single steps far beyond the rest."""

from __future__ import annotations

import numpy as np

from distprof.analyze import analyze
from distprof.report import Report
from tests.factories import MS, USUAL_NS, make_run


def make_stalled(*steps: int, num_steps: int = 41) -> Report:
    """Rank 2 collects garbage for 500 ms in ``backward`` of these steps, and the others wait."""
    late = np.zeros((4, num_steps))
    late[2, list(steps)] = 500 * MS
    waits = np.where(np.arange(4)[:, None] == 2, 0, late[2])
    times = {**USUAL_NS, "backward": 40 * MS + late, "all_reduce": 15 * MS + waits}
    return analyze(make_run(num_ranks=4, num_steps=num_steps, host_ns=times))


def test_a_stall_is_listed_apart_and_nobody_is_blamed() -> None:
    report = make_stalled(7, 30)
    assert [(item.step, item.rank, item.phase, item.lost_ns) for item in report.stalls] == [
        (7, 2, "backward", 500 * MS), (30, 2, "backward", 500 * MS),
    ]  # fmt: skip
    assert report.verdict.rank is None and report.verdict.lost_ratio.value == 0


def test_many_of_them_are_no_single_steps() -> None:
    report = make_stalled(*range(5, 41, 5))
    assert report.stalls == ()
    assert report.verdict.rank == 2 and report.verdict.pattern == "intermittent"


def test_a_smooth_run_has_none() -> None:
    assert make_stalled().stalls == ()
