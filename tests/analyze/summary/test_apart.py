"""A rank that does other work than most: it is there, and shrinks nobody's steps."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.run import Run
from distprof.render.sections.ends import describe_ends
from distprof.render.sections.sections import list_rank_sections
from tests.factories import MS, USUAL_NS, drop_rows, make_run

TRAIN = np.array([[1.0], [1.0], [1.0], [0.0]])


def make_evaluator_job(num_evaluations: int) -> Run:
    """Ranks 0 to 2 train for 20 steps, and rank 3 has so many steps of 1 ms, of forwards."""
    times = {phase: TRAIN * value + (1 - TRAIN) * MS * (phase == "forward") for phase, value in USUAL_NS.items()}
    run = make_run(num_ranks=4, num_steps=20, host_ns=times)
    return drop_rows(run, 3, num_evaluations) if num_evaluations < 20 else run


def test_its_few_steps_leave_the_others_theirs() -> None:
    report = analyze(make_evaluator_job(2))
    assert (report.coverage.steps_measured, report.coverage.ranks_missing, report.coverage.complete) == (19, (), True)
    assert report.coverage.ranks_present == (0, 1, 2)
    assert report.ranks[3].apart == "no training step; forwards without gradients in 2 steps of its own"
    assert report.coverage.notes[0].startswith("rank 3: no training step; forwards without gradients in 2 steps")
    assert not describe_ends(report)


def test_its_times_are_in_no_statistic_even_if_it_has_all_steps() -> None:
    """All phases of ranks 0 to 2 are equal, so that nothing spreads; rank 3 would be the least."""
    report = analyze(make_evaluator_job(20))
    assert report.coverage.steps_measured == 19
    assert all(phase.mean_ns[3] is None and phase.spread_ns.min == phase.spread_ns.max for phase in report.phases)
    assert report.between is None or report.between.cycle_mean_ns[3] is None
    assert all(kind.count_per_step[3] is None for kind in report.communication)
    assert report.headline.busiest is None or report.headline.busiest.rank != 3


def test_a_rank_without_a_step_has_a_row_that_says_what_it_did() -> None:
    run = drop_rows(make_evaluator_job(20), 3, 0)
    infos = (*run.ranks[:3], structs.replace(run.ranks[3], forwards=40))
    report = analyze(structs.replace(run, ranks=infos))
    assert report.ranks[3].apart == "no training step; 40 forwards without gradients"
    assert (report.coverage.steps_measured, report.coverage.ranks_missing) == (19, ())
    did = next(column for column in list_rank_sections(report)[0].columns if column.head == "did")
    assert did.cells == ("", "", "", "no training step; 40 forwards without gradients")
    assert not describe_ends(report)
    missing = analyze(run)  # nothing says that it took part
    assert missing.coverage.ranks_present == (0, 1, 2) and missing.ranks[3].apart is None


def test_where_all_ranks_train_nothing_is_said() -> None:
    report = analyze(make_run(num_ranks=4, num_steps=20))
    assert {rank.apart for rank in report.ranks} == {None}
    assert "did" not in [column.head for column in list_rank_sections(report)[0].columns]
