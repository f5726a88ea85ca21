"""Made-up pipelines: hand-computed steps under both sets of rules, and noise that faults do not change."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.simulate import pipeline_durations
from benchmarks.simulate.pipeline_durations import draw_durations
from benchmarks.simulate.pipeline_job import PipelineJob, make_operations, measure_steps
from benchmarks.verdicts.pipeline_outcome import judge_pipeline
from benchmarks.verdicts.verdict_rows import ALL_ROWS, PipelineRow
from distprof.analyze.pipeline.report_operations import report_operations
from distprof.facts.operations import NUMBERS, Kind

QUIET = PipelineJob(
    replicas=1, stages=3, micro_batches=4, steps=2, noise_ratio=0.0, drift_ratio=0.0, spike_ratio=0.0, transfer_ns=1e6
)


@pytest.mark.parametrize("rules", ["simple", "shared"])
@pytest.mark.parametrize("gpipe", [False, True])
def test_a_step_without_noise(rules: str, gpipe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six passes of 60 ms follow each other, four transfers, and the end; by the simple rules, under which a receive is
    posted when the worker is free, every other micro-batch of a pass is a transfer later, too."""
    monkeypatch.setattr(pipeline_durations, "LAUNCH_NS", 0.0)
    step_ns = measure_steps(make_operations(replace(QUIET, rules=rules, gpipe=gpipe)))
    later_ns = 2 * 3 * 1e6 if rules == "simple" else 0.0
    # Under 1F1B, activations and gradients take turns, and what is under way holds up what could be computed.
    assert step_ns == pytest.approx(6 * 60e6 + 4 * 1e6 + 2 * 5e6 + 4e6 + later_ns, abs=0.0 if gpipe else 6e6)


def test_messages_queue_for_a_line() -> None:
    """A transfer that takes longer than a forward holds the next one up."""
    found = make_operations(replace(QUIET, stages=2, gpipe=True, rules="shared", transfer_ns=50e6))
    received = (found.kind == NUMBERS[Kind.FORWARD_RECV]) & (found.step == 0)
    ends_ns = np.sort((found.start_ns + found.duration_ns)[received])
    assert np.diff(ends_ns) == pytest.approx(50e6)


def test_faults_do_not_change_the_noise() -> None:
    job = PipelineJob(seed=3, length_ratio=0.2)
    slow = draw_durations(replace(job, slow={(1, 2): 2.0}, slow_links={0: 3.0}))
    usual = draw_durations(job)
    factors = slow.compute_ns / usual.compute_ns
    assert factors[:, 1, 2] == pytest.approx(2.0) and np.delete(factors, 2, axis=2) == pytest.approx(1.0)
    assert slow.transfer_ns[:, :, 1:] == pytest.approx(usual.transfer_ns[:, :, 1:])
    assert draw_durations(replace(job, equal_lengths=True)).compute_ns.sum() == pytest.approx(
        usual.compute_ns.sum(), rel=0.02
    )


def test_both_rules_play_the_same_operations() -> None:
    simple, shared = (make_operations(PipelineJob(rules=rules, seed=1)) for rules in ("simple", "shared"))
    for kind in NUMBERS.values():
        assert (simple.kind == kind).sum() == (shared.kind == kind).sum()
    assert report_operations(shared, "job").complete


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("pipe-worker", 3),
        ("pipe-worker", 4),
        ("pipe-2-replicas-worker", 9),
        ("pipe-long-steps", 9),
        ("pipe-replica", 8),
        ("pipe-replica", 9),
    ],
)
def test_rows_are_judged(name: str, seed: int) -> None:
    row = ALL_ROWS[name]
    assert isinstance(row, PipelineRow)
    outcome, _ = judge_pipeline(row, seed, 40)
    assert outcome.large and outcome.right and outcome.listed and not outcome.false, outcome.told
    assert outcome.error_ratio is not None and outcome.error_ratio < 0.15


def test_nobody_is_named_in_a_row_where_nobody_is_slow() -> None:
    row = ALL_ROWS["pipe-nobody"]
    assert isinstance(row, PipelineRow)
    outcome, report = judge_pipeline(row, 5, 24)
    assert not outcome.blamed and not outcome.false and not report.causes
