"""Live runs of pipelines in which a rank is far later than usual in some steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distprof.analyze.make_report import analyze
from distprof.render.sections.cause_words import list_causes as list_cause_rows
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.render.units import format_time
from distprof.report.operations_report import PipelineCauseKind
from distprof.report.wait_report import VerdictKind
from tests.analyze.pipeline.live_jobs import MS, Job, list_causes, measure_saved, play, report, require_cost, thin
from tests.analyze.summary.test_pipeline import BACKWARD, FORWARD

STEPS = 121
STRUCK = {3, 14, 15, 29, 41, 50, 77, 90, 96, 115}
CASES: dict[str, tuple[dict[str, Any], float, str]] = {
    "forward": (
        {"longer": lambda rank, step, kind, batch: 2 * MS * (rank == 2 and kind == FORWARD and step % 5 == 3)},
        16 * MS,
        "rank 2 (stage 2) is {late} late in forward in 24 of 120 steps, every 5th step; ",
    ),
    "backward, since step 40": (
        {"longer": lambda rank, step, kind, batch: (
            3 * MS * (rank == 1 and kind == BACKWARD and step >= 40 and step % 8 == 0)
        )},
        24 * MS,
        "rank 1 (stage 1) is {late} late in backward in 11 of 120 steps, every 8th step since step 40; ",
    ),
    "data": (
        {"data_ns": lambda rank, step: 0.2 * MS + 15 * MS * (rank == 0 and step % 6 == 2)},
        15 * MS,
        "rank 0 (stage 0) is {late} late in data in 20 of 120 steps, every 6th step; ",
    ),
    "between steps": (
        {"between_ns": lambda rank, step: 0.1 * MS + 25 * MS * (rank == 3 and step % 11 == 3)},
        25 * MS,
        "rank 3 (stage 3) is {late} late between steps in 11 of 120 steps, every 11th step; ",
    ),
    "before a forward": (
        {"pauses": lambda rank, step, kind, batch: (
            20 * MS * (rank == 2 and (kind, batch) == (FORWARD, 3) and step % 5 == 3)
        )},
        20 * MS,
        "rank 2 (stage 2) is {late} late in other in 24 of 120 steps, every 5th step; ",
    ),
    "at no period": (
        {"after_ns": lambda rank, step: MS + 20 * MS * (rank == 3 and step in STRUCK)},
        20 * MS,
        "rank 3 (stage 3) is {late} late in other in 10 of 120 steps; ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rank_that_is_far_later_in_some_steps_is_named_with_these(name: str) -> None:
    """Its equals are not asked: each stage of a single replica has something else to do."""
    changes, late_ns, told = CASES[name]
    found = report(steps=STEPS, **changes)
    assert found.verdict.late_ns == pytest.approx(late_ns, rel=0.03)
    assert describe_verdict(found).startswith(told.format(late=format_time(found.verdict.late_ns)))
    usual = {"between_ns": lambda rank, step: 0.1 * MS} if "between_ns" in changes else {}
    require_cost(found, measure_saved(Job(steps=STEPS, **changes), Job(steps=STEPS, **usual)), rel=0.15)
    assert found.verdict.kind is VerdictKind.STALLS


def test_stalls_are_a_row_among_the_causes_and_say_what_to_look_at() -> None:
    found = report(steps=STEPS, **CASES["backward, since step 40"][0])
    (row, *_) = list_cause_rows(found)
    assert row[:4] == ["11 stalls", "rank 1, backward", "every 8th step, since step 40", "24.0 ms"]
    assert "rank 1 without stalls" in [what.change for what in found.what_if]
    assert describe_next(found) == "look at what rank 1 did in these steps: checkpoints, logs, the data"


def test_of_a_sample_of_steps_the_cost_is_as_uncertain_as_how_often_it_stalls() -> None:
    """16 ms in 12 of 60 recorded steps; the other ones have as many by chance."""
    changes = CASES["forward"][0]
    run, half = play(Job(steps=STEPS, **changes)), np.random.default_rng(5).random(STEPS) < 0.5
    found = analyze(thin(run, half))
    lost, whole = found.verdict.lost_ratio, report(steps=STEPS, **changes).verdict.lost_ratio
    assert (found.verdict.kind, found.verdict.rank) == (VerdictKind.STALLS, 2)
    assert " recorded steps" in describe_verdict(found)
    assert lost is not None and whole is not None
    assert lost.low < whole.value < lost.high
    assert lost.high - lost.low > 1.5 * (whole.high - whole.low)


def test_a_few_stalls_of_one_length_are_enough() -> None:
    found = report(steps=41, after_ns=lambda rank, step: MS + 25 * MS * (rank == 3 and step in {5, 14, 20, 33}))
    assert " ms late in other in 4 of 40 steps; " in describe_verdict(found)


def test_stalls_of_a_replica_are_named_too() -> None:
    found = report(
        replicas=2, stages=2, steps=STEPS,
        longer=lambda rank, step, kind, batch: 2 * MS * (rank == 3 and kind == FORWARD and step % 7 == 3),
    )  # fmt: skip
    assert (found.verdict.rank, found.verdict.late_ns) == (3, pytest.approx(16 * MS, rel=0.03))
    assert " late in forward in 17 of 120 steps, every 7th step; " in describe_verdict(found)


def test_stalls_beside_a_slow_stage_are_a_cause_of_their_own() -> None:
    found = report(
        steps=STEPS,
        longer=lambda rank, step, kind, batch: (
            MS * (rank == 2 and kind == FORWARD) + 3 * MS * (rank == 2 and kind == BACKWARD and step % 6 == 3)
        ),
    )  # fmt: skip
    assert sorted(list_causes(found)) == [(PipelineCauseKind.STALLS, 0, 2), (PipelineCauseKind.UNEVEN_STAGE, None, 2)]


@pytest.mark.parametrize("disturbed_ratio", [0.01, 0.05])
def test_what_strikes_all_ranks_at_random_names_nobody(disturbed_ratio: float) -> None:
    """Each forward or backward takes up to three times as long now and then."""
    kinds = [
        kind for seed in range(12)
        for kind, *_ in list_causes(report(seed, steps=81, disturbed_ratio=disturbed_ratio))
    ]  # fmt: skip
    assert PipelineCauseKind.STALLS not in kinds


def test_a_rank_that_is_late_from_some_step_on_does_not_stall() -> None:
    found = report(
        steps=STEPS, longer=lambda rank, step, kind, batch: 3 * MS * (rank == 1 and kind == BACKWARD and step >= 70)
    )
    assert PipelineCauseKind.STALLS not in [kind for kind, *_ in list_causes(found)]
