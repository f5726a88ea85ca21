"""The parts of what removing all causes saves: they add up, and no cause gets what punctual ranks would hide."""

from __future__ import annotations

import pytest

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.facts.run import Phase
from distprof.report.wait_report import CauseReport, Causes, VerdictKind

MS = 1_000_000


def find_causes(*delays: Delay) -> Causes:
    found = analyze(simulate(SimulatedJob(num_ranks=8, delays=delays), seed=3).run).causes
    assert found is not None
    return found


def list_late(causes: Causes) -> list[CauseReport]:
    return [cause for cause in causes.causes if cause.kind is VerdictKind.SLOW_RANK]


def test_the_part_of_a_single_slow_rank_is_what_fixing_it_saves() -> None:
    """If every rank arrived with the median one, the late rank would cost nothing either: that is no jitter."""
    causes = find_causes(Delay(rank=2, phase=Phase.DATA, delay_ns=41 * MS))
    (rank,) = list_late(causes)
    assert rank.joint_ns == pytest.approx(rank.saved_if_only_this_ns.value)
    (jitter,) = (cause for cause in causes.causes if cause.kind is VerdictKind.JITTER)
    assert (
        jitter.joint_ns == pytest.approx(jitter.saved_after_others_ns.value) and jitter.joint_ns < 0.1 * rank.joint_ns
    )


def test_more_of_the_same_is_one_cause_in_most_steps_and_in_few() -> None:
    """Steps of four micro-steps instead of two load twice as much: 20 ms late in all, and 20 more in three of four; or
    40 more in three of ten."""
    steady = Delay(rank=2, phase=Phase.DATA, delay_ns=20 * MS)
    (rank,) = list_late(find_causes(steady, Delay(rank=2, phase=Phase.DATA, delay_ns=20 * MS, share_ratio=0.75)))
    assert (rank.rank, rank.phase, rank.pattern) == (2, "data", "persistent")
    assert rank.late_ns == pytest.approx(35 * MS, rel=0.1)
    (rank,) = list_late(find_causes(steady, Delay(rank=2, phase=Phase.DATA, delay_ns=40 * MS, share_ratio=0.3)))
    assert (rank.rank, rank.phase, rank.pattern, rank.critical) == (2, "data", "persistent", True)
    assert rank.late_ns == pytest.approx(32 * MS, rel=0.15)  # by chance it is more than three


def test_the_parts_of_two_are_what_fixing_both_saves_and_all_add_up() -> None:
    causes = find_causes(
        Delay(rank=2, phase=Phase.FORWARD, delay_ns=20 * MS), Delay(rank=5, phase=Phase.BACKWARD, delay_ns=19 * MS)
    )  # fmt: skip
    one, other = list_late(causes)
    for first, last in ((one, other), (other, one)):
        both_ns = first.saved_if_only_this_ns.value + last.saved_after_others_ns.value
        assert one.joint_ns + other.joint_ns == pytest.approx(both_ns)
    explained_ns = sum(cause.joint_ns for cause in causes.causes)
    assert causes.ideal_ns + explained_ns + causes.remainder_ns == pytest.approx(causes.step_ns)
