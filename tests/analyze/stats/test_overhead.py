"""What recording costs: by hand, by property, and with a cost that the test has put in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.analyze import analyze
from distprof.analyze.stats.overhead import (
    MIN_SHADOW_STEPS,
    NEIGHBOURS,
    StepCosts,
    compare_steps,
    measure_overhead,
    read_costs,
)
from distprof.analyze.stats.statistics import count_outside
from distprof.facts.arrays import FloatArray
from distprof.facts.run import PHASES, Clock, Run
from tests.factories import MS, drop_rows, make_run

EVERY = 20


def make_shadowed(step_ns: FloatArray, shadow: FloatArray, **columns: FloatArray) -> Run:
    """A run of two ranks, the first 1 ms faster, without warm-up, whose job step times are these, ``[num_steps]``."""
    times = np.stack([step_ns - MS, step_ns])
    chosen = {"step_host_ns": times, "shadow": shadow, **columns}
    return make_run(num_ranks=2, num_steps=len(step_ns), num_warmup=0, columns=chosen)


def shadow_every(num_steps: int, every: int = EVERY) -> FloatArray:
    return (np.arange(num_steps) % every == every // 2).astype(float)


def test_by_hand() -> None:
    """Shadow steps of 100 ms, each between steps with instruments that reach to the next shadow step."""
    step_ns = np.array([108, 100, 112, 120, 100, 122, 90, 100, 90, 95, 100, 105, 105, 100, 105, 104, 100]) * float(MS)
    shadow = np.isin(np.arange(17), [1, 4, 7, 10, 13, 16]).astype(float)
    # One on each side of the first, two on each side of the next four, and the last has nothing behind it.
    around = [[108, 112], [112, 120, 122, 90], [122, 90, 90, 95], [90, 95, 105, 105], [105, 105, 105, 104], [105, 104]]
    medians = [110.0, 116.0, 92.5, 100.0, 105.0, 104.5]
    assert [np.median(steps) for steps in around] == medians
    found = measure_overhead(make_shadowed(step_ns, shadow))
    assert found is not None and found.shadow_steps == 6
    assert found.ratio == pytest.approx(2 / (1 / 1.045 + 1 / 1.05) - 1)  # the middle two
    assert [found.low_ratio, found.high_ratio] == pytest.approx([-0.075, 0.16])  # of six, the first and the last


@pytest.mark.parametrize(
    ("number", "outside"), [(6, 0), (8, 0), (9, 1), (12, 2), (15, 3), (20, 5), (25, 7), (50, 17)], ids=str
)
def test_the_interval_of_a_median_is_the_one_of_the_tables(number: int, outside: int) -> None:
    """Values below the interval at 95 %, as printed for the sign test."""
    assert count_outside(number) == outside


def test_a_cost_that_was_put_in_comes_out() -> None:
    noise = np.random.default_rng(5).lognormal(0, 0.02, 2000)
    shadow = shadow_every(2000)
    found = measure_overhead(make_shadowed(100 * MS * noise * np.where(shadow == 1, 1, 1.03), shadow))
    assert found is not None and found.shadow_steps == 100
    assert found.low_ratio < 0.03 < found.high_ratio and found.high_ratio - found.low_ratio < 0.015
    assert found.low_ratio > 0.01  # a cost of 3 % is seen


@pytest.mark.parametrize("cost", [0.0, 0.06])
def test_where_bursts_are_recorded_many_steps_beside_each_are_compared_with_it(cost: float) -> None:
    """Eight of every 64 steps are recorded, five times, as in a pipeline of which recording costs much: the two steps
    next to each burst alone would tell nothing with a noise of 4 %."""
    shadow = (np.arange(320) % 64 >= 8).astype(float)
    found, generator, right = [], np.random.default_rng(11), 0
    for _ in range(200):
        step_ns = 100 * MS * generator.lognormal(0, 0.04, 320) * np.where(shadow == 1, 1, 1 + cost)
        overhead = measure_overhead(make_shadowed(step_ns, shadow))
        assert overhead is not None and overhead.shadow_steps == 9 * NEIGHBOURS
        found.append(overhead.high_ratio - overhead.low_ratio)
        right += overhead.low_ratio <= cost <= overhead.high_ratio
    assert np.median(found) < 0.06 and right >= 190


def test_no_cost_is_found_where_there_is_none() -> None:
    generator = np.random.default_rng(7)
    sure = 0
    for _ in range(200):
        step_ns = 100 * MS * generator.lognormal(0, 0.3, 160)  # skewed, with eight shadow steps: the hard case
        found = compare_steps(read_costs(make_shadowed(step_ns, shadow_every(160)).rows, Clock.HOST))
        assert found is not None
        sure += found.low_ratio > 0 or found.high_ratio < 0
    assert sure <= 10


def test_a_job_that_slows_down_is_no_cost() -> None:
    step_ns = np.linspace(100, 300, 400) * MS
    found = measure_overhead(make_shadowed(step_ns, shadow_every(400)))
    assert found is not None and abs(found.ratio) < 1e-3 and abs(found.high_ratio) < 1e-2


def test_a_stall_beside_a_shadow_step_is_no_cost() -> None:
    shadow = shadow_every(400)
    step_ns = np.full(400, 100.0 * MS)
    step_ns[np.flatnonzero(shadow) + 1] *= 5
    found = measure_overhead(make_shadowed(step_ns, shadow))
    assert found is not None and found.ratio == found.low_ratio == found.high_ratio == 0


@given(st.floats(-0.2, 0.5), st.integers(MIN_SHADOW_STEPS, 12), st.integers(2, 30), st.floats(1e3, 1e10))
def test_the_ratio_is_exact_without_noise(cost: float, shadows: int, every: int, base_ns: float) -> None:
    shadow = shadow_every(shadows * every, every)
    found = measure_overhead(make_shadowed((base_ns + MS) * np.where(shadow == 1, 1, 1 + cost), shadow))
    assert found is not None and found.shadow_steps == shadows
    assert [found.ratio, found.low_ratio, found.high_ratio] == pytest.approx([cost] * 3, abs=1e-9)


@pytest.mark.parametrize(("host", "device"), [(0.5, 0.03), (0.0, 0.03)])
def test_on_a_gpu_the_cost_is_the_devices(host: float, device: float) -> None:
    """Whose host runs ahead: it may be slowed down without anyone noticing, or not at all while the device is."""
    shadow = shadow_every(400)
    times_ns = {
        clock: np.stack([100 * MS * np.where(shadow == 1, 1, 1 + cost)] * 2)
        for clock, cost in (("host", host), ("device", device))
    }
    times_ns["device"][0, 7] = np.nan  # its events were lost
    columns = {"shadow": shadow, **{f"step_{clock}_ns": values for clock, values in times_ns.items()}}
    run = make_run(num_ranks=2, num_steps=400, num_warmup=0, columns=columns, meta={"device_type": "cuda"})
    found = measure_overhead(run)
    assert found is not None and found.clock == "device" and found.shadow_steps == 20
    assert found.ratio == pytest.approx(device)


def test_the_same_facts_give_the_same_interval() -> None:
    step_ns = 100 * MS * np.random.default_rng(3).lognormal(0, 0.05, 300)
    run = make_shadowed(step_ns, shadow_every(300))
    assert measure_overhead(run) == measure_overhead(run)


def test_too_few_shadow_steps_say_nothing() -> None:
    enough = (MIN_SHADOW_STEPS - 1) * EVERY + EVERY // 2 + 2
    step_ns = np.full(enough, 100.0 * MS)
    assert measure_overhead(make_shadowed(step_ns, shadow_every(enough))) is not None
    shadow = shadow_every(enough)
    shadow[-2] = 0
    assert measure_overhead(make_shadowed(step_ns, shadow)) is None
    assert measure_overhead(make_run()) is None


@pytest.mark.parametrize("column", ["warmup", "failed"])
def test_warmup_and_failed_steps_are_compared_with_nothing(column: str) -> None:
    shadow = shadow_every(200)
    step_ns = np.full(200, 100.0 * MS)
    wild = np.zeros(200)
    wild[:60] = 1
    step_ns[:60] *= np.linspace(1, 9, 60)
    found = measure_overhead(make_shadowed(step_ns, shadow, **{column: wild}))
    assert found is not None and found.shadow_steps == 7 and found.ratio == 0


def test_a_step_that_only_some_ranks_ran_without_instruments_is_neither() -> None:
    run = make_shadowed(np.full(200, 100.0 * MS), np.stack([shadow_every(200), shadow_every(200)]))
    costs = read_costs(run.rows, Clock.HOST)
    assert costs.shadow.sum() == 10 and costs.plain.sum() == 190
    run = make_shadowed(np.full(200, 100.0 * MS), np.stack([shadow_every(200), np.zeros(200)]))
    costs = read_costs(run.rows, Clock.HOST)
    assert costs.shadow.sum() == 0 and costs.plain.sum() == 190 and compare_steps(costs) is None


def test_a_rank_that_left_no_record_is_no_obstacle_and_a_row_that_is_missing_is_a_step_less() -> None:
    run = make_shadowed(np.full(200, 100.0 * MS), shadow_every(200))
    found = measure_overhead(drop_rows(run, 1, 0))
    assert found is not None and found.shadow_steps == 10
    found = measure_overhead(drop_rows(run, 1, 10, 10))
    assert found is not None and found.shadow_steps == 9


def test_neighbours_are_few_and_near() -> None:
    """Steps farther than `NEIGHBOURS` from every shadow step may be anything."""
    every = 4 * NEIGHBOURS
    shadow = shadow_every(10 * every, every)
    step_ns = np.full(10 * every, 100.0 * MS)
    far = np.abs(np.arange(10 * every)[:, None] - np.flatnonzero(shadow)).min(axis=1) > NEIGHBOURS
    step_ns[far] *= 7
    found = measure_overhead(make_shadowed(step_ns, shadow))
    assert found is not None and found.ratio == found.high_ratio == 0


def test_a_shadow_step_far_from_those_around_it_tells_nothing_of_a_cost() -> None:
    """Ten shadow steps of a millionth of the others' time did not do the same; ten of the same time cost nothing."""
    shadow = np.arange(40) % 4 == 1
    step_ns = np.full(40, 1e8)
    assert (
        compare_steps(StepCosts(clock=Clock.HOST, step_ns=np.where(shadow, 1e2, step_ns), shadow=shadow, plain=~shadow))
        is None
    )
    found = compare_steps(StepCosts(clock=Clock.HOST, step_ns=step_ns, shadow=shadow, plain=~shadow))
    assert found is not None and (found.ratio, found.shadow_steps) == (0, 10)


def test_where_recording_was_off_in_every_step_that_is_left_the_step_times_are_reported() -> None:
    step_ns = np.full(8, 100.0 * MS)
    off = {f"{phase}_host_ns": np.full(8, np.nan) for phase in PHASES}
    report = analyze(make_shadowed(step_ns, np.ones(8), **off))
    assert report.coverage.steps_measured == 8 and report.steps[0].mean_ns == (99 * MS, 100 * MS)
    assert "recording was off in all kept steps; only step times are known" in (report.coverage.notes)
    one_recorded = analyze(make_shadowed(step_ns, np.arange(8) != 3))
    assert (one_recorded.coverage.steps_measured, one_recorded.coverage.steps_timed_alone) == (1, 7)
    why = "(shadow steps, or it was off, or left out to save time)"
    assert f"7 step(s) ran without recording {why}: only the step time includes them" in one_recorded.coverage.notes
