"""What the replay does not know it does not cost: its error by hand, and a report where it is too large."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze, make_report
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.replay import UNLIKE, compare_lengths, measure_replay_error
from distprof.facts.run import OWN_PARTS, Clock, Phase
from distprof.render.sections.coverage import describe_replay
from distprof.render.sections.verdict import describe_verdict
from distprof.report.wait_report import ReplayError


def test_transfers_that_overlap_are_replayed_one_after_the_other_by_hand() -> None:
    """Both ranks work for 100 and issue two collectives that take 10 each at the same time, so that a cycle takes 110;
    one after the other they take 120: 9.1 % more. In one cycle of four they really did."""
    blocked_ns = np.zeros((2, 4, 2))
    blocked_ns[:, :, 0], blocked_ns[:, 3, 1] = 10, 10
    work_ns = np.zeros_like(blocked_ns)
    work_ns[:, :, 0] = 100
    both = (("default", np.arange(2)),)
    cycles = SyncCycles(
        source="collectives", clock=Clock.HOST, positions=np.arange(2), steps=np.arange(4), groups=(both, both),
        is_waited_on=np.array([True, True]), work_ns=work_ns, blocked_ns=blocked_ns,
        transfer_ns=np.full_like(blocked_ns, 10.0), start_ns=np.zeros((2, 4)),
        phase_ns=np.zeros((2, 4, len(OWN_PARTS))),
    )  # fmt: skip
    error = measure_replay_error(cycles)
    assert error is not None
    assert (error.median_ratio, error.worst_ratio) == (pytest.approx(120 / 110 - 1), pytest.approx(120 / 110 - 1))
    assert error.is_unlike


def test_the_error_is_the_median_and_the_90th_percentile_by_hand() -> None:
    error = compare_lengths(np.array([100.0, 99.0, 104.0, 50.0, 100.0]), np.full(5, 100.0))
    assert (error.median_ratio, error.worst_ratio) == (pytest.approx(0.01), pytest.approx(0.04 + 0.6 * 0.46))
    assert not error.is_unlike


def test_where_the_replay_is_too_unlike_a_rank_is_named_and_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    delay = Delay(rank=1, phase=Phase.FORWARD, delay_ns=20_000_000)
    run = simulate(SimulatedJob(num_ranks=4, num_steps=30, delays=(delay,)), seed=0, truth=False).run
    found = analyze(run)
    assert found.verdict.rank == 1 and found.causes is not None and found.what_if
    assert found.replay is not None and found.replay.worst_ratio < 1e-6
    assert describe_replay(found.replay).startswith(
        "without a change, steps differ from the recorded ones by <0.01 % ("
    )
    monkeypatch.setattr(
        make_report, "measure_replay_error", lambda cycles: ReplayError(median_ratio=0.06, worst_ratio=1)
    )
    unlike = analyze(run)
    assert (unlike.verdict.rank, unlike.verdict.phase, unlike.verdict.critical) == (1, "forward", False)
    assert unlike.verdict.lost_ns is None and unlike.causes is None and not (unlike.what_if or unlike.forecasts)
    assert f"what fixing it would gain is not known ({UNLIKE})" in describe_verdict(unlike)
    nobody = analyze(simulate(SimulatedJob(num_ranks=4, num_steps=30), seed=0, truth=False).run)
    assert describe_verdict(nobody).startswith(f"no verdict: {UNLIKE}")
