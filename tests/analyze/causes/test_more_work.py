"""A rank that is late and always gets more to do: made-up jobs whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.causes.more_work import find_more_work
from distprof.analyze.stats.measured_steps import choose_measured_steps, read_timing
from distprof.facts.run import Clock, Run
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.report.late_reasons import MoreWork
from distprof.report.wait_report import Cause, Verdict, VerdictKind
from tests.factories import MS, USUAL_NS, make_run
from tests.made_causes import make_cause, make_verdict

RANKS, STEPS = 4, 20
LATE = make_cause(VerdictKind.SLOW_RANK, 20, rank=2, phase="forward", late_ns=40.0 * MS, cause=Cause.COMPUTE)
SLOW = make_verdict(LATE)


def make_job(amounts: dict[str, tuple[float, ...]], *, forward: float = 3.0, steps: int = STEPS) -> Run:
    """Rank 2's forward takes so many times as long; the others' own time is 85 ms, 20 of them in forward."""
    forward_ns = 20 * MS * np.array([[1.0], [1.0], [forward], [1.0]])
    columns = {name: np.array(values)[:, None] for name, values in amounts.items()}
    return make_run(
        num_ranks=RANKS, num_steps=steps, host_ns={**USUAL_NS, "forward": forward_ns}, columns=columns
    )  # fmt: skip


def find(run: Run, verdict: Verdict = SLOW) -> MoreWork | None:
    measured_steps = choose_measured_steps(run)
    return find_more_work(measured_steps, read_timing(measured_steps, Clock.HOST), verdict)


def test_a_rank_that_always_gets_more_is_perhaps_late_for_that() -> None:
    assert find(make_job({"tokens": (90, 100, 400, 110)})) == MoreWork(amount="tokens", more_ratio=4.0)
    both = {"tokens": (100.0,) * 4, "squared_lengths": (9e3, 1e4, 3e4, 1e4)}
    assert find(make_job(both)) == MoreWork(amount="squared_lengths", more_ratio=3.0)  # packed to equal tokens


def test_more_work_explains_at_most_its_power() -> None:
    """1.2 times the tokens may take 1.44 times as long, and 1.3 times the squares no more than that."""
    slower = {ratio: 1 + (ratio - 1) * 85 / 20 for ratio in (1.4, 1.5)}  # own time, by forward
    assert find(make_job({"tokens": (1, 1, 1.2, 1)}, forward=slower[1.4])) is not None
    assert find(make_job({"tokens": (1, 1, 1.2, 1)}, forward=slower[1.5])) is None
    assert find(make_job({"squared_lengths": (1, 1, 1.3, 1)}, forward=slower[1.4])) is None
    assert find(make_job({"squared_lengths": (1, 1, 1.5, 1)}, forward=slower[1.4])) is not None


SILENT: dict[str, Run] = {
    "as many": make_job({"tokens": (100,) * 4}),
    "a few more": make_job({"tokens": (100, 100, 115, 100)}, forward=1.1),
    "another rank has more": make_job({"tokens": (100, 400, 100, 100)}),
    "not counted": make_job({}),
    "not counted on one rank": make_job({"tokens": (100, 100, 400, np.nan)}),
    "few steps": make_job({"tokens": (100, 100, 400, 100)}, steps=8),
}


@pytest.mark.parametrize("run", SILENT.values(), ids=SILENT)
def test_otherwise_nothing_is_said(run: Run) -> None:
    assert find(run) is None


@pytest.mark.parametrize("cause", [Cause.CHECKPOINT, Cause.OFF_CPU, Cause.INPUT, Cause.BETWEEN])
def test_what_has_another_reason_needs_none(cause: Cause) -> None:
    run = make_job({"tokens": (100, 100, 400, 100)})
    assert find(run) is not None
    assert find(run, structs.replace(SLOW, cause=cause)) is None


def test_it_is_said_with_what_to_do() -> None:
    report = analyze(make_job({"tokens": (100, 100, 400, 100)}))
    said = structs.replace(report, verdict=structs.replace(SLOW, more_work=MoreWork(amount="tokens", more_ratio=4.0)))
    sentence = describe_verdict(said)
    assert "), perhaps because it gets 4.0 times the tokens of the others; " in sentence
    assert describe_next(said).startswith("give ranks equal amounts of data: ")
