"""Jobs about which a profiler is easily wrong: time between steps, healthy networks, rare events, uncertain costs.

Others of the kind have their tests elsewhere: phases that cancel or are drowned by noise, autocorrelation, several
culprits and change points in ``test_slow_ranks.py``, hooks of DDP in ``tests/record/collectives/test_ddp_hooks.py``,
and the time that a DataLoader takes in ``tests/profiler/rank/test_profiler.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Between, Delay, Simulated, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.facts.run import COLUMN, FORWARDS_NOTE, Phase, Run, Stretch
from distprof.render.sections.verdict import describe_verdict
from distprof.report.report import Report
from distprof.report.wait_report import Causes
from tests.analyze.causes.test_verdict_missing import lose_rank
from tests.factories import MS, make_run

pytestmark = pytest.mark.slow

LOGGED = SimulatedJob(
    between=(Between(stretch=Stretch.LOGGING, own_ns=MS),),
    delays=(Delay(rank=1, phase=Phase.OPTIMIZER, delay_ns=20 * MS),),
)  # fmt: skip
"""The loss is reduced for a log after every step, and rank 1's optimizer is slow."""
EVALUATED = SimulatedJob(
    num_steps=60, between=(Between(stretch=Stretch.EVALUATION, own_ns=200 * MS, every=5),),
    delays=(Delay(rank=1, phase=Stretch.EVALUATION, delay_ns=200 * MS, every=5),),
)  # fmt: skip
"""All ranks evaluate every fifth step and then wait for each other; rank 1 takes twice as long."""
SAVED = SimulatedJob(num_steps=60, delays=(Delay(rank=0, phase=Stretch.CHECKPOINT, delay_ns=500 * MS, every=10),))
"""Only rank 0 saves checkpoints, and the others wait in the next step."""


def take_causes(report: Report) -> Causes:
    """The causes, whose parts are not negative and add up to the step."""
    causes = report.causes
    assert causes is not None
    parts_ns = [item.joint_ns for item in causes.causes]
    assert min(parts_ns, default=0) >= -1e-6 * causes.step_ns and causes.remainder_ns >= -1e-6 * causes.step_ns
    assert sum(parts_ns) + causes.remainder_ns + causes.ideal_ns == pytest.approx(causes.step_ns)
    return causes


def find_lost(made: Simulated) -> float:
    """The true cost of the delays, per step that follows another."""
    return float((made.truth.step_ns - made.truth.without_delays_ns)[1:].mean())


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize(
    ("job", "rank", "phase"), [(LOGGED, 1, "optimizer"), (EVALUATED, 1, "evaluation"), (SAVED, 0, "checkpoint")]
)
def test_what_ranks_wait_for_between_steps_has_a_name(job: SimulatedJob, rank: int, phase: str, num_ranks: int) -> None:
    made = simulate(structs.replace(job, num_ranks=num_ranks), seed=1)
    report = analyze(made.run)
    verdict, causes = report.verdict, take_causes(report)
    assert (verdict.rank, verdict.phase, verdict.critical) == (rank, phase, True)
    assert verdict.lost_ns is not None and verdict.lost_ns.value == pytest.approx(find_lost(made), rel=0.05)
    assert causes.step_ns == pytest.approx(made.truth.step_ns[1:].mean(), rel=0.01)


@pytest.mark.parametrize(("job", "part"), [(LOGGED, "logging"), (EVALUATED, "evaluation"), (SAVED, "checkpoint")])
def test_the_time_between_steps_is_told_and_what_ifs_answer_for_all_of_the_cycle(job: SimulatedJob, part: str) -> None:
    report = analyze(simulate(job, seed=1).run)
    assert report.between is not None and part in [item.part for item in report.between.parts]
    cycle_ns = np.mean([mean_ns for mean_ns in report.between.cycle_mean_ns if mean_ns is not None])
    assert take_causes(report).step_ns == pytest.approx(cycle_ns, rel=0.01)
    fixes = [item for item in report.what_if if not item.change.endswith(" ranks")]
    assert fixes and all(item.step_ns <= cycle_ns for item in fixes)
    assert not [item for item in report.stalls if item.rank != job.delays[0].rank]


def test_a_checkpoint_of_one_rank_is_listed_among_the_long_steps() -> None:
    stalls = analyze(simulate(SAVED, seed=1).run).stalls
    assert sorted((item.step, item.rank, item.phase) for item in stalls) == [
        (step, 0, "checkpoint") for step in range(10, 60, 10)
    ]


def test_a_long_step_that_is_nobodys_tells_what_the_ranks_did_before_it() -> None:
    """All ranks save a checkpoint of 500 ms before steps 20 and 40."""
    between = (Between(stretch=Stretch.CHECKPOINT, own_ns=500 * MS, every=20, synchronised=False),)
    stalls = analyze(simulate(SimulatedJob(num_ranks=4, between=between), seed=1).run).stalls
    assert sorted((item.step, item.rank, item.phase) for item in stalls) == [
        (20, None, "checkpoint"), (40, None, "checkpoint"),
    ]  # fmt: skip


@pytest.mark.parametrize(("num_ranks", "ranks_per_host"), [(16, 8), (32, 8), (32, 4)])
def test_no_link_of_a_healthy_network_is_named_and_a_late_rank_is(num_ranks: int, ranks_per_host: int) -> None:
    """Under FSDP moving data takes a quarter of the step; rank 9 is late by a fifth of it."""
    job = SimulatedJob(strategy="fsdp", num_ranks=num_ranks, ranks_per_host=ranks_per_host, num_steps=30)
    late = structs.replace(job, delays=(Delay(rank=9, phase=Phase.BACKWARD, delay_ns=26 * MS),))
    for seed in range(3):
        causes = take_causes(analyze(simulate(job, seed=seed, truth=False).run))
        assert {item.kind for item in causes.causes} <= {"jitter", "communication"}
        verdict = analyze(simulate(late, seed=seed, truth=False).run).verdict
        assert (verdict.kind, verdict.rank, verdict.phase) == ("slow_rank", 9, "backward")


@pytest.mark.parametrize("seed", range(4))
def test_five_stalls_in_fifty_steps_are_one_ranks_and_in_the_headline(seed: int) -> None:
    job = SimulatedJob(delays=(Delay(rank=3, phase=Phase.FORWARD, delay_ns=500 * MS, count=5),))
    made = simulate(job, seed=seed)
    report = analyze(made.run)
    cause = take_causes(report).causes[0]
    assert (cause.kind, cause.rank, cause.phase, cause.critical) == ("stalls", 3, "forward", True)
    assert cause.saved_if_only_this_ns.value == pytest.approx(find_lost(made), rel=0.1)
    assert (report.verdict.kind, report.verdict.rank) == ("stalls", 3)


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_a_rank_whose_every_tenth_step_is_three_times_as_long_is_named_with_all_it_costs(num_ranks: int) -> None:
    """Forward and backward of such a step are stretched by 60 and 100 ms: one cause, and not two."""
    delays = tuple(
        Delay(rank=1, phase=phase, factor=3.0, every=10, first_step=5) for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    made = simulate(SimulatedJob(num_ranks=num_ranks, delays=delays), seed=2)
    report = analyze(made.run)
    named = [item for item in take_causes(report).causes if item.rank is not None]
    assert [(item.kind, item.rank, item.phase, item.period) for item in named] == [("stalls", 1, "backward", 10)]
    assert named[0].late_ns == pytest.approx(160 * MS, rel=0.05)
    assert named[0].saved_if_only_this_ns.value == pytest.approx(find_lost(made), rel=0.05)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_what_a_rank_does_now_and_then_outside_the_phases_is_no_compute(strategy: Literal["ddp", "fsdp"]) -> None:
    """Its last 25 ms of a step are waited for in the next."""
    delay = Delay(rank=3, phase=Phase.OTHER, delay_ns=25 * MS, share_ratio=0.3)
    made = simulate(SimulatedJob(strategy=strategy, num_steps=100, delays=(delay,)), seed=1)
    verdict = analyze(made.run).verdict
    assert (verdict.rank, verdict.phase, verdict.cause) == (3, "other", "outside the phases")
    assert verdict.pattern == "intermittent" and verdict.late_ns == pytest.approx(25 * MS, rel=0.02)
    assert verdict.lost_ns is not None and verdict.lost_ns.value == pytest.approx(find_lost(made), rel=0.1)


def fetch_late(run: Run) -> Run:
    """The run if each rank had fetched its next batch just after a step instead of at its begin."""
    rows = run.rows.copy()
    data_ns = rows[:, :, COLUMN["data_host_ns"]].copy()
    rows[:, :, COLUMN["data_host_ns"]] = 0
    rows[:, :, COLUMN["between_data_host_ns"]] = data_ns
    rows[:, :, COLUMN["begin_host_ns"]] += data_ns
    rows[:, :, COLUMN["step_host_ns"]] -= data_ns
    return structs.replace(run, rows=rows)


def test_a_batch_is_data_wherever_it_is_fetched() -> None:
    delay = Delay(rank=2, phase=Phase.DATA, delay_ns=15 * MS)
    inside = SimulatedJob(num_ranks=4, delays=(delay,))
    for run in (
        simulate(structs.replace(inside, data_between=True), seed=1).run,
        fetch_late(simulate(inside, seed=1).run),
    ):
        verdict = analyze(run).verdict
        assert (verdict.rank, verdict.phase, verdict.cause) == (2, "data", "input")
        assert verdict.late_ns == pytest.approx(15 * MS, rel=0.02)


def test_a_cost_that_may_be_small_is_not_critical() -> None:
    """Rank 2 is late by 22 ms, and its steps drift by as much."""
    job = SimulatedJob(
        num_ranks=4, num_steps=60, jitter_ratio=0.15, autocorrelation=0.8,
        delays=(Delay(rank=2, phase=Phase.DATA, delay_ns=22 * MS),),
    )  # fmt: skip
    report = analyze(simulate(job, seed=6).run)
    lost = report.verdict.lost_ratio
    assert report.verdict.rank == 2 and lost is not None
    assert lost.low < 0.1 < lost.value
    assert not report.verdict.critical and not any(item.critical for item in take_causes(report).causes)


def make_drifting(last_ms: float) -> Run:
    """Rank 1 is 15 ms late in the first step, and later by as much less; forward takes 30 ms, within 2 %."""
    draws = np.random.default_rng(0)
    forward = 30 * MS * (1 + draws.normal(0, 0.02, (8, 100)))
    forward[1] += np.linspace(15, last_ms, 100) * MS
    waits = forward.max(axis=0) - forward + 3 * MS
    return make_run(num_ranks=8, num_steps=100, host_ns={"forward": forward, "backward": 50 * MS, "all_reduce": waits})


def test_a_rank_that_gets_slower_little_by_little_is_one_cause() -> None:
    causes = take_causes(analyze(make_drifting(5.0)))
    named = [item for item in causes.causes if item.rank is not None]
    assert [(item.rank, item.phase, item.whole) for item in named] == [(1, "forward", True)]
    assert named[0].late_ns == pytest.approx(10 * MS, rel=0.1)


def test_a_late_rank_whose_phase_was_not_measured_has_no_phase() -> None:
    run = simulate(
        SimulatedJob(num_ranks=4, delays=(Delay(rank=1, phase=Phase.FORWARD, delay_ns=10 * MS),)), seed=2
    ).run
    rows = run.rows.copy()
    rows[1:3, :, COLUMN["forward_host_ns"]] = np.nan
    verdict = analyze(structs.replace(run, rows=rows)).verdict
    assert (verdict.rank, verdict.phase, verdict.cause) == (1, None, None)


@pytest.mark.parametrize(
    "delay",
    [
        Delay(rank=5, phase=Phase.FORWARD, delay_ns=30 * MS, piece=1),
        Delay(rank=None, host=1, phase=Phase.FORWARD, delay_ns=30 * MS),
    ],
    ids=["rank", "host"],
)
def test_the_ranks_of_other_groups_notice_later_and_do_not_contradict(delay: Delay) -> None:
    """Ranks 4 to 7, all of one host, share parameters; the others meet them only when they reduce gradients."""
    job = SimulatedJob(strategy="hsdp", num_ranks=8, ranks_per_host=4, shard_size=4, delays=(delay,))
    verdict = analyze(simulate(job, seed=1).run).verdict
    assert (verdict.rank, verdict.hosts) == ((5, ()) if delay.host is None else (None, ("host-1",)))
    assert verdict.confirmed and verdict.critical


def test_stalls_that_are_nobodys_are_not_critical() -> None:
    """Infinite variance: three of fifty steps cost a quarter of the job."""
    causes = take_causes(analyze(simulate(SimulatedJob(pareto_ratio=0.3), seed=1).run)).causes
    assert [(item.rank, item.critical) for item in causes if item.kind == "stalls"] == [(None, False)]


def test_long_steps_in_which_all_ranks_do_the_same_tell_what_it_is() -> None:
    between = (Between(stretch=Stretch.EVALUATION, own_ns=100 * MS, every=10),)
    causes = take_causes(analyze(simulate(SimulatedJob(num_steps=60, between=between), seed=1).run)).causes
    (stalls,) = (item for item in causes if item.kind == "stalls")
    assert (stalls.rank, stalls.phase, stalls.critical) == (None, "evaluation", False)


def test_stalls_of_a_rank_are_told_where_another_is_missing() -> None:
    job = structs.replace(SAVED, num_ranks=4)
    report = analyze(lose_rank(simulate(job, seed=1).run, 3))
    assert (report.verdict.kind, report.verdict.rank, report.verdict.lost_ns) == ("stalls", 0, None)
    assert describe_verdict(report) == (
        "single steps are far longer because of rank 0 while saving a checkpoint, compared with the ranks present; "
        "what they cost is not known (ranks are missing: the slowest may be one of them)"
    )


def test_a_rank_that_is_late_in_every_third_step_and_a_little_in_all_is_late_in_every_third() -> None:
    """By 3 of 9 ms on average, which once was "11 ms late in most steps"."""
    delays = (
        Delay(rank=1, phase=Phase.FORWARD, delay_ns=3 * MS),
        Delay(rank=1, phase=Phase.FORWARD, delay_ns=27 * MS, first_step=3, every=3),
    )
    report = analyze(simulate(SimulatedJob(num_ranks=4, num_steps=100, delays=delays), seed=1).run)
    (named,) = (item for item in take_causes(report).causes if item.rank is not None)
    assert (named.rank, named.phase, named.period) == (1, "forward", 3)
    assert named.late_ns == pytest.approx(30 * MS, rel=0.1)


@pytest.mark.parametrize(("more_ns", "share_ratio"), [(40 * MS, 0.3), (15 * MS, 0.4), (200 * MS, 0.3)])
def test_a_rank_that_is_late_in_every_step_and_more_so_in_some_is_one_cause(more_ns: float, share_ratio: float) -> None:
    often = Delay(rank=1, phase=Phase.FORWARD, delay_ns=more_ns, share_ratio=share_ratio)
    late = Delay(rank=1, phase=Phase.FORWARD, delay_ns=20 * MS)
    made = simulate(SimulatedJob(num_ranks=4, num_steps=100, delays=(late, often)), seed=1)
    report = analyze(made.run)
    named = [item for item in take_causes(report).causes if item.rank is not None]
    assert [(item.rank, item.phase, item.pattern, item.critical) for item in named] == [
        (1, "forward", "persistent", True)
    ]
    assert named[0].saved_if_only_this_ns.value == pytest.approx(find_lost(made), rel=0.05)


def test_stalls_beside_a_steady_lateness_are_a_cause_of_their_own() -> None:
    late = Delay(rank=1, phase=Phase.FORWARD, delay_ns=20 * MS)
    stalls = Delay(rank=1, phase=Phase.FORWARD, delay_ns=300 * MS, count=6)
    report = analyze(simulate(SimulatedJob(num_ranks=4, num_steps=100, delays=(late, stalls)), seed=1).run)
    named = [(item.kind, item.rank, item.phase) for item in take_causes(report).causes if item.rank is not None]
    assert sorted(named) == [("slow_rank", 1, "forward"), ("stalls", 1, "forward")]


def test_who_explains_a_part_of_long_steps_is_not_why_they_are_long() -> None:
    """Before every tenth step all ranks evaluate for 200 ms and rank 0 saves for 100 ms."""
    between = (Between(stretch=Stretch.EVALUATION, own_ns=200 * MS, every=10, synchronised=False),)
    save = Delay(rank=0, phase=Stretch.CHECKPOINT, delay_ns=100 * MS, every=10)
    report = analyze(simulate(SimulatedJob(num_ranks=4, num_steps=60, between=between, delays=(save,)), seed=1).run)
    cause = next(item for item in take_causes(report).causes if item.rank == 0)
    assert (cause.phase, cause.events) == ("checkpoint", 5)
    assert cause.explained_ratio == pytest.approx(1 / 3, abs=0.02)
    sentence = (
        f"{100 * cause.explained_ratio:.1f} % of that because of rank 0 while saving a checkpoint, every 10th step"
    )
    assert f"5 steps of 59 are far longer, {sentence}; without that the job" in describe_verdict(report)


@pytest.mark.parametrize(
    ("more_ns", "every", "first_step", "last_step", "told"),
    [
        (300 * MS, 8, 0, None, "24 steps of 199 are far longer, all because of rank 1 in forward, every 8th step; "),
        (300 * MS, 8, 80, None, "15 steps of 199 are far longer, {} every 8th step since step 80; "),
        (300 * MS, 8, 8, 80, "10 steps of 199 are far longer, {} every 8th step until step 80; "),
        (300 * MS, 8, 80, 150, "9 steps of 199 are far longer, {} every 8th step from step 80 to step 144; "),
        (30 * MS, 3, 80, None, "ms late in every 3rd step since step 80: its compute (forward"),
    ],
)
def test_what_comes_at_a_period_and_began_or_ended_in_mid_run_is_told_so(
    more_ns: float, every: int, first_step: int, last_step: int | None, told: str
) -> None:
    delay = Delay(
        rank=1, phase=Phase.FORWARD, delay_ns=more_ns, every=every, first_step=first_step, last_step=last_step
    )
    report = analyze(simulate(SimulatedJob(num_ranks=2, num_steps=200, delays=(delay,)), seed=1).run)
    assert told.format("all because of rank 1 in forward,") in describe_verdict(report)


def test_all_of_a_long_step_is_explained_where_nothing_else_makes_it_long() -> None:
    report = analyze(simulate(SAVED, seed=1).run)
    assert take_causes(report).causes[0].explained_ratio == pytest.approx(1, abs=0.02)
    assert "5 steps of 59 are far longer, all because of rank 0 while saving a checkpoint" in describe_verdict(report)


@pytest.mark.parametrize("noting", [range(8), [1], []])
def test_evaluation_is_called_what_was_seen_of_it(noting: Sequence[int]) -> None:
    """Ranks roll out before every fifth step, rank 1 for longer; only what all of them note is not called otherwise."""
    run = simulate(structs.replace(EVALUATED, num_ranks=8), seed=1).run
    ranks = [structs.replace(each, notes=(FORWARDS_NOTE,) if each.rank in noting else ()) for each in run.ranks]
    report = analyze(structs.replace(run, ranks=tuple(ranks)))
    name = "forward without gradients" if len(noting) == 8 else "evaluation"
    cause = next(item for item in take_causes(report).causes if item.rank == 1)
    assert (cause.phase, cause.cause, report.verdict.phase, report.verdict.cause) == (name,) * 4
    assert report.between is not None and name in [part.part for part in report.between.parts]
    assert {stall.phase for stall in report.stalls} <= {None, name}
    where = "in forwards without gradients" if len(noting) == 8 else "in evaluation"
    assert where in describe_verdict(report)


@pytest.mark.parametrize(("part", "critical"), [(Stretch.EVALUATION, False), (Stretch.CHECKPOINT, True)])
def test_an_evaluation_that_is_one_ranks_work_is_not_critical(part: Stretch, critical: bool) -> None:
    """Rank 0 alone does it, for 300 ms before every tenth step: a fifth of the job."""
    alone = Delay(rank=0, phase=part, delay_ns=300 * MS, every=10)
    report = analyze(simulate(SimulatedJob(num_ranks=4, num_steps=60, delays=(alone,)), seed=1).run)
    assert (report.verdict.rank, report.verdict.phase, report.verdict.critical) == (0, part, critical)
    assert take_causes(report).causes[0].critical is critical
    assert report.verdict.lost_ratio is not None and report.verdict.lost_ratio.value > 0.1


@pytest.mark.parametrize("part", [Phase.OPTIMIZER, Stretch.BETWEEN])
def test_a_stall_before_a_shadow_step_is_one_of_its_kind(part: Phase | Stretch) -> None:
    """Rank 1 of two stalls four times, which three would not be enough for; once it does so where the cycle ends in a
    step without instruments: in the optimizer of the step before, or between the two."""

    def stall(*steps: int) -> Run:
        delays = tuple(Delay(rank=1, phase=part, delay_ns=200 * MS, first_step=step, last_step=step) for step in steps)
        return simulate(SimulatedJob(num_ranks=2, shadow_every=10, delays=delays), seed=3, truth=False).run

    recorded = [step for step in range(2, 49) if not stall(1, 2, 3, 4).column("shadow")[0, step - 1 : step + 2].any()]
    shadow = int(np.flatnonzero(stall(1, 2, 3, 4).column("shadow")[0])[2])
    before = shadow - 1 if part is Phase.OPTIMIZER else shadow
    four = [recorded[index] for index in (1, 5, 11, 20)]
    for steps, rank in (([*four[:3], before], 1), (four, 1), ([*four[:3], four[2]], None)):
        assert analyze(stall(*steps)).verdict.rank == rank
