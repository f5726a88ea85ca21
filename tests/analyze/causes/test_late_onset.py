"""A slowdown that begins or ends within the run: what is said of it is about the steps in which it acts."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.facts.run import COLUMN, Phase
from distprof.render.sections.cause_times import format_when
from distprof.render.sections.cause_words import list_causes
from distprof.render.sections.verdict import describe_verdict
from distprof.render.wandb.wandb_summary import make_summary
from distprof.report.report import Report
from tests.factories import MS

NUM_RANKS, NUM_STEPS, SINCE = 4, 120, 100
LATE = Delay(rank=2, phase=Phase.FORWARD, delay_ns=60 * MS, first_step=SINCE)


def judge(*delays: Delay, strategy: str = "fsdp", num_steps: int = NUM_STEPS) -> tuple[Report, np.ndarray, np.ndarray]:
    """The report, true lengths of the steps, and what the delays cost in each."""
    job = SimulatedJob(strategy=strategy, num_ranks=NUM_RANKS, num_steps=num_steps, delays=delays)  # type: ignore[arg-type]
    made = simulate(job, seed=5)
    return analyze(made.run), made.truth.step_ns, made.truth.step_ns - made.truth.without_delays_ns


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_what_began_late_is_priced_over_its_steps(strategy: str) -> None:
    report, step_ns, lost_ns = judge(LATE, strategy=strategy)
    verdict, acts = report.verdict, slice(SINCE, None)
    assert (verdict.rank, verdict.phase, verdict.critical) == (2, "forward", True)
    assert verdict.lost_ratio is not None and verdict.lost_ratio.value < 0.1 and verdict.stretch_lost_ratio is not None
    true_ratio = float(lost_ns[acts].sum() / step_ns[acts].sum())
    assert verdict.stretch_lost_ratio.value == pytest.approx(true_ratio, rel=0.05)
    assert verdict.stretch_lost_ratio.low <= true_ratio <= verdict.stretch_lost_ratio.high
    assert verdict.waited_ns == pytest.approx((NUM_RANKS - 1) * float(lost_ns[acts].mean()), rel=0.05)
    assert verdict.late_ns == pytest.approx(60 * MS, rel=0.05)
    own = verdict.evidence[0]
    assert own.rank_ns - own.others_ns == pytest.approx(60 * MS, rel=0.05)


def test_what_began_where_nothing_was_recorded_is_told_from_which_step_to_which() -> None:
    job = SimulatedJob(strategy="ddp", num_ranks=NUM_RANKS, num_steps=160, delays=(LATE,))
    run = simulate(job, seed=5).run
    run.rows[:, 92:108, COLUMN["shadow"]] = 1
    report = analyze(run)
    assert report.causes is not None
    late = next(cause for cause in report.causes.causes if cause.rank == 2)
    assert (late.first_step, late.unseen_before) == (108, 16)
    assert "late in every step since a step from 92 to 108: its compute" in describe_verdict(report)
    ended = structs.replace(late, last_step=130)
    assert format_when(ended, report) == "since a step from 92 to 108, until step 130"
    assert format_when(structs.replace(ended, unseen_before=0), report) == "from step 108 to step 130"


def test_what_ended_where_nothing_was_recorded_is_told_from_which_step_to_which() -> None:
    delay = structs.replace(LATE, first_step=0, last_step=100)
    run = simulate(SimulatedJob(strategy="ddp", num_ranks=NUM_RANKS, num_steps=160, delays=(delay,)), seed=5).run
    run.rows[:, 92:108, COLUMN["shadow"]] = 1
    report = analyze(run)
    assert "late in every step until a step from 91 to 107: its compute" in describe_verdict(report)
    late = next(cause for cause in report.causes.causes if cause.rank == 2) if report.causes else None
    assert late is not None and (late.last_step, late.unseen_after) == (91, 16)


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.OPTIMIZER])
def test_the_end_of_a_step_belongs_to_it_and_not_to_the_next(phase: Phase) -> None:
    """A cycle, from one wait to the next, begins with the optimizer of the step before."""
    delay = Delay(rank=2, phase=phase, delay_ns=60 * MS, first_step=50, last_step=80)
    report, _, _ = judge(delay)
    late = next(cause for cause in report.causes.causes if cause.rank == 2) if report.causes else None
    assert late is not None and (late.phase, late.first_step, late.last_step) == (phase.value, 50, 80)
    assert "late in every step from step 50 to step 80: its " in describe_verdict(report)


def test_what_it_costs_the_whole_job_is_by_the_time_of_all_steps_where_few_are_recorded() -> None:
    job = SimulatedJob(
        strategy="ddp", num_ranks=NUM_RANKS, num_steps=400, delays=(structs.replace(LATE, first_step=120),)
    )
    made = simulate(job, seed=5)
    every, at = analyze(made.run), np.arange(400)
    made.run.rows[:, (at >= 100) & (at % 32 >= 8), COLUMN["shadow"]] = 1
    report, lost_ns = analyze(made.run), made.truth.step_ns - made.truth.without_delays_ns
    true_ratio = float(lost_ns.sum() / made.truth.step_ns.sum())
    assert report.verdict.rank == 2 and report.verdict.lost_ratio is not None and report.causes is not None
    assert report.verdict.lost_ratio.value == pytest.approx(true_ratio, rel=0.06)  # 72 of 172 recorded steps
    assert every.causes is not None
    late, known = (
        next(cause for cause in causes if cause.rank == 2) for causes in (report.causes.causes, every.causes.causes)
    )
    assert late.joint_ns / report.causes.step_ns == pytest.approx(known.joint_ns / every.causes.step_ns, rel=0.1)
    parts_ns = sum(cause.joint_ns for cause in report.causes.causes) + report.causes.remainder_ns
    assert report.causes.ideal_ns + parts_ns == pytest.approx(report.causes.step_ns)
    assert report.causes.ideal_ns == pytest.approx(every.causes.ideal_ns, rel=0.01)
    assert report.causes.remainder_ns == pytest.approx(every.causes.remainder_ns, abs=0.5 * MS)
    assert late.stretch_saved_if_only_this_ratio is not None
    acts = slice(120, None)
    then = float(lost_ns[acts].sum() / made.truth.step_ns[acts].sum())
    assert late.stretch_saved_if_only_this_ratio.value == pytest.approx(then, rel=0.06)


def test_the_sentence_and_the_tables_say_both_shares() -> None:
    report, _, _ = judge(LATE)
    text = describe_verdict(report)
    assert "ritical: rank 2 is 59.9 ms late" in text and "in every step since step 100: its compute" in text
    assert "makes these steps 3" in text and ", and the whole job " in text
    assert report.verdict.stretch_lost_ratio is not None and report.verdict.lost_ratio is not None
    row = next(row for row in list_causes(report) if row[0] == "slow rank")
    assert row[4] == "yes" and row[5].endswith(" then") and row[8] == f"{100 * report.verdict.lost_ratio.value:.1f} %"
    summary = make_summary(report)
    assert summary["summary/verdict_stretch_lost_ratio"] == report.verdict.stretch_lost_ratio.value
    assert summary["summary/verdict_lost_ratio"] == report.verdict.lost_ratio.value


@pytest.mark.parametrize("since", [62, 70, 80, 100])
def test_steps_that_a_rank_makes_longer_are_no_stalls_of_nobody_beside_it(since: int) -> None:
    report, step_ns, lost_ns = judge(structs.replace(LATE, first_step=since), strategy="ddp")
    assert report.causes is not None
    assert [cause.kind.value for cause in report.causes.causes] == ["slow_rank", "jitter", "communication"]
    late = report.causes.causes[0]
    assert late.joint_ns / report.causes.step_ns == pytest.approx(float(lost_ns.sum() / step_ns.sum()), rel=0.06)


@pytest.mark.parametrize(
    "delay",
    [
        Delay(rank=2, phase=Phase.FORWARD, delay_ns=20 * MS),
        Delay(rank=2, phase=Phase.FORWARD, delay_ns=60 * MS, every=5),
    ],
    ids=["always", "every fifth step"],
)
def test_what_acts_all_along_is_priced_over_the_job(delay: Delay) -> None:
    verdict = judge(delay)[0].verdict
    assert verdict.rank == 2 and verdict.stretch_lost_ratio is None and verdict.lost_ns is not None
    assert verdict.waited_ns == (NUM_RANKS - 1) * verdict.lost_ns.value


def test_all_causes_together_are_as_sure_as_each_where_they_act_in_different_stretches() -> None:
    first = Delay(rank=1, phase=Phase.FORWARD, delay_ns=40 * MS, last_step=59)
    second = Delay(rank=2, phase=Phase.FORWARD, delay_ns=60 * MS, first_step=60)
    report, step_ns, lost_ns = judge(first, second)
    together = next(item.saved_ratio for item in report.what_if if item.change.startswith("all "))
    assert report.causes is not None
    parts = [cause.saved_if_only_this_ratio for cause in report.causes.causes if cause.rank is not None]
    assert len(parts) == 2
    assert together.high - together.low <= 1.2 * sum(part.high - part.low for part in parts)
    assert together.low <= lost_ns[1:].mean() / step_ns[1:].mean() <= together.high


@pytest.mark.parametrize("delay_ms", [20, 0])
def test_of_two_ranks_on_cores_that_drift_the_one_that_becomes_slow_is_named(delay_ms: int) -> None:
    """Half of a backward, which varies by 8 % from step to step: each rank's excess is the other's, and both change."""
    job = SimulatedJob(
        num_ranks=2, num_steps=NUM_STEPS, jitter_ratio=0.08, speed_ratio=0.02, speed_autocorrelation=0.9,
        delays=(Delay(rank=1, phase=Phase.BACKWARD, delay_ns=delay_ms * MS, first_step=60),),
    )  # fmt: skip
    for seed in range(4):
        report = analyze(simulate(job, seed=seed).run)
        found = (report.verdict.rank, report.verdict.phase)
        assert found == ((1, "backward") if delay_ms else (None, None))
        if delay_ms:
            (cause,) = [item for item in report.causes.causes if item.rank == 1] if report.causes else []
            assert cause.first_step == pytest.approx(60, abs=2) and cause.late_ns == pytest.approx(20 * MS, rel=0.15)
