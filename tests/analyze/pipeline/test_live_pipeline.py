"""Live runs of pipelines: who is named, what it costs by a replay of all that the ranks did."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze.make_report import analyze
from distprof.render.sections.coverage import describe_replay
from distprof.render.sections.verdict import describe_verdict
from distprof.report.operations_report import PipelineCauseKind
from distprof.report.wait_report import Cause, VerdictKind
from tests.analyze.pipeline.live_jobs import (
    MS,
    Job,
    list_causes,
    measure_saved,
    play,
    report,
    require_cost,
)
from tests.analyze.summary.test_pipeline import BACKWARD, FORWARD


@pytest.mark.parametrize("meets", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_without_a_change_the_replay_is_what_was_recorded(replicas: int, meets: bool) -> None:
    found = report(replicas=replicas, meets=meets, noise_ratio=0.2)
    assert found.pipeline is not None and found.pipeline.judged
    assert found.replay is not None
    assert found.replay.median_ratio == pytest.approx(0, abs=1e-9)
    assert found.replay.worst_ratio == pytest.approx(0, abs=1e-9)
    assert describe_replay(found.replay).startswith("without a change, steps differ")


@pytest.mark.parametrize("disturbed_ratio", [0.0, 0.6])
def test_nobody_is_named_where_nobody_is_late(disturbed_ratio: float) -> None:
    for seed in range(6):
        for replicas, stages in ((1, 4), (2, 2)):
            found = report(seed, replicas=replicas, stages=stages, disturbed_ratio=disturbed_ratio)
            assert list_causes(found) == []
            assert (found.verdict.kind, found.verdict.rank) == (VerdictKind.NONE, None)
            assert describe_verdict(found).startswith("no straggler: no rank, stage or link")


@pytest.mark.parametrize("disturbed_ratio", [0.0, 0.5])
@pytest.mark.parametrize(("kind", "phase"), [(FORWARD, "forward"), (BACKWARD, "backward")])
def test_a_rank_late_in_one_micro_batch_is_named_even_without_replicas(
    kind: int, phase: str, disturbed_ratio: float
) -> None:
    found = report(
        longer=lambda rank, step, passed, batch: 5 * MS * (rank == 2 and passed == kind and batch == 0),
        disturbed_ratio=disturbed_ratio,
    )  # fmt: skip
    assert list_causes(found) == [(PipelineCauseKind.HELD_UP, 0, 2)]
    verdict = found.verdict
    assert (verdict.kind, verdict.rank, verdict.phase, verdict.cause) == (
        VerdictKind.SLOW_RANK, 2, phase, Cause.COMPUTE,
    )  # fmt: skip
    assert verdict.late_ns == pytest.approx(5 * MS, rel=0.1)
    assert "rank 2 (stage 2) is" in describe_verdict(found)
    assert f"late in {phase}, in 1 of 8 micro-batches of each step" in describe_verdict(found)


def test_a_rank_late_with_its_data_is_named_and_its_cost_is_that_of_really_removing_it() -> None:
    job = Job(replicas=2, stages=2, data_ns=lambda rank, step: (12 if rank == 3 else 0.2) * MS)
    found = analyze(play(job))
    assert list_causes(found) == [(PipelineCauseKind.HELD_UP, 1, 1)]
    assert (found.verdict.rank, found.verdict.phase, found.verdict.cause) == (3, "data", Cause.INPUT)
    require_cost(found, measure_saved(job, Job(replicas=2, stages=2)), rel=0.1)
    assert found.causes is not None and found.causes.causes[0].rank == 3
    assert next(item.change for item in found.what_if) == "rank 3 at normal speed"


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_rank_late_between_steps_is_named_and_its_cost_is_that_of_really_removing_it(replicas: int) -> None:
    job = Job(replicas=replicas, stages=4 // replicas, between_ns=lambda rank, step: (12 if rank == 1 else 0.2) * MS)
    found = analyze(play(job))
    assert list_causes(found) == [(PipelineCauseKind.HELD_UP, 0, 1)]
    assert (found.verdict.rank, found.verdict.phase, found.verdict.cause) == (1, "between steps", Cause.BETWEEN)
    assert found.verdict.late_ns == pytest.approx(11.8 * MS, rel=0.05)
    without = structs.replace(job, between_ns=lambda rank, step: 0.2 * MS)
    require_cost(found, measure_saved(job, without), rel=0.1)
    said = describe_verdict(found)
    assert "ms longer than the other stages between steps" in said if replicas == 1 else "late between steps" in said


@pytest.mark.parametrize(("replicas", "meets"), [(1, True), (1, False), (2, True)])
def test_a_rank_late_after_its_last_backward_is_named_and_its_cost_is_that_of_really_removing_it(
    replicas: int, meets: bool
) -> None:
    stages = 4 // replicas
    job = Job(replicas=replicas, stages=stages, meets=meets, after_ns=lambda rank, step: (13 if rank == 0 else 1) * MS)
    found = analyze(play(job))
    assert list_causes(found) == [(PipelineCauseKind.HELD_UP, 0, 0)]
    assert (found.verdict.rank, found.verdict.phase, found.verdict.cause) == (0, "other", Cause.OUTSIDE)
    assert found.verdict.late_ns == pytest.approx(12 * MS, rel=0.05)
    require_cost(found, measure_saved(job, Job(replicas=replicas, stages=stages, meets=meets)), rel=0.1)


def test_a_rank_that_does_little_more_between_steps_than_others_is_not_named() -> None:
    for seed in range(3):
        assert list_causes(report(seed, between_ns=lambda rank, step: (0.5 + 0.3 * (rank == 0)) * MS)) == []


def test_a_rank_slow_in_all_micro_batches_is_told_from_its_stage_by_the_other_replica() -> None:
    job = Job(replicas=2, stages=2, longer=lambda rank, step, kind, batch: 1 * MS * (rank == 1 and kind == BACKWARD))
    found = analyze(play(job))
    assert list_causes(found) == [(PipelineCauseKind.SLOW_WORKER, 0, 1)]
    assert (found.verdict.rank, found.verdict.phase) == (1, "backward")
    require_cost(found, measure_saved(job, Job(replicas=2, stages=2)), rel=0.15)


def test_what_a_rank_does_between_its_passes_is_said_not_to_be_compared_where_there_is_one_replica() -> None:
    def pause(rank: int, step: int, kind: int, batch: int) -> float:
        return 1.5 * MS if rank == 1 and kind == BACKWARD and step >= 20 else 0.0

    found = analyze(play(Job(pauses=pause)))
    assert list_causes(found) == []
    assert describe_verdict(found).endswith(
        "; what rank 1 does between forwards and backwards is not compared without a replica, and takes longer than on "
        "the other ranks"
    )
    assert "is not compared" not in describe_verdict(report())
    two = analyze(play(Job(replicas=2, stages=2, pauses=pause)))
    assert "is not compared" not in describe_verdict(two)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_uneven_stage_is_called_that_and_no_rank_is_blamed(replicas: int) -> None:
    found = report(
        replicas=replicas, longer=lambda rank, step, kind, batch: (0.5 if kind == FORWARD else 1) * MS * (rank % 4 == 2)
    )
    assert list_causes(found) == [(PipelineCauseKind.UNEVEN_STAGE, None, 2)]
    assert (found.verdict.kind, found.verdict.rank) == (VerdictKind.UNEVEN_STAGE, None)
    assert found.pipeline is not None
    assert found.pipeline.causes[0].more_ratio == pytest.approx(
        0.25 * 1.08, abs=0.03
    )  # the shortest is 8 % below the mean
    words = describe_verdict(found)
    if replicas == 1:
        assert words.startswith("stage 2 (rank 2) takes")
        assert "it has more to do, or its rank is slow" in words
    else:
        assert words.startswith("stage 2 has")
        assert "more to do than the other stages, on both replicas" in words


def test_unequal_sequences_are_no_slow_rank() -> None:
    found = report(
        replicas=2, stages=2, sizes=lambda replica, step, batch: 1.5 if replica == 1 and step % 4 == 1 else 1.0
    )
    assert list_causes(found) == [(PipelineCauseKind.UNEQUAL_SEQUENCES, 1, None)]
    assert (found.verdict.kind, found.verdict.rank) == (VerdictKind.UNEQUAL_SEQUENCES, None)


def test_a_slow_link_is_named_by_its_stages() -> None:
    found = report(transfer_ns=lambda source, target: (3 if {source, target} == {1, 2} else 0.2) * MS)
    assert list_causes(found) == [(PipelineCauseKind.SLOW_LINK, None, 1)]
    assert found.verdict.kind is VerdictKind.SLOW_LINK
    assert "the link between stages 1 and 2 is slow" in describe_verdict(found)


def test_twice_the_micro_batches_by_hand() -> None:
    """Of p stages and m micro-batches without noise and transfers, m + p - 1 passes of each kind follow each other."""
    found = report(noise_ratio=0.0, transfer_ns=lambda source, target: 0.0, meets=False)
    change = next(item for item in found.what_if if item.change == "twice the micro-batches")
    saved_ns = (8 + 3) * 6 * MS - (16 + 3) * 3 * MS
    assert found.headline.step_mean_ns is not None
    assert change.saved_ratio.value == pytest.approx(saved_ns / found.headline.step_mean_ns, rel=0.02)


def test_where_the_replay_differs_from_what_was_recorded_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distprof.analyze.pipeline.chained_replay.ChainedReplay.compute_steps", lambda self, work_ns: (
        np.full(len(self.follows), 1e9)
    ))  # fmt: skip
    found = report(data_ns=lambda rank, step: (12 if rank == 3 else 0.2) * MS)
    assert found.pipeline is not None and found.pipeline.causes == () and found.causes is None and found.what_if == ()
    assert describe_verdict(found).startswith("no verdict: the stages of a pipeline wait for each other by design")
    assert "the steps differ too much from the recorded ones" in describe_verdict(found)


def test_what_was_sent_long_before_it_is_waited_for_does_not_hold_the_replay() -> None:
    def last(rank: int, step: int, kind: int, batch: int) -> float:
        return 3 * MS * (rank == 3)

    found = [report(longer=last, awaits_at_end=awaits).pipeline for awaits in (False, True)]
    usual, awaited = (each.causes[0] for each in found if each is not None)
    assert (usual.kind, usual.stage) == (awaited.kind, awaited.stage) == (PipelineCauseKind.UNEVEN_STAGE, 3)
    assert awaited.lost_ratio.value == pytest.approx(usual.lost_ratio.value, rel=0.05) and usual.lost_ratio.value > 0.1


@pytest.mark.parametrize("stages", [2, 4])
def test_of_stages_that_split_their_backwards_the_first_is_compared_by_its_forwards(stages: int) -> None:
    for seed in range(10):
        assert list_causes(report(seed, splits=True, stages=stages)) == [], seed
    for slow, (kind, more_ns) in itertools.product(range(stages), ((FORWARD, 1 * MS), (BACKWARD, 2 * MS))):
        found = report(
            slow, splits=True, stages=stages,
            longer=lambda rank, step, own, batch, slow=slow, kind=kind, more_ns=more_ns: (
                more_ns * (own == kind and rank == slow)
            ),
        )  # fmt: skip
        if kind == BACKWARD and (slow == 0 or stages == 2):
            assert list_causes(found) == []
            continue
        assert list_causes(found) == [(PipelineCauseKind.UNEVEN_STAGE, None, slow)]
        assert found.pipeline is not None and found.pipeline.causes[0].more_ratio == pytest.approx(0.5, abs=0.1)


def test_a_rank_that_splits_its_backwards_is_compared_with_its_replicas_by_all_of_them() -> None:
    for seed in range(10):
        assert list_causes(report(seed, splits=True, stages=2, replicas=2)) == [], seed
    found = report(
        splits=True, stages=2, replicas=2,
        longer=lambda rank, step, kind, batch: 2 * MS * (kind == BACKWARD and rank == 3),
    )  # fmt: skip
    assert list_causes(found) == [(PipelineCauseKind.SLOW_WORKER, 1, 1)]
    assert found.pipeline is not None and found.pipeline.causes[0].more_ratio == pytest.approx(0.5, abs=0.1)
