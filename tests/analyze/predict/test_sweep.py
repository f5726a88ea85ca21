"""What the jobs of a sweep show: statistics by hand, and jobs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import SimulatedJob, simulate
from distprof.analyze.predict.sweep import JobSteps, list_values, measure_job, report_sweep_jobs
from distprof.analyze.predict.sweep_ratio import combine, compare_means, mean_confidence_interval
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, Run
from distprof.facts.sweep import Sweep, SweepJob
from distprof.report.sweep_report import SweepRatio, SweepReport
from tests.factories import MS, make_run


def make_sweep(settings: Sequence[Mapping[str, str]], **changes: Any) -> Sweep:
    """A sweep of jobs with these settings that completed; ``changes`` of a job by ``job1`` and so on."""
    jobs = []
    for number, own in enumerate(settings, start=1):
        values: dict[str, Any] = {
            "number": number, "overrides": (), "settings": own, "status": "completed", "folder": f"jobs/{number:03d}",
            "ranks": int(own.get("sweep.ranks", "2")), **changes.get(f"job{number}", {}),
        }  # fmt: skip
        jobs.append(SweepJob(**values))
    return Sweep(name="made", started_utc="2026-01-02T03:04:05+00:00", distprof_version="0", jobs=tuple(jobs))


def make_steps(step_ns: Sequence[float], *, tokens: float | None = 1000.0, clock: Clock = Clock.HOST) -> JobSteps:
    return JobSteps(clock=clock, step_ns=np.array(step_ns, dtype=float), tokens_per_step=tokens)


def around(mean_ns: float, number: int = 6) -> list[float]:
    """Steps with this mean and a spread of about 2 %."""
    return [mean_ns * (1 + 0.02 * (-1) ** step) for step in range(number)]


def test_a_jobs_numbers_are_elapsed_time_without_warm_up() -> None:
    waits = np.array([[90, 1, 2, 3, 2], [99, 2, 2, 4, 6]]) * MS  # the first step is warm-up
    found = measure_job(make_run(num_steps=5, host_ns={"forward": waits}))
    assert found is not None and found.tokens_per_step == 2 * 1024
    (row,) = report_sweep_jobs(make_sweep([{}]), {1: found}).rows
    assert (row.clock, row.steps) == ("host", 4)
    assert (row.mean_ns, row.median_ns, row.min_ns, row.max_ns) == (2.75 * MS, 2.75 * MS, 1.5 * MS, 4 * MS)
    assert row.total_ns == 11 * MS  # 1.5, 2, 3.5 and 4
    std = np.sqrt((2 * 1.25**2 + 2 * 0.75**2) / 3)
    assert row.std_ns == pytest.approx(std * MS) and row.spread_ratio == pytest.approx(std / 2.75)
    assert row.tokens_per_s == pytest.approx(4 * 2 * 1024 / 11e-3)


def test_a_job_without_measured_steps_has_no_numbers() -> None:
    assert measure_job(make_run(num_steps=2, num_warmup=2)) is None
    failed = {"job1": {"status": "failed", "reason": "rank 1 failed"}}
    (row,) = report_sweep_jobs(make_sweep([{}], **failed), {}).rows
    assert (row.steps, row.mean_ns, row.spread_ratio, row.reason) == (0, None, None, "rank 1 failed")


def grid() -> SweepReport:
    """Two precisions by two sizes: bf16 takes 0.5 and 0.72 times as long, "large" 2 and 2.88 times."""
    settings = [{"train.precision": kind, "size": size} for size in ("small", "large") for kind in ("fp32", "bf16")]
    times = {1: 100 * MS, 2: 50 * MS, 3: 200 * MS, 4: 144 * MS}
    return report_sweep_jobs(make_sweep(settings), {job: make_steps(around(mean)) for job, mean in times.items()})


def test_jobs_that_differ_in_one_key_are_compared_and_no_others() -> None:
    found = {(pair.key, pair.base_job, pair.job): round(pair.time.value, 3) for pair in grid().pairs}
    assert found == {
        ("train.precision", 1, 2): 0.5, ("train.precision", 3, 4): 0.72, ("size", 1, 3): 2.0, ("size", 2, 4): 2.88,
    }  # fmt: skip


def test_an_effect_is_the_geometric_mean_of_its_pairs() -> None:
    precision, size = grid().effects
    assert (precision.key, precision.base, precision.value, precision.num_pairs) == (
        "train.precision", "fp32", "bf16", 2,
    )  # fmt: skip
    assert precision.time.value == pytest.approx(0.6) and size.time.value == pytest.approx(2.4)
    assert (round(precision.least, 2), round(precision.most, 2)) == (0.5, 0.72)
    assert (precision.num_longer, precision.num_shorter, size.num_longer, size.num_shorter) == (0, 2, 2, 0)
    assert precision.time.low is not None and precision.time.high is not None
    assert 0.57 < precision.time.low < 0.6 < precision.time.high < 0.63


def test_scaling_is_the_throughput_over_what_as_many_ranks_would_have_at_best() -> None:
    settings = [{"sweep.ranks": ranks} for ranks in ("1", "2", "4")]
    steps = {
        1: make_steps(around(100 * MS), tokens=1000), 2: make_steps(around(125 * MS), tokens=2000),
        3: make_steps(around(200 * MS), tokens=4000),
    }  # fmt: skip
    two, four = report_sweep_jobs(make_sweep(settings), steps).effects
    assert two.efficiency is not None and four.efficiency is not None
    assert two.efficiency.value == pytest.approx(0.8) and four.efficiency.value == pytest.approx(0.5)
    (pair, _) = report_sweep_jobs(make_sweep(settings), steps).pairs
    assert pair.throughput is not None and pair.throughput.value == pytest.approx(1.6)
    uncounted = {job: make_steps(found.step_ns.tolist(), tokens=None) for job, found in steps.items()}
    assert all(pair.throughput is None for pair in report_sweep_jobs(make_sweep(settings), uncounted).pairs)


def test_a_job_that_did_not_complete_is_not_compared() -> None:
    sweep = make_sweep([{"seed": "1"}, {"seed": "2"}], job2={"status": "timed out"})
    report = report_sweep_jobs(sweep, {1: make_steps(around(MS)), 2: make_steps(around(MS))})
    assert report.pairs == () and report.effects == () and not report.complete
    assert report.rows[1].steps == 6, "what it did measure is shown"


def test_two_clocks_are_not_compared() -> None:
    sweep = make_sweep([{"device": "cpu"}, {"device": "cuda"}])
    report = report_sweep_jobs(sweep, {1: make_steps(around(MS)), 2: make_steps(around(MS), clock=Clock.DEVICE)})
    assert report.pairs == () and "different clocks" in report.notes[0]


def test_too_few_steps_give_a_ratio_without_an_interval() -> None:
    ratio = compare_means(np.array([2.0, 2.0]), np.array([1.0, 1.0, 1.0]))
    assert (ratio.show().value, ratio.show().low) == (2.0, None)
    assert combine([ratio, ratio]).show().low is None


def draw(generator: np.random.Generator, number: int, memory: float) -> FloatArray:
    """Steps of 100 with a spread of 5 %, each like the one before."""
    noise = generator.normal(size=number + 30)
    for step in range(1, len(noise)):
        noise[step] += memory * noise[step - 1]
    drawn: FloatArray = 100 + 5 * noise[30:]
    return drawn


def test_the_interval_of_a_mean_is_students_of_logarithms() -> None:
    """Of four steps: 3.182 standard errors, 3 degrees of freedom."""
    steps = np.array([90.0, 100.0, 110.0, 100.0])
    error = 3.182446 * steps.std(ddof=1) / 100 / 2
    assert mean_confidence_interval(steps) == pytest.approx((100 * np.exp(-error), 100 * np.exp(error)), rel=0.01)
    assert mean_confidence_interval(steps[:2]) is None


@pytest.mark.parametrize(("number", "memory"), [(3, 0.0), (5, 0.0), (20, 0.0), (20, 0.5)])
def test_the_interval_holds_the_truth_as_often_as_it_says(number: int, memory: float) -> None:
    """Of equal jobs: 95 % of 200, less three standard errors."""
    generator = np.random.default_rng(1)
    found = [compare_means(draw(generator, number, memory), draw(generator, number, memory)).show() for _ in range(200)]
    hits = [ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high for ratio in found]
    assert 0.90 <= np.mean(hits) <= 0.995


def test_pairs_that_differ_by_more_than_their_steps_show_widen_the_interval() -> None:
    """Each start of a job has a speed of its own, 5 % apart, which no step tells: of 200 sweeps of six pairs."""
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        speeds = np.exp(0.05 * generator.normal(size=(6, 2)))
        found = combine([compare_means(draw(generator, 5, 0.0) * a, draw(generator, 5, 0.0) * b) for a, b in speeds])
        shown = found.show()
        hits += shown.low is not None and shown.high is not None and shown.low <= 1 <= shown.high
    assert 0.90 <= hits / 200 <= 0.995


def run_micro_steps(number: int) -> Run:
    job = SimulatedJob(num_ranks=4, ranks_per_host=4, micro_steps=number, transfer_ns=80 * MS)
    return simulate(job, seed=1, truth=False).run


def test_what_the_first_job_predicts_stands_beside_what_was_measured() -> None:
    """Twice the micro-steps. No job predicts the precision."""
    key, values = "train.grad_accum", ("1", "2")
    sweep = make_sweep([{key: value, "train.precision": "fp32"} for value in values])
    swept = list_values(sweep)
    assert swept == {key: values, "train.precision": ("fp32",)}
    steps = {number: measure_job(run_micro_steps(int(value)), swept) for number, value in enumerate(values, start=1)}
    report = report_sweep_jobs(sweep, {number: found for number, found in steps.items() if found is not None})
    (pair,), (effect,) = report.pairs, report.effects
    assert pair.predicted is not None and pair.predicted == effect.predicted
    assert pair.predicted.value == pytest.approx(pair.time.value, rel=0.02)
    assert pair.predicted.low is not None and pair.predicted.low < pair.predicted.value
    found = steps[1]
    assert found is not None and {*found.predicted} == {(key, "2")}
    without = measure_job(run_micro_steps(1))
    assert without is not None and not without.predicted


def test_several_forecasts_are_averaged_and_none_may_be_missing() -> None:
    key, other = "train.grad_accum", "seed"
    sweep = make_sweep([{key: value, other: seed} for seed in ("1", "2") for value in ("1", "2")])
    told = [{(key, "2"): SweepRatio(value=value, low=value - 0.1, high=value + 0.1)} for value in (1.6, 2.5)]
    plain = make_steps(around(100 * MS))
    steps = {
        1: structs.replace(plain, predicted=told[0]), 2: plain, 3: structs.replace(plain, predicted=told[1]),
        4: plain,
    }  # fmt: skip
    assert report_sweep_jobs(sweep, steps).effects[0].predicted == SweepRatio(
        value=pytest.approx(2.0), low=None, high=None
    )
    assert report_sweep_jobs(sweep, {**steps, 3: plain}).effects[0].predicted is None
