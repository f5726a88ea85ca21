"""Ranks that run now faster, now slower, whatever they do: what is left of their own times, and who is named then."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.causes.common_slowdown import (
    cut_parts,
    explain_persistent,
    is_slower_throughout,
    keep_explained,
    remove_common_slowdown,
)
from distprof.analyze.causes.slow_ranks import detect_slow_ranks
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import CandidateCause
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PARTS, OWN_PHASES, Phase, Run
from distprof.report.wait_report import VerdictKind
from tests.analyze.synthetic_cycles import PHASE, detect, draw_drift, draw_own, leave_all, make_cycles
from tests.factories import MS, USUAL_NS, make_run

SLOW = 1.4
"""What a virtual core did here while its neighbour was busy: 28 to 46 %, by phase."""
STEPS = 60
LONG_NS = {Phase.FORWARD: 10 * MS, Phase.BACKWARD: 20 * MS, Phase.OPTIMIZER: 4 * MS}


def draw_speeds(draws: np.random.Generator, *, slow_ratio: tuple[float, float] = (0.5, 0.5)) -> FloatArray:
    """1, or `SLOW` for some steps at a time, each rank in its share of them, ``[2, STEPS]``."""
    speeds = np.ones((2, STEPS))
    for row, ratio in enumerate(slow_ratio):
        slow = draws.random() < ratio
        for step in range(STEPS):
            slow = draws.random() < ratio if draws.random() < 0.3 else slow
            speeds[row, step] = SLOW if slow else 1.0
    return speeds


def draw_work(draws: np.random.Generator, speeds: FloatArray) -> FloatArray:
    """Own times by phase, each with 5 % of noise of its own, ``[2, STEPS, len(OWN_PARTS)]``."""
    own_ns = np.zeros((*speeds.shape, len(OWN_PARTS)))
    for phase, long_ns in LONG_NS.items():
        own_ns[:, :, PHASE[phase]] = long_ns * speeds * draws.lognormal(0, 0.05, speeds.shape)
    return own_ns


def cut_backward(phase_ns: FloatArray, inner_ns: FloatArray, *, first_waits: bool = False) -> SyncCycles:
    """The last of backward lies between the issue of two buckets, of which ranks wait for the second."""
    cycles = make_cycles(phase_ns)
    return structs.replace(
        cycles, groups=cycles.groups * 2, is_waited_on=np.array([first_waits, True]), issued=(Phase.BACKWARD,) * 2,
        work_ns=np.stack([cycles.work_ns[:, :, 0] - inner_ns, inner_ns], axis=2),
        blocked_ns=np.concatenate([np.zeros_like(cycles.blocked_ns), cycles.blocked_ns], axis=2),
        transfer_ns=np.concatenate([np.zeros_like(cycles.transfer_ns), cycles.transfer_ns], axis=2),
    )  # fmt: skip


def name(cycles: SyncCycles) -> list[CandidateCause]:
    assert has_speed(cycles)
    return detect(cycles, remove_common_slowdown, detect_slow_ranks)


def explain(usual_ns: FloatArray, *, critical_values: FloatArray, same: FloatArray, **known: FloatArray) -> FloatArray:
    """What speeds that last explain, ``[num_segments]``, of the only rank."""
    kept = keep_explained(usual_ns, **known, critical_values=critical_values, same=same.astype(bool))
    return explain_persistent(usual_ns, **known, kept=kept, lasts=np.array([True]))[:, 0]


def has_speed(cycles: SyncCycles) -> bool:
    return remove_common_slowdown(cycles, leave_all(cycles))[1].segments is not None


@pytest.mark.parametrize("phase", LONG_NS)
@pytest.mark.parametrize("row", [0, 1])
def test_a_delay_that_speeds_drown_is_found_and_nobody_else_is_named(phase: Phase, row: int) -> None:
    """2 of 44 ms: forward alone is 10 or 14 ms, backward 20 or 28, for reasons of the machine."""
    drowned, found = 0, []
    for seed in range(10):
        draws = np.random.default_rng(seed)
        phase_ns = draw_work(draws, draw_speeds(draws))
        phase_ns[row, :, PHASE[phase]] += 2 * MS
        cycles = make_cycles(phase_ns)
        drowned += [(int(item.rows[0]), item.part) for item in detect(cycles, detect_slow_ranks)] != [(row, phase)]
        found += name(cycles)
    assert {(int(item.rows[0]), item.part) for item in found} == {(row, phase)}
    assert len(found) >= 3 and drowned >= (0 if phase is Phase.OPTIMIZER else 5)
    assert np.median([item.late_ns for item in found]) == pytest.approx(2 * MS, rel=0.2)


def test_ranks_whose_speeds_differ_for_a_whole_job_are_not_named() -> None:
    """Rank 1 has the busy neighbour, all the time or nearly: it is slower by a third in all that it does."""
    blamed = 0
    for seed in range(20):
        draws = np.random.default_rng(seed)
        cycles = make_cycles(draw_work(draws, draw_speeds(draws, slow_ratio=(0.3, 0.9))))
        blamed += bool(detect(cycles, detect_slow_ranks))
        assert not name(cycles)
    assert blamed >= 2


def test_a_rank_that_is_slower_than_speeds_ever_vary_is_named_for_all_of_it() -> None:
    """Speeds vary by 6 %, and rank 1 takes half as long again: 17 of 34 ms, 10 of them in backward."""
    draws = np.random.default_rng(2)
    speeds = draws.lognormal(0, 0.06, (2, STEPS)) * [[1.0], [1.5]]
    (found,) = name(make_cycles(draw_work(draws, speeds)))
    assert (found.rows.tolist(), found.part, found.is_throughout) == ([1], None, True)
    assert found.late_ns == pytest.approx(17 * MS, rel=0.05)


@pytest.mark.parametrize("related", [0.0, 0.9])
def test_parts_that_vary_each_for_itself_tell_no_speed(related: float) -> None:
    found = 0
    for seed in range(60):
        draws = np.random.default_rng(seed)
        own_ns = draw_drift(draws, 4, 50, related=related) if related else draw_own(draws, 4, 50)
        own_ns = np.concatenate([own_ns, np.zeros((4, 50, len(OWN_PARTS) - len(OWN_PHASES)))], axis=2)
        cycles = make_cycles(own_ns)
        found += has_speed(cycles)
    assert found <= 3  # 1 % is meant


def test_stalls_that_stretch_all_that_a_rank_does_are_no_speed() -> None:
    """One step of a rank in a hundred takes three times as long; rank 1 is late by a twentieth of backward."""
    related = named = 0
    for seed in range(10):
        draws = np.random.default_rng(seed)
        own_ns = draw_work(draws, np.ones((8, 200)))
        own_ns *= np.where(draws.random(own_ns.shape[:2]) < 0.01, 3.0, 1.0)[:, :, None]
        own_ns[1, :, PHASE[Phase.BACKWARD]] += 0.05 * LONG_NS[Phase.BACKWARD]
        cycles = make_cycles(own_ns)
        related += has_speed(cycles)
        found = detect(cycles, remove_common_slowdown, detect_slow_ranks)
        named += [(item.rows.tolist(), item.part) for item in found] == [([1], Phase.BACKWARD)]
    assert (related, named) == (0, 10)


def test_the_segment_that_the_others_do_not_explain_is_set_aside() -> None:
    """Forward and optimizer say that the rank is faster by half a standard deviation, so backward is late.

    Without backward: weights 3.7 / 0.25 and 0.55 / 0.04, precision 1 + 54.76 + 7.5625, speed -36.475 / 63.3225. What
    this leaves of the two others is within its error, and so explained as well.
    """
    loads = np.array([3.7, 7.9, 0.55])
    found = explain(
        np.array([[-2.0], [12.4], [-0.5]]) * MS, errors_ns=np.array([[0.5], [1.0], [0.2]]) * MS, loadings_ns=loads * MS,
        critical_values=np.full(3, 4.0), same=np.eye(3, dtype=bool),
    )  # fmt: skip
    assert found == pytest.approx([-2.0 * MS, -7.9 * MS * 36.475 / 63.3225, -0.5 * MS], rel=1e-6)


def test_the_segment_without_which_the_others_agree_is_set_aside_first() -> None:
    """Of forward, two segments of backward, and optimizer, the segments of backward are late by 10.3 and by 1.3."""
    same = np.array([[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]], dtype=bool)
    found = explain(
        np.array([[-0.11], [10.28], [1.26], [-0.03]]) * MS, errors_ns=np.array([[0.11], [0.15], [0.18], [0.1]]) * MS,
        loadings_ns=np.array([1.8, 2.57, 0.57, 1.1]) * MS, critical_values=np.full(4, 3.7), same=same,
    )  # fmt: skip
    assert found[[0, 3]] == pytest.approx(np.array([-0.11, -0.03]) * MS)
    assert np.abs(found[1:3]).max() < 0.2 * MS


def test_a_speed_that_is_out_of_the_ordinary_explains_nothing() -> None:
    """Both segments are longer by one standard deviation of the speed, or by ten."""

    def explain_both(excess_ns: float) -> list[float]:
        return explain(
            np.full((2, 1), excess_ns), errors_ns=np.full((2, 1), 1.0), loadings_ns=np.full(2, 4.0),
            critical_values=np.full(2, 4.0), same=np.eye(2),
        ).tolist()  # fmt: skip

    assert explain_both(4.0) == [4, 4] and explain_both(40.0) == [0, 0]
    assert explain_both(11.0) == [11, 11] and explain_both(13.0) == [0, 0]  # 32 / 33 of 2.75 and of 3.25


USUAL = np.array([5.0, 30, 50, 3, 10, 2])


@pytest.mark.parametrize(
    ("excess", "throughout"),
    [
        (0.3 * USUAL, True),  # each takes a third longer, as on a core that other processes use
        (USUAL * [0, 0.3, 0.38, 0.25, 0.22, 0.3], True),  # but for the data, and not all of them alike
        (0.3 * USUAL + [0, 0, 5, 0, 0, 0], True),  # and backward a little more
        (0.03 * USUAL + [0, 0, 20, 0, 0, 0], False),  # or much more, which is what costs
        (np.array([0.0, 0, 20, 0, 0, 0]), False),
        (np.array([0.0, 10, 17, 0, 0, 0]), False),  # two of six
        (np.array([20.0, -20, 0, 0, 0, 0]), False),
        (np.zeros(6), False),
    ],
)
def test_a_speed_shows_in_most_parts_in_proportion_to_their_length(excess: FloatArray, throughout: bool) -> None:
    for scale in (0.003, 0.01):
        errors_ns = scale * USUAL * MS
        assert is_slower_throughout(excess * MS, errors_ns=errors_ns, usual_ns=USUAL * MS) == throughout


def test_a_short_part_may_be_what_a_rank_loses_most_in() -> None:
    """Too short to tell of a speed: 1 of 100, and 60 longer; the others are longer by a few microseconds, all alike."""
    usual_ns, excess_ns = np.array([1.0, 40, 59]) * MS, np.array([60.0, 0.002, 0.003]) * MS
    ask = {"errors_ns": np.zeros(3), "usual_ns": usual_ns, "least_ns": 2 * MS}
    assert not is_slower_throughout(excess_ns, **ask)
    assert is_slower_throughout(0.1 * usual_ns, **ask)


def test_errors_of_one_part_are_no_speed() -> None:
    """One part is late by ten standard errors, and all vary by chance: 1 of 300 is taken for a rank's speed."""
    draws, errors_ns, taken = np.random.default_rng(0), 0.02 * USUAL * MS, 0
    for _ in range(300):
        excess_ns = draws.normal(np.eye(6)[1] * 6 * MS, errors_ns)
        taken += is_slower_throughout(excess_ns, errors_ns=errors_ns, usual_ns=USUAL * MS)
    assert taken <= 3


def test_segments_of_one_part_do_not_explain_each_other() -> None:
    """Backward is late by 6 in each of its two segments, and forward is not late: not so fast as speeds vary."""
    same = np.array([[True, False, False], [False, True, True], [False, True, True]])
    ask = {"errors_ns": np.full((3, 1), 1.0), "loadings_ns": np.full(3, 4.0), "critical_values": np.full(3, 4.0)}
    late_ns = np.array([[0.0], [6.0], [6.0]])
    assert explain(late_ns, **ask, same=same) == pytest.approx([0, 0, 0], abs=0.1)


def test_backward_is_cut_where_a_bucket_is_issued_and_a_delay_is_found_in_its_segment() -> None:
    """Its 14 and 6 ms vary each for itself, too: the later segment hides a delay of 2 ms in the earlier one."""
    draws = np.random.default_rng(10)
    speeds = draw_speeds(draws)
    phase_ns = draw_work(draws, speeds)
    inner_ns = 6 * MS * speeds * draws.lognormal(0, 0.3, speeds.shape)
    phase_ns[:, :, PHASE[Phase.BACKWARD]] = inner_ns + 14 * MS * speeds * draws.lognormal(0, 0.03, speeds.shape)
    phase_ns[1, :, PHASE[Phase.BACKWARD]] += 2 * MS
    cycles = cut_backward(phase_ns, inner_ns)
    segments = cut_parts(cycles, leave_all(cycles))
    assert [(OWN_PHASES[segment.code], segment.is_whole_part) for segment in segments] == [
        (Phase.FORWARD, True), (Phase.BACKWARD, False), (Phase.BACKWARD, False), (Phase.OPTIMIZER, True)
    ]  # fmt: skip
    assert np.allclose(segments[2].own_ns, inner_ns)
    assert np.allclose(segments[1].own_ns + inner_ns, phase_ns[:, :, PHASE[Phase.BACKWARD]])
    (found,) = name(cycles)
    assert (found.rows.tolist(), found.part) == ([1], Phase.BACKWARD)
    assert found.late_ns == pytest.approx(2 * MS, rel=0.2)
    whole = make_cycles(phase_ns)
    assert not detect(whole, detect_slow_ranks) and not name(whole)


def test_backward_is_not_cut_where_other_parts_may_lie_between_its_buckets() -> None:
    """Two models: a second forward pass follows the wait for the first model's gradients."""
    draws = np.random.default_rng(9)
    phase_ns = draw_work(draws, draw_speeds(draws))
    between_ns = 0.8 * phase_ns[:, :, PHASE[Phase.FORWARD]] + 0.4 * phase_ns[:, :, PHASE[Phase.BACKWARD]]
    cycles = cut_backward(phase_ns, between_ns, first_waits=True)
    assert all(segment.is_whole_part for segment in cut_parts(cycles, leave_all(cycles)))


@pytest.mark.parametrize("times", [0.5, 1.0, 5.0])
def test_the_gaps_lose_no_more_than_speed_explains(times: float) -> None:
    """What else a gap holds may grow with speed, and faster: it stays."""
    draws = np.random.default_rng(3)
    cycles = make_cycles(draw_work(draws, draw_speeds(draws)))
    cycles = structs.replace(cycles, work_ns=times * cycles.work_ns)
    left = remove_common_slowdown(cycles, leave_all(cycles))[1]
    taken_ns = (cycles.work_ns - left.work_ns).sum(axis=2)
    explained_ns = (cycles.phase_ns - left.phase_ns).sum(axis=2)
    assert np.abs(explained_ns).max() > MS
    assert (np.abs(taken_ns) <= np.abs(explained_ns) + 1e-3).all()


def make_job(own_ns: FloatArray) -> Run:
    times = {phase: own_ns[:, :, PHASE[phase]] for phase in LONG_NS}
    total_ns = sum(times.values(), start=np.zeros(()))
    waits_ns = total_ns.max(axis=0) - total_ns
    times[Phase.OPTIMIZER] = np.roll(times[Phase.OPTIMIZER], -1, axis=1)  # it is late in the next step
    return make_run(
        num_ranks=2, num_steps=STEPS, num_warmup=1, host_ns={**USUAL_NS, **times, "all_reduce": 5 * MS + waits_ns}
    )


def test_a_job_is_judged_without_its_speeds_and_the_report_says_who_is_waited_for() -> None:
    draws = np.random.default_rng(1)
    work_ns = draw_work(draws, draw_speeds(draws, slow_ratio=(0.1, 0.95)))
    verdict = analyze(make_job(work_ns)).verdict
    assert verdict.kind not in (VerdictKind.SLOW_RANK, VerdictKind.STALLS) and verdict.rank is None
    assert verdict.reason.startswith("rank 1 is waited for: its own time is larger, but in no phase beyond chance")
    work_ns[0, :, PHASE[Phase.FORWARD]] += 3 * MS
    verdict = analyze(make_job(work_ns)).verdict
    assert (verdict.kind, verdict.rank, verdict.phase) == (VerdictKind.SLOW_RANK, 0, Phase.FORWARD)
