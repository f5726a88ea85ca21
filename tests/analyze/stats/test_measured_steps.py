"""Which steps count, and which clock leads."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.analyze.stats.measured_steps import choose_measured_steps, read_timing
from distprof.facts.run import Clock
from tests.factories import MS, USUAL_NS, drop_rows, make_run

DEVICE_NS = {"forward": 30 * MS, "backward": 50 * MS}


def test_a_step_counts_when_every_rank_present_reported_it_whole() -> None:
    failed, warmup = np.zeros((3, 6)), np.zeros((3, 6))
    warmup[:, 0], failed[2, 4] = 1, 1
    run = drop_rows(make_run(num_ranks=3, num_steps=6, columns={"failed": failed, "warmup": warmup}), 1, 2, 2)
    assert choose_measured_steps(run).counted.tolist() == [False, True, False, True, False, True]


def test_a_rank_without_a_row_does_not_hold_the_statistics_up() -> None:
    run = drop_rows(make_run(num_ranks=3), 2, 0)
    measured_steps = choose_measured_steps(run)
    assert measured_steps.present.tolist() == [True, True, False]
    assert measured_steps.counted.sum() == 3
    report = analyze(run)
    assert report.phases[0].mean_ns == (10 * MS, 10 * MS, None)
    assert report.coverage.ranks_present == (0, 1)


def test_the_device_clock_leads_where_everyone_has_it() -> None:
    report = analyze(make_run(device_ns=DEVICE_NS))
    assert report.headline.clock == "device"
    assert report.headline.step_mean_ns == 80 * MS
    assert report.headline.exposed_ratio == 0
    assert report.coverage.clocks == ("device", "host")
    assert [(phase.phase, phase.clock) for phase in report.phases][:3] == [
        ("forward", "device"), ("backward", "device"), ("other", "device"),
    ]  # fmt: skip


@pytest.mark.parametrize("place", [(0, 2), (slice(None), 2)])
def test_the_headline_stands_on_the_steps_that_have_device_times(place: tuple[int | slice, ...]) -> None:
    device_ns = np.full((2, 4), 80.0 * MS)
    device_ns[:, 3] = 120 * MS
    device_ns[place] = np.nan
    report = analyze(make_run(device_ns=DEVICE_NS, columns={"step_device_ns": device_ns}))
    assert report.headline.clock == "device"
    assert report.headline.step_mean_ns == pytest.approx((80 + 120) / 2 * MS)  # step 0 is warm-up, step 2 is missing
    assert report.coverage.steps_measured == 3
    assert report.coverage.notes == ("1 step(s) have no time on the device clock and are left out of it",)


def test_a_rank_without_device_times_puts_the_headline_on_the_host_clock() -> None:
    device_ns = np.full((2, 4), 80.0 * MS)
    device_ns[1] = np.nan
    report = analyze(make_run(device_ns=DEVICE_NS, columns={"step_device_ns": device_ns}))
    assert report.headline.clock == "host"
    assert report.headline.step_mean_ns == 100 * MS
    assert report.steps[0].clock == "device"
    assert any("host clock" in note for note in report.coverage.notes)


def test_a_missing_device_time_in_the_warmup_does_no_harm() -> None:
    device_ns = np.full((2, 4), 80.0 * MS)
    device_ns[:, 0] = np.nan
    assert analyze(make_run(device_ns=DEVICE_NS, columns={"step_device_ns": device_ns})).headline.clock == "device"


def test_device_statistics_use_the_steps_that_have_device_times() -> None:
    device_ns = np.array([[9, 10, np.nan, 30], [9, 20, 20, 40]]) * MS
    timing = read_timing(
        choose_measured_steps(make_run(device_ns=USUAL_NS, columns={"step_device_ns": device_ns})), Clock.DEVICE
    )
    assert timing is not None
    assert timing.used.tolist() == [False, True, False, True]
    assert timing.mean_step_ns.tolist() == [20 * MS, 30 * MS]


def test_a_rank_without_a_device_is_none_there_and_not_zero() -> None:
    device_ns = np.array([[80.0], [np.nan]]) * MS
    report = analyze(make_run(device_ns=DEVICE_NS, columns={"step_device_ns": device_ns}))
    assert report.steps[0].mean_ns == (80 * MS, None)
    assert report.phases[0].mean_ns == (30 * MS, None)
    assert report.phases[0].spread_ns.max_rank == 0
