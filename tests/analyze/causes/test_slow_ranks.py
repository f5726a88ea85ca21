"""Which ranks are late steadily, in which part, and what it costs; and who is not blamed."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.causes.common_slowdown import remove_common_slowdown
from distprof.analyze.causes.find_causes import find_causes
from distprof.analyze.causes.slow_ranks import detect_slow_ranks
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, build_cycles
from distprof.analyze.replay.candidate import CandidateCause, choose_second_part
from distprof.analyze.replay.cost import Cost
from distprof.analyze.stats.measured_steps import choose_measured_steps, read_timing
from distprof.analyze.stats.statistics import median_of_others, medians_of_others
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PARTS, OWN_PHASES, Clock, Part, Phase, Run, Stretch
from distprof.render.sections.cause_words import list_causes
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.report.wait_report import Cause
from tests.analyze.stats.test_significance import make_series
from tests.analyze.synthetic_cycles import MEAN_NS, PHASE, detect, draw_drift, draw_own, make_cycles
from tests.factories import MS, USUAL_NS, make_run


def list_blamed(run: Run, clock: Clock = Clock.HOST) -> list[tuple[CandidateCause, Cost]]:
    measured_steps = choose_measured_steps(run)
    cause_costs = find_causes(measured_steps, build_cycles(measured_steps, read_timing(measured_steps, clock)))
    return [] if cause_costs is None else list(cause_costs.named)


def blame(run: Run, clock: Clock = Clock.HOST) -> tuple[CandidateCause, Cost]:
    """The largest cause with a name."""
    return list_blamed(run, clock)[0]


@given(arrays(np.float64, st.tuples(st.integers(2, 7), st.integers(1, 3)), elements=st.integers(0, 9).map(float)))
def test_every_rank_is_compared_to_the_median_of_the_others(values: FloatArray) -> None:
    found = medians_of_others(values)
    for place in range(len(values)):
        for column in range(values.shape[1]):
            assert found[place, column] == median_of_others(values, place)[column]


def make_late_run(late_ns: npt.ArrayLike, *, num_ranks: int = 4, num_steps: int = 12, on: Clock = Clock.HOST) -> Run:
    """Rank 1 is late in ``optimizer`` by this much, and the others wait for it in the next step's ``all_reduce``."""
    late = np.zeros((num_ranks, num_steps))
    late[1] = late_ns
    waits = np.zeros((num_ranks, num_steps))
    waits[:, 1:] = late[1, :-1]
    waits[1] = 0
    times = {**USUAL_NS, "optimizer": 8 * MS + late, "all_reduce": 15 * MS + waits}
    if on is Clock.DEVICE:
        return make_run(num_ranks=num_ranks, num_steps=num_steps, num_warmup=1, device_ns=times)
    return make_run(num_ranks=num_ranks, num_steps=num_steps, num_warmup=1, host_ns=times)


def test_under_strong_drift_all_ranks_tell_how_large_chance_is() -> None:
    """Seven tenths of a part later, where means of fifty cycles vary by 6 %: the noise is known from eight ranks."""
    right = wrong = 0
    for seed in range(20):
        own_ns = draw_drift(np.random.default_rng(seed), 8, 50, related=0.9)
        own_ns = np.concatenate([own_ns, np.zeros((8, 50, len(OWN_PARTS) - own_ns.shape[2]))], axis=2)
        own_ns[5, :, PHASE[Phase.BACKWARD]] += 35 * MS
        cycles = make_cycles(own_ns)
        for found in detect(cycles, detect_slow_ranks):
            right += found.rows.tolist() == [5] and found.part is Phase.BACKWARD
            wrong += found.rows.tolist() != [5]
    assert right >= 15 and wrong <= 1


@pytest.mark.parametrize("clock", [Clock.HOST, Clock.DEVICE])
def test_rows_alone_name_the_rank_and_the_phase(clock: Clock) -> None:
    """100 ms without the delay: 85 of its own and 15 of transfer, of which nothing is lost but the 20. Of 11 cycles
    none hides it; 3 of 11 may."""
    (found,) = list_blamed(make_late_run(20 * MS, on=clock), clock)
    candidate, cost = found
    assert (candidate.rows.tolist(), candidate.part, candidate.pattern) == ([1], Phase.OPTIMIZER, "persistent")
    assert candidate.late_ns == 20 * MS and candidate.acts.all()
    assert (cost.lost_ns.value, cost.lost_ns.high, cost.alone_ns.value) == (20 * MS, 20 * MS, 20 * MS)
    assert cost.lost_ns.low == pytest.approx(20 * MS * 8 / 11)


def test_a_rank_that_is_late_always_and_now_and_then_more_is_one_cause() -> None:
    """20 ms in every step, and 10 more in eight of fifty: 21.6 in the mean; with 50 more 28. Stalls are told apart."""
    struck = np.isin(np.arange(50), [4, 9, 13, 22, 28, 33, 41, 47])
    (found,) = list_blamed(make_late_run((20 + 10 * struck) * MS, num_steps=50))
    candidate, cost = found
    assert (candidate.rows.tolist(), candidate.part, candidate.late_ns) == ([1], Phase.OPTIMIZER, 20 * MS)
    assert cost.lost_ns.value == pytest.approx(21.6 * MS, rel=0.02)  # the last step's follows after the run
    ((candidate, cost),) = list_blamed(make_late_run((20 + 50 * struck) * MS, num_steps=50))
    assert (candidate.rows.tolist(), candidate.part, candidate.pattern) == ([1], Phase.OPTIMIZER, "persistent")
    assert (candidate.late_ns, cost.lost_ns.value) == (pytest.approx(28 * MS, rel=0.02),) * 2
    two = list_blamed(make_late_run((20 + 200 * struck) * MS, num_steps=50))
    assert [(item.rows.tolist(), item.kind) for item, _ in two] == [([1], "stalls"), ([1], "slow_rank")]


def test_what_a_rank_does_between_its_steps_counts_too() -> None:
    """Rank 1 writes something for 30 ms after every step, outside of it; the others wait in the next."""
    step_ns = np.array([[130], [100], [130], [130]]) * MS
    idle_ns = np.array([[0], [30], [0], [0]]) * MS
    begin_ns = 10**12 + np.arange(12) * (step_ns + idle_ns)
    times = {**USUAL_NS, "all_reduce": 15 * MS + step_ns - 100 * MS}
    candidate, cost = blame(make_run(num_ranks=4, num_steps=12, host_ns=times, columns={"begin_host_ns": begin_ns}))
    assert (candidate.rows.tolist(), candidate.part) == ([1], Stretch.BETWEEN)
    assert cost.lost_ns.value == 30 * MS


@pytest.mark.parametrize(("num_steps", "named"), [(MIN_CYCLES, False), (MIN_CYCLES + 1, True)])
def test_a_few_steps_name_nobody(num_steps: int, named: bool) -> None:
    """One step is warm-up."""
    assert bool(list_blamed(make_late_run(20 * MS, num_steps=num_steps))) == named


def test_less_than_half_a_percent_is_nobodys_fault() -> None:
    assert not list_blamed(make_late_run(0.4 * MS))


def test_of_two_ranks_the_slower_one_is_named() -> None:
    assert [item.rows.tolist() for item, _ in list_blamed(make_late_run(20 * MS, num_ranks=2))] == [[1]]


def test_alone_nobody_is_named() -> None:
    assert not list_blamed(make_run(num_ranks=1, num_steps=20))


def test_a_delay_that_goes_from_rank_to_rank_is_nobodys() -> None:
    job = SimulatedJob(delays=(Delay(rank=None, phase=Phase.FORWARD, delay_ns=40 * MS),))
    assert [analyze(simulate(job, seed=seed).run).verdict.rank for seed in range(10)] == [None] * 10


def test_two_slow_ranks_are_both_listed_with_what_each_costs() -> None:
    """Without rank 6, rank 1 still makes the steps 20 ms longer; without rank 1 nothing changes."""
    delays = (Delay(rank=1, phase=Phase.DATA, delay_ns=20 * MS), Delay(rank=6, phase=Phase.BACKWARD, delay_ns=35 * MS))
    (first, cost), (second, other) = list_blamed(simulate(SimulatedJob(delays=delays), seed=1).run)
    assert (first.rows.tolist(), first.part) == ([6], Phase.BACKWARD)
    assert (second.rows.tolist(), second.part) == ([1], Phase.DATA)
    assert cost.lost_ns.value == pytest.approx(15 * MS, rel=0.1) and other.lost_ns.value < 1 * MS
    assert cost.alone_ns.value == pytest.approx(35 * MS, rel=0.1)
    assert other.alone_ns.value == pytest.approx(20 * MS, rel=0.1)


def test_ranks_that_hide_each_other_are_critical_all_the_same() -> None:
    delays = tuple(Delay(rank=rank, phase=Phase.FORWARD, delay_ns=ns * MS) for rank, ns in ((2, 22), (5, 21)))
    report = analyze(simulate(SimulatedJob(delays=delays), seed=1).run)
    assert report.causes is not None
    assert {(item.rank, item.critical) for item in report.causes.causes if item.rank is not None} == {
        (2, True),
        (5, True),
    }
    assert report.verdict.rank == 2 and report.verdict.critical


def test_a_noisy_phase_does_not_hide_a_slow_one() -> None:
    """Forward takes 34 instead of 18 ms in every step, within 2; the optimizer takes anything up to 60."""
    draws = np.random.default_rng(0)
    forward = 18 * MS + draws.normal(0, 1 * MS, (4, 50))
    forward[2] += 16 * MS
    own = {"forward": forward, "optimizer": draws.uniform(5, 60, (4, 50)) * MS, "backward": np.full((4, 50), 20.0 * MS)}
    total = sum(own.values())
    waits = np.maximum(total.max(axis=0) - total, 0) + 2 * MS
    candidate, _ = blame(make_run(num_ranks=4, num_steps=50, num_warmup=0, host_ns={**own, "all_reduce": waits}))
    assert (candidate.rows.tolist(), candidate.part) == ([2], Phase.FORWARD)
    assert candidate.late_ns == pytest.approx(16 * MS, rel=0.1)


def test_what_cancels_over_a_step_is_seen_where_ranks_wait_in_between() -> None:
    """20 ms more in data and 20 ms less in forward: under FSDP the others wait for both, under DDP for neither."""
    delays = tuple(
        Delay(rank=3, phase=phase, delay_ns=ns * MS) for phase, ns in ((Phase.DATA, 20), (Phase.FORWARD, -20))
    )
    sharded = simulate(SimulatedJob(strategy="fsdp", delays=delays), seed=2)
    candidate, cost = blame(sharded.run)
    true_ns = float((sharded.truth.step_ns - sharded.truth.without_delays_ns)[1:].mean())
    assert (candidate.rows.tolist(), candidate.part) == ([3], Phase.DATA)
    assert cost.lost_ns.value == pytest.approx(true_ns, rel=0.15)
    assert not list_blamed(simulate(SimulatedJob(delays=delays), seed=2).run)


@pytest.mark.parametrize("seed", [0, 1, 7, 8])
def test_what_is_made_up_before_anybody_waits_names_nobody(seed: int) -> None:
    """12 ms more in data and 12 less in forward; without the former the rank would be ahead of the others, and steps in
    which it is last would be shorter, but that is no fault."""
    delays = tuple(
        Delay(rank=3, phase=phase, delay_ns=ns * MS) for phase, ns in ((Phase.DATA, 12), (Phase.FORWARD, -12))
    )
    job = SimulatedJob(delays=delays, tail_share_ratio=0.01)
    assert not [item for item, _ in list_blamed(simulate(job, seed=seed, truth=False).run) if item.has_name]


@pytest.mark.parametrize("begin", [18, 30])
def test_one_of_two_ranks_that_drift_is_named_from_where_it_gets_slower(begin: int) -> None:
    """By 22 of 50 ms. Its own time varies by 4 ms, and both ranks' speeds drift by 1 ms of that."""
    right = 0
    for seed in range(20):
        own_ns = draw_own(np.random.default_rng(seed), 2, 50)
        speeds = 1 + 0.02 * make_series(0.9, ranks=2, steps=50, seed=seed)
        own_ns[:, :, PHASE[Phase.BACKWARD]] = 50 * MS * speeds * np.random.default_rng(seed).normal(1, 0.08, (2, 50))
        assert not detect(make_cycles(own_ns), remove_common_slowdown, detect_slow_ranks)
        own_ns[1, begin:, PHASE[Phase.BACKWARD]] += 22 * MS
        found = detect(make_cycles(own_ns), remove_common_slowdown, detect_slow_ranks)
        assert {(int(item.rows[0]), item.part) for item in found} <= {(1, Phase.BACKWARD)}
        right += len(found) == 1 and abs(int(np.flatnonzero(found[0].acts)[0]) - begin) <= 2
    assert right >= 18


def test_a_culprit_that_changes_half_way_is_two() -> None:
    delays = (
        Delay(rank=3, phase=Phase.FORWARD, delay_ns=15 * MS, last_step=29),
        Delay(rank=5, phase=Phase.DATA, delay_ns=15 * MS, first_step=30),
    )
    report = analyze(simulate(SimulatedJob(num_steps=60, delays=delays), seed=4).run)
    assert report.causes is not None
    found = {(item.rank, item.phase, item.first_step, item.last_step) for item in report.causes.causes if item.rank}
    assert found == {(3, "forward", 1, 29), (5, "data", 30, 59)}


@pytest.mark.parametrize("ranks", [2, 3])
def test_of_few_ranks_one_may_be_late_before_another_is(ranks: int) -> None:
    """At most half of the ranks are late at a time, and not in the whole run."""
    delays = (
        Delay(rank=0, phase=Phase.FORWARD, delay_ns=12 * MS, last_step=49),
        Delay(rank=1, phase=Phase.FORWARD, delay_ns=12 * MS, first_step=50),
    )
    report = analyze(simulate(SimulatedJob(num_ranks=ranks, num_steps=100, delays=delays), seed=4).run)
    assert report.causes is not None
    found = {(item.rank, item.phase, item.last_step < 50) for item in report.causes.causes if item.rank is not None}
    assert found == {(0, "forward", True), (1, "forward", False)}


@pytest.mark.parametrize(("drifting", "most"), [(8, 1), (1, 6)])
def test_ranks_whose_speed_drifts_are_not_named(drifting: int, most: int) -> None:
    """Whole ranks with 5 % and a memory of 0.95: over 50 steps their means differ by 3.5 %. Of one that does so alone,
    the others do not tell how much it drifts; it once was named in one job of three."""
    named = 0
    for seed in range(60):
        draws = np.random.default_rng(seed)
        speeds = np.zeros((8, 50))
        speeds[:drifting] = 0.05 * make_series(0.95, ranks=drifting, steps=50, seed=seed)
        own_ns = np.zeros((8, 50, len(OWN_PARTS)))
        own_ns[:, :, : len(MEAN_NS)] = draw_own(draws, 8, 50) * np.exp(speeds)[:, :, None]
        named += bool(detect(make_cycles(own_ns), remove_common_slowdown, detect_slow_ranks))
    assert named <= most


@pytest.mark.parametrize("factor", [1.05, 1.3])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_crowded_core_is_named_for_its_speed_and_no_phase(strategy: Literal["ddp", "fsdp"], factor: float) -> None:
    """Rank 1 takes a third longer for all that it does, or 5 %; or for all but its data."""
    for parts in (OWN_PHASES, OWN_PHASES[1:]):
        delays = tuple(Delay(rank=1, phase=phase, factor=factor) for phase in parts)
        report = analyze(simulate(SimulatedJob(strategy=strategy, num_ranks=4, delays=delays), seed=3).run)
        verdict = report.verdict
        assert (verdict.kind, verdict.rank, verdict.phase, verdict.cause) == ("slow_rank", 1, None, Cause.SPEED)
        assert "ank 1 is " in describe_verdict(report) and ": its speed, which makes " in describe_verdict(report)
        advice = "see what else runs on rank 1's cores; compare its clock rates and thr"
        assert describe_next(report).startswith(advice) or factor < 1.1  # communication costs far more then
        assert any(row[:2] == ["slow rank", "rank 1, speed"] for row in list_causes(report))


@pytest.mark.parametrize("ranks_per_host", [1, 4])
def test_what_is_many_times_longer_in_two_parts_is_no_speed(ranks_per_host: int) -> None:
    """Of two ranks or hosts, one takes 40 times as long for its data and 7 times for its backward, as one whose slow
    dataset leaves its caches cold. It was said to be slow at all it does: compared with what is usual of both, neither
    ratio can be above 2, and so they were alike."""
    own_ms = {"data": (2.5, 105.0), "forward": (0.7, 0.9), "backward": (0.7, 5.1)}
    draws = np.random.default_rng(5)
    host_ns = {
        phase: np.repeat(each, ranks_per_host)[:, None] * draws.uniform(0.9, 1.1, (2 * ranks_per_host, 24)) * MS
        for phase, each in own_ms.items()
    }
    total_ns = sum(host_ns.values())
    run = make_run(
        num_ranks=2 * ranks_per_host, num_steps=24,
        infos={rank: {"host": f"host-{rank // ranks_per_host}"} for rank in range(2 * ranks_per_host)},
        host_ns={**host_ns, "all_reduce": total_ns.max(axis=0) - total_ns + MS},
    )  # fmt: skip
    verdict = analyze(run).verdict
    assert (verdict.kind, verdict.phase) == ("slow_rank" if ranks_per_host == 1 else "slow_host", "data")


@pytest.mark.parametrize("host", [None, 1])
def test_a_second_place_is_named_where_the_first_has_less_than_three_quarters(host: int | None) -> None:
    """12 and 9 ms are 21, and not all in data; of 18 and 3 the first is nearly all."""
    who: dict[str, Any] = {"rank": None if host else 1, "host": host}
    for data_ms, backward_ms, second in ((12, 9, "backward"), (18, 3, None)):
        delays = (
            Delay(**who, phase=Phase.DATA, delay_ns=data_ms * MS),
            Delay(**who, phase=Phase.BACKWARD, delay_ns=backward_ms * MS),
        )
        report = analyze(simulate(SimulatedJob(num_ranks=8, ranks_per_host=4, delays=delays), seed=3).run)
        verdict, sentence = report.verdict, describe_verdict(report)
        assert (verdict.phase, verdict.second_phase) == ("data", second)
        place = re.search(r"its input pipeline \(data \+([\d.]+) ms(?:; also backward \+([\d.]+) ms)?\)", sentence)
        assert place is not None and float(place[1]) == pytest.approx(data_ms, rel=0.1)
        assert place[2] is None if second is None else float(place[2]) == pytest.approx(backward_ms, rel=0.1)


def test_places_beside_the_first_by_hand() -> None:
    late_ns: dict[Part, float] = {Phase.DATA: 6.0, Phase.FORWARD: 2.0, Phase.BACKWARD: 2.0}
    assert choose_second_part(late_ns, Phase.DATA) is Phase.FORWARD
    assert choose_second_part({**late_ns, Phase.DATA: 12.0}, Phase.DATA) is None  # three quarters
    assert choose_second_part({**late_ns, Phase.OTHER: 1.0}, Phase.DATA) is None  # each below a fifth
    assert choose_second_part(late_ns, None) is None


def test_a_crowded_host_is_named_for_its_speed_and_no_phase() -> None:
    delays = tuple(Delay(rank=None, host=1, phase=phase, factor=1.2) for phase in OWN_PHASES)
    job = SimulatedJob(num_ranks=8, ranks_per_host=4, delays=delays)
    verdict = analyze(simulate(job, seed=3).run).verdict
    assert (verdict.kind, verdict.hosts, verdict.phase, verdict.cause) == ("slow_host", ("host-1",), None, Cause.SPEED)


@pytest.mark.parametrize("memory", [0.3, 0.9])
def test_steps_that_are_like_their_neighbours_name_nobody(memory: float) -> None:
    """First-order autoregressions of 2 ms in a step of 100 ms; with memory 0.9, half of all ranks stray for the run."""
    named = 0
    for seed in range(40):
        draws = np.random.default_rng(seed)
        noise = draws.normal(0, 1, (8, 150))
        for step in range(1, 150):
            noise[:, step] = memory * noise[:, step - 1] + np.sqrt(1 - memory**2) * noise[:, step]
        own = {"forward": 30 * MS + 2 * MS * noise[:, 100:], "backward": np.full((8, 50), 60.0 * MS)}
        waits = own["forward"].max(axis=0) - own["forward"] + 2 * MS
        named += bool(
            list_blamed(make_run(num_ranks=8, num_steps=50, num_warmup=0, host_ns={**own, "all_reduce": waits}))
        )
    assert named <= 1
