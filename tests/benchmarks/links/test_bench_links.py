"""The bench ``links`` without its jobs: what it asks of a report, and what it refuses."""

from __future__ import annotations

import pytest
from msgspec import structs

from benchmarks.__main__ import main
from benchmarks.links.links_command import LinkOutcome, judge_beside, tabulate_links
from benchmarks.links.run_link_job import LATE_RANK, LinkJob
from benchmarks.simulate import Delay
from distprof.analyze import analyze
from distprof.facts.run import Phase
from tests.analyze.links.linked_runs import TWO, simulate_run
from tests.factories import MS

JOB = LinkJob(mbit_per_s=100, steps=20, late=False, same_name=True, clock_ahead_s=3)


def play(job: LinkJob, *, slow: bool, delay_ms: float = 0) -> LinkOutcome:
    """A report of two hosts; the link carries a fifth of gigabit Ethernet."""
    late = (Delay(rank=LATE_RANK, phase=Phase.DATA, delay_ns=delay_ms * MS),) if delay_ms else ()
    simulated = structs.replace(TWO, slow_hosts={1: 5.0} if slow else {}, delays=late, jitter_ratio=0.01)
    return LinkOutcome(job=job, report=analyze(simulate_run(simulated)), probes=(12e6, 12e6))


def test_a_slow_link_is_to_be_named_and_a_healthy_one_is_not() -> None:
    healthy = structs.replace(JOB, mbit_per_s=1000)
    outcomes = [play(JOB, slow=True), play(healthy, slow=False)]
    assert [row.is_right for row in judge_beside(outcomes)] == [True, True]
    silent, false = structs.replace(outcomes[1], job=JOB), structs.replace(outcomes[0], job=healthy)
    assert [row.is_right for row in judge_beside([silent, false])] == [False, False]
    heads, _, slow, _ = tabulate_links(judge_beside(outcomes))
    assert heads.startswith("| link | steps |") and slow.startswith("| 100 Mbit/s | 20 |") and slow.endswith("| yes |")


def test_a_late_rank_is_to_be_named_beside_it_the_larger_first() -> None:
    late = structs.replace(JOB, late=True)
    alone, both = play(JOB, slow=True), play(late, slow=True, delay_ms=20)
    usual = play(structs.replace(JOB, mbit_per_s=1000), slow=False)
    assert [row.is_right for row in judge_beside([usual, alone, both])] == [True] * 3
    without = structs.replace(alone, job=late, report=play(late, slow=True).report)
    rows = judge_beside([usual, alone, without])
    assert rows[2].is_right and rows[2].rank_ns == 0  # a delay that costs nothing need not be named
    silent = structs.replace(both, report=play(late, slow=False, delay_ms=80).report)
    assert not judge_beside([usual, alone, silent])[2].is_right


@pytest.mark.parametrize("arguments", [["--mbit", "0"], ["--steps", "0"], ["--ahead", "-1"]])
def test_a_number_out_of_range_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["links", *arguments]) == 2
    assert "must be" in capsys.readouterr().err
