"""Which worker, stage, link or micro-batches hold a made-up pipeline up, and what that costs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate.pipeline_job import PipelineJob, make_operations
from distprof.analyze.pipeline.report_operations import report_operations
from distprof.facts.operations import NUMBERS, Kind
from distprof.render.sections.operations_sections import NOBODY, describe_pipeline
from distprof.report.operations_report import OperationsReport, PipelineCauseKind

SHAPES = ((2, 4, 6, 16), (4, 2, 4, 24), (1, 4, 6, 16), (4, 1, 4, 16), (2, 2, 4, 40))
"""Replicas, stages, micro-batches, steps."""


def report(**faults: object) -> OperationsReport:
    return report_operations(make_operations(PipelineJob(**faults)), "job")  # type: ignore[arg-type]


def cost_ratio(found: OperationsReport, **clean: object) -> float:
    """What the fault really costs: against the same job, drawn without it."""
    return 1 - report(**clean).step_ns.value / found.step_ns.value


@pytest.mark.slow
def test_nobody_is_named_where_nothing_stands_out() -> None:
    """75 jobs of five shapes, with little and much noise, quick and slow drift: at most 1 % may name something."""
    named = []
    for seed, (replicas, stages, batches, steps) in itertools.product(range(15), SHAPES):
        job = PipelineJob(
            replicas=replicas, stages=stages, micro_batches=batches, steps=steps, seed=1_000 + seed,
            gpipe=seed % 2 == 0, noise_ratio=(0.01, 0.03, 0.1)[seed % 3], drift_ratio=(0.002, 0.01, 0.03)[seed // 5],
        )  # fmt: skip
        found = report_operations(make_operations(job), "job")
        named += [(job, found.causes)] if found.causes else []
    assert len(named) <= 1, named


def test_a_slow_worker_is_named_with_its_pass_and_its_cost() -> None:
    found = report(slow={(1, 2): 1.2}, seed=3)
    assert [(cause.kind, cause.replica, cause.stage) for cause in found.causes] == [
        (PipelineCauseKind.SLOW_WORKER, 1, 2)
    ]
    cause = found.causes[0]
    assert (cause.rank, cause.what) == (6, "computation")
    assert cause.more_ratio == pytest.approx(0.2, abs=0.02)
    assert cause.lost_ratio.value == pytest.approx(cost_ratio(found, seed=3), rel=0.15)
    assert describe_pipeline(found).startswith("dp 1, stage 2 (rank 6) is slow: its computation takes 19.3 % longer")


def test_a_slow_forward_alone_is_called_that() -> None:
    operations = make_operations(PipelineJob(seed=4))
    slow = (operations.replica == 0) & (operations.stage == 0) & (operations.kind == 0)
    grown = structs.replace(
        operations, duration_ns=np.where(slow, 1.5 * operations.duration_ns, operations.duration_ns)
    )
    found = report_operations(grown, "job")
    assert found.causes[0].what == "forward-compute"


def test_an_uneven_stage_is_no_slow_rank() -> None:
    found = report(uneven={3: 1.25}, seed=1)
    assert [cause.kind for cause in found.causes] == [PipelineCauseKind.UNEVEN_STAGE]
    assert found.causes[0].more_ratio == pytest.approx(0.25, abs=0.02)
    # The work stays: all four stages take (3 + 1.25) / 4.
    even = report(uneven=dict.fromkeys(range(4), 4.25 / 4), seed=1)
    truth_ratio = 1 - even.step_ns.value / found.step_ns.value
    assert found.causes[0].lost_ratio.value == pytest.approx(truth_ratio, rel=0.15)
    assert "stage 3 has 2" in describe_pipeline(found) and "on both replicas" in describe_pipeline(found)


def test_a_single_replica_does_not_tell_why_a_stage_takes_longer() -> None:
    found = report(uneven={2: 1.3}, replicas=1)
    assert found.causes[0].alone
    assert "which a single replica does not tell" in describe_pipeline(found)


def test_what_a_place_in_the_step_costs_is_no_sequence() -> None:
    """A stage has waited for its first micro-batch: its caches are cold, in every step."""
    operations = make_operations(PipelineJob(replicas=1, noise_ratio=0.01, steps=60))
    first = operations.micro_batch == 0
    by_pass = np.select(
        [operations.kind == NUMBERS[Kind.FORWARD], operations.kind == NUMBERS[Kind.BACKWARD]], [0.03, 0.01]
    )
    grown = structs.replace(operations, duration_ns=operations.duration_ns * (1 + first * by_pass))
    assert report_operations(grown, "job").causes == ()


def test_unequal_sequences_are_the_replicas_and_no_workers() -> None:
    found = report(long_steps={(step, 2): 1.4 for step in range(0, 44, 4)}, steps=44, replicas=4)
    cause = found.causes[0]
    assert [(item.kind, item.replica, item.steps_count) for item in found.causes] == [
        (PipelineCauseKind.UNEQUAL_SEQUENCES, 2, 11)
    ]
    assert cause.more_ratio == pytest.approx(0.4, abs=0.05)
    assert "replica 2 had" in describe_pipeline(found) and "in 11 of 44 steps" in describe_pipeline(found)


def test_a_replica_that_is_slow_as_a_whole_is_no_slow_worker() -> None:
    found = report(slow={(1, stage): 1.15 for stage in range(4)}, replicas=3)
    assert [(cause.kind, cause.replica) for cause in found.causes] == [(PipelineCauseKind.SLOW_REPLICA, 1)]
    assert found.causes[0].lost_ratio.value == pytest.approx(cost_ratio(found, replicas=3), rel=0.15)
    assert "replica 1 takes 15" in describe_pipeline(found)


def test_a_slow_link_is_named() -> None:
    found = report(slow_links={1: 15.0}, seed=2)
    assert [(cause.kind, cause.stage, cause.replica) for cause in found.causes] == [
        (PipelineCauseKind.SLOW_LINK, 1, None)
    ]
    assert found.causes[0].lost_ratio.value == pytest.approx(cost_ratio(found, seed=2), rel=0.15)
    assert "the link between stages 1 and 2 is slow" in describe_pipeline(found)


def test_the_interval_of_a_cost_holds_what_the_replay_does_not_explain() -> None:
    """Messages queue for a worker's line, which the replay does not know: it takes a step for 27 % longer, and the
    slow link of one replica to cost 8 times what it does."""
    job = {
        "rules": "shared", "gpipe": True, "replicas": 4, "stages": 2, "micro_batches": 6, "steps": 16,
        "transfer_ns": 2e6,
    }  # fmt: skip
    found = report(**job, slow_links={0: 7.0}, slow_links_of=0)
    (cause,) = found.causes
    assert found.launch_ratio is not None and found.launch_ratio < 0.85
    true = cost_ratio(found, **job)
    assert cause.lost_ratio.value > 5 * true and cause.lost_ratio.low <= true


def test_collections_at_different_steps_cost_more_than_at_the_same() -> None:
    found = report(collect_every=8)
    assert [cause.kind for cause in found.causes] == [PipelineCauseKind.COLLECTIONS]
    together = next(item for item in found.what_ifs if "same steps" in item.name)
    assert found.causes[0].lost_ratio.value == pytest.approx(cost_ratio(found), rel=0.1)
    assert together.saved_ratio.value == pytest.approx(
        cost_ratio(found, collect_every=8, collect_together=True), rel=0.1
    )


def test_the_bubble_of_equal_stages_is_that_of_theory() -> None:
    found = report(noise_ratio=0.0, drift_ratio=0.0, spike_ratio=0.0, replicas=1, steps=8)
    assert found.bubble is not None
    assert found.bubble.theory_ratio == pytest.approx(3 / 6)
    measured = found.bubble.warm_up_ratio + found.bubble.steady_ratio + found.bubble.cool_down_ratio
    assert measured == pytest.approx(0.5, abs=0.05), "transfers of half a millisecond come on top"
    assert describe_pipeline(found) == NOBODY


def test_few_steps_get_no_verdict() -> None:
    found = report(steps=5, slow={(0, 0): 2.0})
    assert not found.causes and not found.what_ifs
    assert describe_pipeline(found).startswith("no verdict: ")
    assert found.slowdown_ratio is not None and found.slowdown_ratio > 1.2
