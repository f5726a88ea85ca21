"""Step time is elapsed time over steps, wherever it is shown, however much ranks differ from step to step."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from distprof.analyze import analyze
from distprof.analyze.live.live_metric_means import ElapsedSteps
from distprof.analyze.live.live_metrics import make_points
from distprof.analyze.predict.sweep import measure_job
from distprof.cli.bench.comparison import read_step_ns
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, Clock, Run
from distprof.profiler.metrics.metrics import Metrics
from distprof.train.job import StepProgress
from tests.factories import MS, make_run

WARMUP = 1


def make_noisy_run(
    seed: int, num_ranks: int, num_steps: int, noise: float, *, clock: Clock = Clock.HOST, **meta: object
) -> Run:
    """Ranks that are slow in turn, with time between steps: they begin apart and end apart, each on its own clock."""
    draw = np.random.default_rng(seed)
    step_ns = np.round(100 * MS * np.exp(noise * draw.standard_normal((num_ranks, num_steps))))
    between_ns = np.round(noise * 10 * MS * draw.random((num_ranks, num_steps)))
    begin_ns = 10**12 * (1 + np.arange(num_ranks)[:, None]) + np.cumsum(between_ns + step_ns, axis=1) - step_ns
    times = {"device_ns": {"forward": step_ns}} if clock is Clock.DEVICE else {}
    return make_run(
        num_ranks=num_ranks, num_steps=num_steps, num_warmup=WARMUP, meta=meta, host_ns={"forward": step_ns}, **times,  # type: ignore[arg-type]
        columns={f"begin_{clock}_ns": begin_ns, "window": 0},
    )  # fmt: skip


def find_elapsed(run: Run, clock: Clock = Clock.HOST, first: int = WARMUP) -> FloatArray:
    """From the begin of a step to the end of the last, ``[num_ranks]``."""
    begin_ns = run.column(f"begin_{clock}_ns")
    elapsed_ns: FloatArray = begin_ns[:, -1] + run.step_ns(clock)[:, -1] - begin_ns[:, first]
    return elapsed_ns


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 33), st.integers(2, 30), st.floats(0, 1), st.sampled_from(Clock))
def test_steps_times_their_number_is_the_time_that_the_job_took(
    seed: int, num_ranks: int, num_steps: int, noise: float, clock: Clock
) -> None:
    run = make_noisy_run(seed, num_ranks, num_steps, noise, clock=clock)
    head, number = analyze(run).headline, num_steps - WARMUP
    elapsed_ns = find_elapsed(run, clock)
    assert head.clock == clock and head.step_mean_ns is not None and head.tokens_per_s is not None
    assert head.step_mean_ns * number == pytest.approx(elapsed_ns.mean(), rel=1e-9)
    tokens = number * num_ranks * 1024
    assert head.tokens_per_s == pytest.approx(tokens / elapsed_ns.mean() * 1e9, rel=1e-9)
    inside_ns = run.step_ns(clock)[:, WARMUP:].mean()
    assert head.between_ratio == pytest.approx(1 - inside_ns / head.step_mean_ns, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.lists(st.integers(1, 70), min_size=1, max_size=4))
def test_what_a_running_job_says_adds_up_to_the_same(seed: int, num_ranks: int, parts: list[int]) -> None:
    run = make_noisy_run(seed, num_ranks, sum(parts), 0.5)
    elapsed_ns = find_elapsed(run, first=0).mean()
    metrics, elapsed, whole_ms = Metrics(run.meta, []), ElapsedSteps(), 0.0
    for rows in np.split(run.rows, np.cumsum(parts)[:-1], axis=1):
        metrics.add(rows)
        points = make_points(rows, run.meta, [], elapsed)
        whole_ms += sum(point["step/time_ms"] for point in points) * rows.shape[1] / len(points)
    assert whole_ms * MS == pytest.approx(elapsed_ns, rel=1e-5)  # points have six digits
    (counted_s,) = re.findall(r"^distprof_steps_seconds_total (.*)$", metrics.render(), re.M)
    assert float(counted_s) * 1e9 == pytest.approx(elapsed_ns, rel=1e-9)


def test_sweeps_benches_causes_and_what_ifs_have_the_headlines_step() -> None:
    run = make_noisy_run(7, 4, 40, 0.3)
    late = run.rows.copy()
    late[:, :, COLUMN["all_reduce_host_ns"]] = 30 * MS
    late[:, :, COLUMN["step_host_ns"]] += 30 * MS
    late[:, :, COLUMN["begin_host_ns"]] += np.arange(40) * 30 * MS
    run.rows[:] = late
    report, job = analyze(run), measure_job(run)
    mean_ns = report.headline.step_mean_ns
    assert job is not None and mean_ns is not None and report.causes is not None and report.what_if
    assert job.step_ns.sum() == pytest.approx(find_elapsed(run).mean())
    assert read_step_ns(run) == report.headline.step_median_ns
    assert report.causes.step_ns == pytest.approx(mean_ns)
    parts_ns = sum(cause.joint_ns for cause in report.causes.causes)
    assert report.causes.ideal_ns + report.causes.remainder_ns + parts_ns == pytest.approx(mean_ns)
    for item in report.what_if:
        assert item.step_ns == pytest.approx(mean_ns * (1 - item.saved_ratio.value))
    overlap = next(item for item in report.what_if if item.change == "perfect overlap")
    assert overlap.tokens_per_s == pytest.approx((report.headline.tokens_per_s or 0) * mean_ns / overlap.step_ns)


def test_progress_shows_elapsed_time_and_all_its_tokens() -> None:
    """Ranks that take 100 and 300 ms in turn, and 10 ms before each step: 210 ms a step and 2,048 tokens."""
    odd = (np.arange(2)[:, None] + np.arange(4)) % 2 == 1
    step_ns = np.where(odd, 300.0, 100.0) * MS
    begin_ns = np.cumsum(step_ns + 10 * MS, axis=1) - step_ns
    run = make_run(num_ranks=2, num_steps=4, host_ns={"forward": step_ns}, columns={"begin_host_ns": begin_ns})
    console, now_s = Console(file=io.StringIO(), width=200), iter([0.0, 20.0, 20.0, 40.0, 40.0])
    progress = StepProgress(console, 4, now_s=lambda: next(now_s))
    progress.show(run.rows[:, :2])
    progress.show(run.rows[:, 2:])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[1] == "step 4/4  210.0 ms/step  9,752 tokens/s"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 7), st.integers(0, 9), st.sampled_from(Clock))
def test_where_bursts_are_recorded_the_step_time_is_that_of_all_steps_and_the_parts_are_of_those(
    seed: int, num_ranks: int, burst: int, left_out: int, clock: Clock
) -> None:
    """Each rank's own clock, read at the end of each recorded step and of the step before, whether recorded or not."""
    run = make_noisy_run(seed, num_ranks, 40, 0.7, clock=clock)
    shadow = np.arange(40) % (burst + left_out) >= burst
    run.rows[:, :, COLUMN["shadow"]] = shadow
    ends_ns = run.column(f"begin_{clock}_ns") + run.step_ns(clock)
    whole_ns = [
        ends_ns[:, step] - (ends_ns[:, step - 1] if step > WARMUP else run.column(f"begin_{clock}_ns")[:, step])
        for step in range(WARMUP, 40) if not shadow[step]
    ]  # fmt: skip
    report, elapsed_ns, tokens = analyze(run), find_elapsed(run, clock).mean(), 39 * num_ranks * 1024
    assert report.headline.step_mean_ns == pytest.approx(elapsed_ns / 39, rel=1e-9)
    assert report.headline.tokens_per_s == pytest.approx(tokens / elapsed_ns * 1e9, rel=1e-9)
    assert report.headline.recorded_mean_ns == pytest.approx(np.mean(whole_ns), rel=1e-9)
    if clock is Clock.HOST:
        assert report.between is not None
        assert report.between.cycle_mean_ns == pytest.approx(np.mean(whole_ns, axis=0), rel=1e-9)


@pytest.mark.parametrize("name", ["warmup", "window", "failed"])
def test_a_step_that_does_not_count_takes_the_time_around_it_along(name: str) -> None:
    begin_ns = np.array([[0, 110, 220, 5330, 10440, 10550.0]]) * MS
    run = make_run(
        num_ranks=1, num_steps=6, num_warmup=0, host_ns={"forward": 100 * MS},
        columns={"begin_host_ns": begin_ns, name: np.arange(6) == 3},
    )  # fmt: skip
    assert analyze(run).headline.step_mean_ns == pytest.approx((320 + 210) / 5 * MS)


def test_a_gap_in_the_numbers_is_no_time_of_the_job() -> None:
    columns = {"step": np.array([0, 1, 7, 8]), "begin_host_ns": np.array([[0, 110, 9000, 9110.0]]) * MS}
    run = make_run(num_ranks=1, num_steps=4, num_warmup=0, host_ns={"forward": 100 * MS}, columns=columns)
    assert analyze(run).headline.step_mean_ns == pytest.approx(105 * MS)


def test_a_job_that_times_backward_passes_alone_leaves_out_what_runs_between_them() -> None:
    run = make_noisy_run(3, 2, 12, 0.5, config={"train": {"mode": "backward"}})
    head = analyze(run).headline
    assert head.step_mean_ns == pytest.approx(run.step_ns(Clock.HOST)[:, WARMUP:].mean()) and head.between_ratio == 0
