"""Forecasts of other settings, against simulated jobs that have those settings."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.predict.micro_steps import REPEATED, repeat_computing
from distprof.facts.run import OWN_PARTS, Run
from distprof.report.wait_report import ChangedSetting, Forecast
from tests.analyze.synthetic_cycles import draw_own, make_cycles
from tests.factories import MS, make_run


def find_forecasts(run: Run, setting: ChangedSetting) -> dict[float, Forecast]:
    return {item.value: item for item in analyze(run).forecasts if item.setting is setting}


def measure(job: SimulatedJob) -> float:
    return float(simulate(job, seed=2, truth=False).truth.step_ns[1:].mean())


def test_one_process_has_no_forecasts() -> None:
    assert analyze(make_run(num_ranks=1, num_steps=20)).forecasts == ()


def test_without_single_collectives_there_are_micro_steps_of_ddp_only() -> None:
    ddp, fsdp = (analyze(make_run(num_ranks=4, num_steps=20, meta={"strategy": name})) for name in ("ddp", "fsdp"))
    assert {item.setting for item in ddp.forecasts} == {ChangedSetting.GRAD_ACCUM}
    assert fsdp.forecasts == ()


@pytest.mark.parametrize("recorded", [1, 2])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_other_micro_steps_take_as_long_as_jobs_with_them(strategy: str, recorded: int) -> None:
    job = SimulatedJob(strategy=strategy, num_ranks=4, ranks_per_host=4, micro_steps=recorded, transfer_ns=80 * MS)
    run = simulate(job, seed=1, truth=False).run
    found, now = find_forecasts(run, ChangedSetting.GRAD_ACCUM), analyze(run)
    assert list(found) == ([2, 4] if recorded == 1 else [1, 4, 8])
    for wanted, item in found.items():
        truth_ns = measure(structs.replace(job, micro_steps=int(wanted)))
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
    kept = structs.replace(job, reshard_after_forward=False)
    assert found[0].step_ns == pytest.approx(measure(kept), rel=0.02)
    assert not find_forecasts(simulate(kept, seed=1, truth=False).run, ChangedSetting.RESHARD_AFTER_FORWARD)
