"""Forecasts of other settings, against simulated jobs that have those settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from benchmarks.simulate import SimulatedBucket, SimulatedJob, simulate
from benchmarks.simulate.job import USUAL_PHASE_NS
from distprof.analyze import analyze
from distprof.analyze.predict import buckets
from distprof.analyze.predict.buckets import Buckets, divide_gradients
from distprof.analyze.predict.forecasts import MIB
from distprof.analyze.predict.micro_steps import REPEATED, repeat_computing
from distprof.facts.run import OWN_PARTS, Phase, Run
from distprof.report.forecast_report import ChangedSetting, Forecast, ForecastReport, NoForecast, Unanswered
from tests.analyze.synthetic_cycles import draw_own, make_cycles
from tests.factories import MS, make_run

LATENCY_NS = 1.0 * MS
DRAWS = np.random.default_rng(7)
GRADIENTS_BYTES = DRAWS.integers(1, 24, 60) * MIB // 8
"""In the order in which they become ready: 60 gradients of 0.1 to 3 MiB, 90 MiB together."""
WORK = DRAWS.dirichlet(np.full(60, 2.0))
"""Share of backward that each takes; not in proportion to its size."""


def make_job(cap_mb: float, *, mb_per_s: float = 1500, **changes: Any) -> SimulatedJob:
    """Gradients in buckets of at least ``cap_mb``, as DDP fills them."""
    filled, size, work = [], 0, 0.0
    for number, (more, share) in enumerate(zip(GRADIENTS_BYTES.tolist(), WORK.tolist(), strict=True)):
        size, work = size + more, work + share
        if size >= cap_mb * MIB or number == len(WORK) - 1:
            transfer_ns = LATENCY_NS + size / MIB / mb_per_s * 1e9
            filled.append(SimulatedBucket(size_bytes=size, backward_ratio=work, transfer_ns=transfer_ns))
            size, work = 0, 0.0
    return SimulatedJob(num_ranks=4, ranks_per_host=4, num_steps=20, buckets=tuple(filled), **changes)


def run_job(job: SimulatedJob, cap_mb: float) -> Run:
    run = simulate(job, seed=1, truth=False).run
    return dataclasses.replace(
        run, meta=dataclasses.replace(run.meta, config={"strategy": {"name": "ddp", "bucket_mb": cap_mb}})
    )


def foretell(run: Run) -> ForecastReport:
    report = analyze(run).forecasts
    assert report is not None
    return report


def find_forecasts(run: Run, setting: ChangedSetting) -> dict[float, Forecast]:
    return {item.value: item for item in foretell(run).forecasts if item.setting is setting}


def measure(job: SimulatedJob) -> float:
    return float(simulate(job, seed=2, truth=False).truth.step_ns[1:].mean())


@pytest.mark.parametrize(
    ("mb_per_s", "rules"), [(600, "simple"), (1500, "simple"), (6000, "simple"), (1500, "shared"), (6000, "shared")]
)
def test_other_bucket_sizes_take_as_long_as_jobs_with_them(mb_per_s: float, rules: str) -> None:
    """Transfers of 150, 60 and 15 ms against 50 ms of backward, so either of them may hold the steps up.

    A forecast is a share of the elapsed time. By the shared rules the replay of the recorded steps is 0.5 % too long,
    which makes shares too large.
    """
    allowed = 0.02 if rules == "simple" else 0.025
    now, changes = 5.0, {"mb_per_s": mb_per_s, "rules": rules}
    found = find_forecasts(run_job(make_job(now, **changes), now), ChangedSetting.BUCKET_MB)
    assert list(found) == [1, 2, 10, 25, 50, 100]
    for cap_mb, item in found.items():
        truth_ns = measure(make_job(cap_mb, **changes))
        assert item.step_ns == pytest.approx(truth_ns, rel=0.06 if cap_mb < now else allowed), cap_mb
        assert item.interpolated == (cap_mb < now)
    assert found[100].num_buckets == 1 and found[100].step_ns > found[10].step_ns


def test_the_fit_is_reported() -> None:
    (fit,) = foretell(run_job(make_job(5), 5)).fits
    assert (fit.kind, fit.group) == ("all_reduce", "default") and fit.error_ratio < 0.02
    assert fit.latency_ns == pytest.approx(LATENCY_NS, rel=0.1)
    assert fit.bytes_per_s == pytest.approx(1500 * MIB, rel=0.02)


def test_transfers_that_no_line_explains_give_no_answer() -> None:
    """By the shared rules, all buckets that are ready are under way at once."""
    report = foretell(run_job(make_job(5, mb_per_s=600, rules="shared"), 5))
    assert [item.reason for item in report.unanswered] == [NoForecast.INEXACT]


def test_a_poorer_fit_widens_the_interval() -> None:
    calm, noisy = (
        find_forecasts(run_job(make_job(5, mb_per_s=600, jitter_ratio=jitter), 5), ChangedSetting.BUCKET_MB)[
            100
        ].saved_ratio
        for jitter in (0.001, 0.1)
    )
    assert noisy.high - noisy.low > 3 * (calm.high - calm.low) > 0


def test_without_the_configured_size_the_buckets_tell_it() -> None:
    run = simulate(make_job(5), seed=1, truth=False).run
    assert {value: item.interpolated for value, item in find_forecasts(run, ChangedSetting.BUCKET_MB).items()} == {
        1: True, 2: True, 10: False, 25: False, 50: False, 100: False
    }  # fmt: skip


def test_buckets_of_one_size_give_no_answer() -> None:
    report = foretell(simulate(SimulatedJob(num_ranks=4, ranks_per_host=4), seed=1, truth=False).run)
    assert [(item.setting, item.reason) for item in report.unanswered] == [(ChangedSetting.BUCKET_MB, NoForecast.ALIKE)]
    assert {item.setting for item in report.forecasts} == {ChangedSetting.GRAD_ACCUM}


@pytest.mark.timeout(30)
def test_sizes_that_need_very_many_buckets_give_no_answer() -> None:
    """A damaged record may hold 10^15 bytes; nothing is made for each MiB of them."""
    for size_bytes, too_small in ((10**15, (1, 2, 5, 10, 25, 50, 100)), (10**10, (1, 2, 5, 10))):
        made = tuple(
            SimulatedBucket(size_bytes=size, backward_ratio=0.2, transfer_ns=MS + 8 * MS * size / size_bytes)
            for size in (*[size_bytes] * 4, size_bytes // 2)
        )
        job = SimulatedJob(num_ranks=4, ranks_per_host=4, num_steps=20, buckets=made)
        report = foretell(simulate(job, seed=1, truth=False).run)
        assert Unanswered(
            setting=ChangedSetting.BUCKET_MB, values=too_small, reason=NoForecast.TOO_SMALL
        ) in report.unanswered  # fmt: skip


def test_without_single_collectives_there_is_no_answer() -> None:
    report = foretell(make_run(num_ranks=4, num_steps=20, meta={"strategy": "ddp"}))
    assert [item.reason for item in report.unanswered] == [NoForecast.NOT_RECORDED]


def test_one_process_has_no_forecasts() -> None:
    assert analyze(make_run(num_ranks=1, num_steps=20)).forecasts is None


@pytest.mark.parametrize("recorded", [1, 2])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_other_micro_steps_take_as_long_as_jobs_with_them(strategy: str, recorded: int) -> None:
    job = SimulatedJob(strategy=strategy, num_ranks=4, ranks_per_host=4, micro_steps=recorded, transfer_ns=80 * MS)
    run = simulate(job, seed=1, truth=False).run
    found, now = find_forecasts(run, ChangedSetting.GRAD_ACCUM), analyze(run)
    assert list(found) == ([2, 4] if recorded == 1 else [1, 4, 8])
    for wanted, item in found.items():
        truth_ns = measure(dataclasses.replace(job, micro_steps=int(wanted)))
        assert item.step_ns == pytest.approx(truth_ns, rel=0.02), wanted
        assert now.headline.tokens_per_s is not None and now.causes is not None
        work = wanted / recorded * now.causes.step_ns / item.step_ns
        assert item.tokens_per_s == pytest.approx(now.headline.tokens_per_s * work, rel=0.01)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("more", [0, 1, 6, 7, 8, 23, 10**12])
def test_further_micro_steps_are_those_of_other_steps_in_turn(more: int) -> None:
    """However many there are: a damaged record may say 10^12."""
    cycles = make_cycles(draw_own(np.random.default_rng(1), 2, 7))
    own_ns = cycles.phase_ns[:, :, [OWN_PARTS.index(phase) for phase in REPEATED]].sum(axis=2) / 3
    expected_ns = cycles.work_ns[:, :, 0] + more // 7 * own_ns.sum(axis=1, keepdims=True)
    for number in range(more % 7):
        expected_ns += np.roll(own_ns, number + 1, axis=1)
    found = repeat_computing(cycles, 0, recorded=3, wanted=3 + more)
    np.testing.assert_allclose(found.work_ns[:, :, 0], expected_ns, rtol=1e-12)


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_parameters_that_stay_gathered_take_as_long_as_a_job_that_keeps_them(strategy: str) -> None:
    job = SimulatedJob(strategy=strategy, num_ranks=4, ranks_per_host=4, transfer_ns=80 * MS)
    found = find_forecasts(simulate(job, seed=1, truth=False).run, ChangedSetting.RESHARD_AFTER_FORWARD)
    kept = dataclasses.replace(job, reshard_after_forward=False)
    assert found[0].step_ns == pytest.approx(measure(kept), rel=0.02)
    assert not find_forecasts(simulate(kept, seed=1, truth=False).run, ChangedSetting.RESHARD_AFTER_FORWARD)


def divide(sizes: list[float], cap: float, wanted: float) -> list[float]:
    recorded = Buckets(first=0, end=len(sizes), sizes_bytes=np.array(sizes), cap_bytes=cap)
    return divide_gradients(recorded, wanted).tolist()


def test_the_recorded_size_gives_the_recorded_buckets() -> None:
    assert divide([27.3, 26.1, 9.4], 25, 25) == np.cumsum([27.3, 26.1, 9.4]).tolist()


def test_a_gradient_that_closed_a_bucket_is_not_divided() -> None:
    """150 of the second bucket's 160 belong to one gradient, before which are 10 at most; others exceed by 2."""
    assert divide([12, 160, 5], 10, 4) == [6, 12, 18, 172, 177]
    assert divide([12, 160, 5], 10, 30) == [172, 177]


def test_larger_buckets_exceed_their_size_as_recorded_ones_do() -> None:
    assert divide([26, 26, 26, 26, 9], 25, 50) == [52, 104, 113]
    assert divide([26, 26, 26, 26, 9], 25, 40) == [41, 82, 113]
    assert divide([26, 26, 26, 26, 9], 25, 500) == [113]


def test_of_long_runs_some_steps_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_job(make_job(5), 5)
    every = find_forecasts(run, ChangedSetting.BUCKET_MB)
    monkeypatch.setattr(buckets, "MAX_CELLS", 4 * 17 * 6)  # of 19 steps of 17 collectives, every fourth
    some = find_forecasts(run, ChangedSetting.BUCKET_MB)
    for cap_mb, item in every.items():
        assert some[cap_mb].step_ns == pytest.approx(item.step_ns, rel=0.01) and some[cap_mb] != item


def test_late_ranks_are_late_with_other_buckets_too() -> None:
    """The delay of one rank in backward stays: steps are as much longer."""
    late = {**USUAL_PHASE_NS, Phase.BACKWARD: 90 * MS}
    found = find_forecasts(run_job(make_job(5, mb_per_s=6000, phase_ns=late), 5), ChangedSetting.BUCKET_MB)
    assert found[25].step_ns == pytest.approx(measure(make_job(25, mb_per_s=6000, phase_ns=late)), rel=0.01)
