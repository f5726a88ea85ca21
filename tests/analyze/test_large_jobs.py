"""Jobs of so many ranks, steps and collectives that not all of it may fit: what every n-th step would not show."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.cycles import collective_order
from distprof.facts.run import Phase
from distprof.render.sections.verdict import describe_verdict
from distprof.report.report import Report
from distprof.report.wait_report import Pattern, VerdictKind
from distprof.storage.collective_records import choose_stride, is_kept
from tests.factories import MS

pytestmark = pytest.mark.slow

SAMPLE = 300
"""Steps of a thousand."""


def report_on(delay_ns: float, every: int, first_step: int, *, ranks: int = 4, buckets: int = 4) -> Report:
    """Of a job in which rank 2 is late; its cost is checked."""
    delay = Delay(rank=2, phase=Phase.FORWARD, delay_ns=delay_ns, every=every, first_step=first_step)
    job = SimulatedJob(num_ranks=ranks, num_steps=1000, num_buckets=buckets, delays=(delay,) if delay_ns else ())
    made = simulate(job, seed=1, truth=False, faults=True)
    report = analyze(made.run)
    for cost in made.truth.costs:
        assert report.verdict.lost_ns is not None
        assert report.verdict.lost_ns.value == pytest.approx(cost.lost_ns[1:].mean(), rel=0.05)
    return report


def test_64_ranks_of_20_buckets_are_judged_on_all_of_a_thousand_steps() -> None:
    """Of every second step alone it would look late in all, or in none."""
    report = report_on(15 * MS, 2, 1, ranks=64, buckets=20)
    verdict = report.verdict
    assert (verdict.kind, verdict.rank, verdict.phase) == (VerdictKind.SLOW_RANK, 2, "forward")
    assert (verdict.pattern, verdict.steps_used) == (Pattern.INTERMITTENT, 999)
    said = describe_verdict(report)
    assert re.match(r"rank 2 is 1[45].\d ms late in every 2nd step: its compute \(forward \+1[45].\d ms\); ", said)
    assert "measured steps" not in said


def test_all_stalls_of_a_thousand_steps_are_counted() -> None:
    report = report_on(300 * MS, 25, 3, ranks=64, buckets=20)
    said = describe_verdict(report)
    assert "40 steps of 999 are far longer, all because of rank 2 in forward, every 25th step; " in said


@pytest.mark.parametrize("first_step", [1, 2])
def test_what_comes_in_every_second_step_is_seen_in_a_sample(monkeypatch: pytest.MonkeyPatch, first_step: int) -> None:
    monkeypatch.setattr(collective_order, "MAX_CELLS", SAMPLE * 4 * 4)
    report = report_on(15 * MS, 2, first_step)
    said = describe_verdict(report)
    assert " ms late in every 2nd step: its compute (forward" in said
    assert said.endswith(f". This is based on {SAMPLE} of 1,000 measured steps.")
    assert any(source.endswith(f"host clock, {SAMPLE} of 1,000 measured steps") for source in report.coverage.sources)


def test_stalls_are_counted_in_the_steps_outside_of_the_sample_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 25th of a thousand steps, of which the sample has a dozen."""
    monkeypatch.setattr(collective_order, "MAX_CELLS", SAMPLE * 4 * 4)
    said = describe_verdict(report_on(300 * MS, 25, 3))
    assert "40 steps of 1,000 are far longer, all because of rank 2 in forward, every 25th step; " in said
    assert said.endswith(f". This is based on {SAMPLE} of 1,000 measured steps.")


@pytest.mark.parametrize("first_step", [1, 2])
def test_steps_whose_collectives_are_not_recorded_do_not_change_the_words(first_step: int) -> None:
    """Of 49 collectives a step, every second step's would take too much room: one of two is kept."""
    delay = Delay(rank=2, phase=Phase.FORWARD, delay_ns=15 * MS, every=2, first_step=first_step)
    job = SimulatedJob(strategy="fsdp", num_ranks=4, num_steps=300, num_buckets=16, delays=(delay,))
    made = simulate(job, seed=1, truth=False, faults=True)
    (table,) = made.run.collectives
    kept = np.array([is_kept(step, choose_stride(len(table.kinds))) for step in table.steps.tolist()])
    times = {name: getattr(table, name)[:, kept] for name in ("arrival_ns", "end_ns", "exposed_ns")}
    table = structs.replace(table, steps=table.steps[kept], **times)
    report = analyze(structs.replace(made.run, collectives=(table,)))
    said = describe_verdict(report)
    assert " ms late in every 2nd step: its compute (forward" in said
    assert said.endswith(" of 300 measured steps.") and report.verdict.steps_used <= 150
    (cost,) = made.truth.costs
    assert report.verdict.lost_ns is not None
    assert report.verdict.lost_ns.value == pytest.approx(cost.lost_ns[1:].mean(), rel=0.25)


def test_nobody_is_named_in_a_sample_in_which_nobody_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_order, "MAX_CELLS", SAMPLE * 4 * 4)
    report = report_on(0.0, 1, 1)
    assert report.verdict.rank is None and report.verdict.steps_used == SAMPLE
