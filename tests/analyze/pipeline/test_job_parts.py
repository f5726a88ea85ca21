"""Live runs of pipelines in which somebody is slow in a part of the job only."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze.make_report import analyze
from distprof.analyze.pipeline.job_parts import find_slow_part
from distprof.render.sections.verdict import describe_verdict
from distprof.report.operations_report import PipelineCauseKind
from tests.analyze.pipeline.live_jobs import (
    MS,
    STEPS,
    WARMUP,
    Job,
    list_causes,
    measure_saved,
    play,
    report,
    require_cost,
    thin,
)
from tests.analyze.summary.test_pipeline import BACKWARD, FORWARD

STEP = np.arange(121)
LATER = Job(
    replicas=2, stages=2, steps=len(STEP),
    longer=lambda rank, step, kind, batch: MS * (rank == 1 and kind == BACKWARD and step >= 70),
)  # fmt: skip
"""Rank 1 is late in every backward from step 70 on."""


@pytest.mark.parametrize(
    ("first", "last", "when"),
    [(21, 41, "since step 21, "), (0, 20, "until step 19, "), (13, 28, "from step 13 to step 27, ")],
)
def test_a_rank_that_is_slow_in_a_part_of_the_job_only_is_named_with_that_part(
    first: int, last: int, when: str
) -> None:
    job = Job(
        replicas=2, stages=2,
        longer=lambda rank, step, kind, batch: MS * (rank == 1 and kind == BACKWARD and first <= step < last),
    )  # fmt: skip
    found = analyze(play(job))
    assert list_causes(found) == [(PipelineCauseKind.SLOW_WORKER, 0, 1)]
    assert (found.verdict.rank, found.verdict.phase) == (1, "backward")
    assert describe_verdict(found).startswith(f"{when}rank 1 (replica 0, stage 1) is slow: its backward takes ")
    assert found.verdict.late_ns == pytest.approx(8 * MS, rel=0.1)
    assert found.pipeline is not None and found.causes is not None
    saved_ratio, steps = measure_saved(job, Job(replicas=2, stages=2)), STEPS - WARMUP
    require_cost(found, saved_ratio, rel=0.15)
    (cause,), (told,) = found.pipeline.causes, found.causes.causes
    assert (told.first_step, told.last_step, told.whole) == (max(first, WARMUP), last - 1, False)
    assert told.stretch_saved_if_only_this_ratio == cause.stretch_lost_ratio == found.verdict.stretch_lost_ratio
    assert cause.stretch_lost_ratio is not None
    then = saved_ratio * steps / (told.last_step - told.first_step + 1)
    assert cause.stretch_lost_ratio.value == pytest.approx(then, rel=0.2)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_rank_that_gets_its_data_late_since_some_step_is_named(replicas: int) -> None:
    found = report(
        replicas=replicas, stages=4 // replicas,
        data_ns=lambda rank, step: (12 if rank == 3 and step >= 25 else 0.2) * MS,
    )  # fmt: skip
    assert list_causes(found) == [(PipelineCauseKind.HELD_UP, replicas - 1, 4 // replicas - 1)]
    assert (found.verdict.rank, found.verdict.phase) == (3, "data")
    assert describe_verdict(found).removeprefix("critical: ").startswith("since step 25, rank 3 (")


def test_where_few_steps_are_recorded_the_others_say_since_when_and_how_much_of_the_job_it_is() -> None:
    found = analyze(thin(play(LATER), (STEP < 24) | ((STEP >= 64) & (STEP < 68)) | ((STEP >= 96) & (STEP < 106))))
    assert list_causes(found) == [(PipelineCauseKind.SLOW_WORKER, 0, 1)]
    assert describe_verdict(found).startswith("since step 70, rank 1 (replica 0, stage 1) is slow: its backward takes ")
    saved_ratio = measure_saved(LATER, structs.replace(LATER, longer=Job().longer))
    require_cost(found, saved_ratio, rel=0.15)  # 10 of 38 recorded steps are not 51 of 121
    (cause,) = found.causes.causes if found.causes is not None else ()
    assert (cause.first_step, cause.last_step, cause.unseen_before) == (70, 120, 0)


def test_a_stage_that_takes_longer_until_some_step_is_named_with_it() -> None:
    found = report(longer=lambda rank, step, kind, batch: MS * (rank == 2 and kind == FORWARD and step < 24))
    assert list_causes(found) == [(PipelineCauseKind.UNEVEN_STAGE, None, 2)]
    assert found.verdict.rank is None
    assert describe_verdict(found).startswith("until step 23, stage 2 (rank 2) takes 8")


@pytest.mark.parametrize("replicas", [1, 2])
def test_where_steps_become_longer_for_all_nobody_is_named(replicas: int) -> None:
    for seed in range(5):
        assert list_causes(report(
            seed, replicas=replicas, stages=4 // replicas, sizes=lambda replica, step, batch: 1.0 + 0.2 * (step >= 20)
        )) == []  # fmt: skip


def test_a_stage_that_is_far_slower_in_a_part_is_not_told_by_the_little_that_it_always_takes_longer() -> None:
    """Stage 1 of three takes 10 % longer in every backward, and 4 ms longer in forwards from step 16 to 27."""
    job = Job(stages=3, batches=3, longer=lambda rank, step, kind, batch: (
        0.0 if rank != 1 else 0.4 * MS if kind == BACKWARD else 4 * MS * (16 <= step < 28)
    ))  # fmt: skip
    found = analyze(play(job))
    assert [(kind, stage) for kind, _, stage in list_causes(found)] == [(PipelineCauseKind.UNEVEN_STAGE, 1)]
    assert describe_verdict(found).startswith("from step 16 to step 27, stage 1 (rank 1) takes 1")
    always = analyze(play(structs.replace(job, longer=lambda rank, step, kind, batch: 0.4 * MS * (
        rank == 1 and kind == BACKWARD
    ))))  # fmt: skip
    assert always.pipeline is not None
    assert [cause.first_step for cause in always.pipeline.causes] == [None]


def test_a_slow_part_of_which_few_steps_were_recorded_is_said_and_not_judged() -> None:
    job = Job(
        steps=len(STEP),
        longer=lambda rank, step, kind, batch: 4 * MS * (rank == 1 and kind == FORWARD and 50 <= step < 90),
    )
    found = analyze(thin(play(job), (STEP < 40) | ((STEP >= 60) & (STEP < 64)) | (STEP >= 110)))
    assert list_causes(found) == []
    assert describe_verdict(found).endswith(
        "; steps 50 to 89 take longer than the others, and too few of them were recorded"
    )


def test_what_parts_of_a_job_cost_and_the_rest_are_the_step() -> None:
    found = analyze(thin(play(LATER), (STEP < 48) | (STEP >= 105))).causes
    assert found is not None
    (cause,) = found.causes
    assert found.ideal_ns + cause.joint_ns + found.remainder_ns == pytest.approx(found.step_ns)
    assert cause.joint_ns / found.step_ns == pytest.approx(cause.saved_if_only_this_ratio.value)
    assert abs(found.remainder_ns) < 0.02 * found.step_ns


def test_the_slow_part_of_a_job_is_where_steps_take_longest() -> None:
    steady_ns = np.random.default_rng(1).normal(100.0, 1.0, 90)
    steady_ns[7] = 1_000.0
    assert find_slow_part(steady_ns) is None and find_slow_part(np.full(90, 100.0)) is None
    for first, end in ((60, 90), (0, 30), (40, 70)):
        step_ns = steady_ns.copy()
        step_ns[first:end] += 5
        assert find_slow_part(step_ns) == pytest.approx((first, end), abs=1)
        step_ns[first:end] -= 4  # by 1 %: too little
        assert find_slow_part(step_ns) is None
    step_ns = steady_ns + 5
    step_ns[20:45] -= 5
    assert find_slow_part(step_ns) == pytest.approx((45, 90), abs=1)
    step_ns = steady_ns.copy()
    step_ns[50:80] += 8
    step_ns[80:] += 6  # nearer to the slow steps than to the others
    assert find_slow_part(step_ns) == pytest.approx((50, 90), abs=1)
    step_ns[80:] -= 4
    assert find_slow_part(step_ns) == pytest.approx((50, 80), abs=1)
