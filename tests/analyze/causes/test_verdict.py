"""What is said: kinds, critical or not, and when nothing is."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Clocks, Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.causes.find_causes import find_causes
from distprof.analyze.cycles.sync_cycles import build_cycles
from distprof.analyze.stats.measured_steps import choose_headline, choose_measured_steps, read_timing
from distprof.facts.run import Clock, CollectiveKind, Collectives, Phase, Run
from distprof.render.sections.verdict import describe_verdict
from distprof.report.wait_report import Verdict
from tests.analyze.causes.test_verdict_missing import lose_rank
from tests.factories import MS, USUAL_NS, make_run


def judge(job: SimulatedJob, seed: int = 3) -> Verdict:
    return analyze(simulate(job, seed=seed).run).verdict


def test_a_slow_rank_is_critical_with_two_signs() -> None:
    verdict = judge(SimulatedJob(num_ranks=4, delays=(Delay(rank=2, phase=Phase.DATA, delay_ns=41 * MS),)))
    assert (verdict.kind, verdict.critical, verdict.pattern) == ("slow_rank", True, "persistent")
    assert (verdict.rank, verdict.phase, verdict.cause) == (2, "data", "input")
    assert verdict.lost_ns is not None and verdict.lost_ns.low <= verdict.lost_ns.value <= verdict.lost_ns.high
    assert verdict.waited_ns == 3 * verdict.lost_ns.value
    own, waits, phase = verdict.evidence
    assert own.rank_ns - own.others_ns == pytest.approx(41 * MS, rel=0.05)
    assert waits.others_ns - waits.rank_ns == pytest.approx(41 * MS, rel=0.05)
    assert phase.rank_ns - phase.others_ns == pytest.approx(41 * MS, rel=0.01)
    assert [item.agree_ratio for item in verdict.evidence] == [1, 1, 1]


@pytest.mark.slow
def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(40):
        made = simulate(SimulatedJob(delays=(Delay(rank=2, phase=Phase.FORWARD, delay_ns=12 * MS),)), seed=seed)
        lost = analyze(made.run).verdict.lost_ns
        assert lost is not None
        inside += lost.low <= (made.truth.step_ns - made.truth.without_delays_ns).mean() <= lost.high
    assert inside >= 34  # 95 % of 40 is 38; fewer than 34 would be one chance in 150


def test_below_a_tenth_of_the_step_nothing_is_critical() -> None:
    verdict = judge(SimulatedJob(delays=(Delay(rank=2, phase=Phase.DATA, delay_ns=8 * MS),)))
    assert verdict.rank == 2 and not verdict.critical


def make_doubtful_run() -> Run:
    """Rank 1 does more than the others, and waits as long as they do: its waits do not confirm it."""
    late = np.array([[0], [30], [0], [0]]) * MS
    return make_run(num_ranks=4, num_steps=12, host_ns={**USUAL_NS, "forward": 20 * MS + late, "all_reduce": 40 * MS})


def test_one_sign_is_not_enough() -> None:
    verdict = analyze(make_doubtful_run()).verdict
    assert verdict.rank == 1 and not verdict.critical and verdict.confirmed is False
    assert "do not confirm" in verdict.reason
    told = describe_verdict(analyze(make_doubtful_run()))
    assert "do not confirm" in told and "wait " not in told  # it is not said that they wait, and then doubted


def test_a_rank_that_is_waited_for_without_a_cause_is_not_blamed_and_not_hushed_up() -> None:
    """On the device clock what lies between two steps is not seen: rank 1 is late, and its steps show no more work."""
    waits = np.array([[45], [15], [45], [45]]) * MS
    times = {**USUAL_NS, "all_reduce": waits}
    verdict = analyze(make_run(num_ranks=4, num_steps=12, host_ns={"forward": MS}, device_ns=times)).verdict
    assert (verdict.rank, verdict.critical) == (None, False)
    assert verdict.reason.startswith("rank 1 is waited for, and loses the time where distprof does not see it")


def test_jitter_is_nobodys_and_has_its_price() -> None:
    job = SimulatedJob(delays=(Delay(rank=None, phase=Phase.FORWARD, delay_ns=41 * MS),))
    verdict = judge(job)
    assert (verdict.kind, verdict.rank, verdict.critical) == ("jitter", None, False)
    assert verdict.lost_ns is not None and verdict.lost_ns.value == pytest.approx(41 * MS, rel=0.1)


def test_the_larger_of_jitter_and_communication_is_the_verdict_where_nobody_is_named() -> None:
    """Whoever is last costs 41 ms, and moving data much more or much less."""
    turns = (Delay(rank=None, phase=Phase.FORWARD, delay_ns=41 * MS),)
    for transfer_ms, kind in ((200, "communication"), (6, "jitter")):
        report = analyze(simulate(SimulatedJob(delays=turns, transfer_ns=transfer_ms * MS), seed=3).run)
        verdict, causes = report.verdict, report.causes
        assert causes is not None and verdict.lost_ratio is not None and verdict.kind == kind
        assert verdict.rank is None and not verdict.critical
        largest = max(causes.causes, key=lambda cause: cause.saved_if_only_this_ratio.value)
        assert largest.kind is verdict.kind and largest.saved_if_only_this_ratio == verdict.lost_ratio


LINK = SimulatedJob(
    num_ranks=8, ranks_per_host=4, slow_hosts={1: 100}, link_bytes_per_s=5e9, bucket_bytes=7_000_000
)  # fmt: skip


@pytest.mark.parametrize("clocks", [Clocks(), Clocks(offset_ns=3e9, drift_ratio=50e-6, bound_ns=30_000)])
def test_a_slow_link_is_no_slow_rank(clocks: Clocks) -> None:
    verdict = judge(structs.replace(LINK, clocks=clocks))
    assert (verdict.kind, verdict.critical, verdict.rank) == ("slow_link", True, None)
    assert verdict.hosts == ("host-0", "host-1")
    # four buckets of 7 MB, twice 7/8 of each through a rank's end of the ring, at a hundredth of 5 GB/s
    assert verdict.needed_ns == pytest.approx(4 * 7e6 * 2 * 7 / 8 / 50e6 * 1e9)
    assert verdict.reason == "it carries 50 MB/s, less than gigabit Ethernet"


def test_with_a_rank_missing_no_link_is_blamed() -> None:
    assert analyze(lose_rank(simulate(LINK, seed=3).run, 7)).verdict.kind == "none"


def test_a_probe_says_nothing_about_the_network_of_another_backend() -> None:
    run = simulate(LINK, seed=3).run
    nccl = structs.replace(run, meta=structs.replace(run.meta, backend="nccl"))
    assert analyze(nccl).verdict.kind == "communication"


def test_of_many_hosts_the_slow_one_is_named_alone() -> None:
    job = structs.replace(LINK, num_ranks=16, slow_hosts={2: 100})
    assert judge(job).hosts == ("host-2",)


def test_transfers_far_longer_than_their_bytes_need_are_not_the_links_doing() -> None:
    """The link needs a thirtieth of what moving the data costs: the time goes elsewhere."""
    assert judge(structs.replace(LINK, bucket_bytes=250_000)).kind == "communication"


def test_a_slow_rank_behind_a_healthy_link_is_a_slow_rank() -> None:
    job = SimulatedJob(num_ranks=8, ranks_per_host=4, delays=(Delay(rank=5, phase=Phase.BACKWARD, delay_ns=50 * MS),))
    verdict = judge(job)
    assert (verdict.kind, verdict.rank, verdict.cause) == ("slow_rank", 5, "compute")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("num_ranks", [8, 16])
def test_a_slow_host_is_named_as_a_whole(strategy: str, num_ranks: int) -> None:
    """Half or a quarter of the ranks are late by 30 ms: each of them alone could be quick without anybody gaining."""
    delays = tuple(Delay(rank=rank, phase=Phase.FORWARD, delay_ns=30 * MS) for rank in range(4, 8))
    job = SimulatedJob(strategy=strategy, num_ranks=num_ranks, ranks_per_host=4, delays=delays)
    made = simulate(job, seed=3)
    verdict = analyze(made.run).verdict
    assert (verdict.kind, verdict.hosts, verdict.rank) == ("slow_host", ("host-1",), None)
    assert (verdict.phase, verdict.cause, verdict.critical) == ("forward", "compute", True)
    assert verdict.lost_ns is not None
    true_ns = (made.truth.step_ns - made.truth.without_delays_ns)[1:].mean()
    assert verdict.lost_ns.value == pytest.approx(true_ns, rel=0.03)
    assert verdict.waited_ns == verdict.lost_ns.value * (num_ranks - 4)


def test_one_slow_rank_does_not_make_its_host_slow() -> None:
    job = SimulatedJob(num_ranks=16, ranks_per_host=4, delays=(Delay(rank=5, phase=Phase.DATA, delay_ns=30 * MS),))
    verdict = judge(job)
    assert (verdict.kind, verdict.rank, verdict.hosts) == ("slow_rank", 5, ())


@pytest.mark.slow
def test_hosts_alike_are_nobodys_fault() -> None:
    found = [judge(SimulatedJob(num_ranks=16, ranks_per_host=4), seed=seed).kind for seed in range(30)]
    assert set(found) <= {"none", "jitter", "communication"}


def make_turns(num_ranks: int, *, leave_late: bool) -> Run:
    """Every rank has nothing to do before one of the buckets, in turn, and 10 ms before each other: nobody is last.

    Where ranks leave late, each collective is waited for, and every other rank comes out of it 3 ms after the rest and
    has as much less to do before the next.
    """
    steps, buckets = 20, num_ranks
    own = np.full((num_ranks, steps, buckets), 10.0 * MS)
    if leave_late:
        left_ms = 3.0 * (np.add.outer(np.arange(num_ranks), np.arange(buckets)) % 2)[:, None, :]
        own[:, :, 1:] -= left_ms[:, :, :-1] * MS
        took = np.broadcast_to((2 + left_ms) * MS, own.shape)
        waited = took
    else:
        own -= 10 * MS * np.eye(num_ranks)[:, None, :]
        took = np.zeros_like(own)
        waited = np.zeros_like(own)
        waited[:, :, -1] = 2 * MS
    begin = 10**12 + 200.0 * MS * np.arange(steps)
    arrival = begin[None, :, None] + np.cumsum(own, axis=2) + np.cumsum(waited, axis=2) - waited
    run = make_run(
        num_ranks=num_ranks, num_steps=steps, num_warmup=0,
        host_ns={"backward": own.sum(axis=2), "all_reduce": waited.sum(axis=2),
                 "optimizer": 200 * MS - own.sum(axis=2) - waited.sum(axis=2)},
        columns={"begin_host_ns": begin},
    )  # fmt: skip
    table = Collectives(
        group="default", ranks=np.arange(num_ranks), size=num_ranks, kinds=(CollectiveKind.ALL_REDUCE,) * buckets,
        phases=(Phase.BACKWARD,) * buckets, sizes_bytes=(8,) * buckets, steps=np.arange(steps), arrival_ns=arrival,
        end_ns=arrival + np.maximum(took, waited), exposed_ns=waited,
    )  # fmt: skip
    return structs.replace(run, collectives=(table,))


@pytest.mark.parametrize("leave_late", [False, True])
@pytest.mark.parametrize("num_ranks", [3, 4, 5])
def test_waiting_for_whoever_is_last_never_costs_less_than_nothing(num_ranks: int, leave_late: bool) -> None:
    measured_steps = choose_measured_steps(make_turns(num_ranks, leave_late=leave_late))
    headline = choose_headline(measured_steps, *(read_timing(measured_steps, clock) for clock in Clock))
    made = find_causes(measured_steps, build_cycles(measured_steps, headline))
    assert made is not None and not made.named
    jitter = made.jitter.alone_ratio
    assert 0 <= jitter.low <= jitter.value <= jitter.high
    assert jitter.value == pytest.approx(0, abs=0.02)


def test_ranks_that_do_not_go_through_their_steps_together_have_no_verdict() -> None:
    """A rank whose steps are a hundred times as long as the others', who wait for it for no more than 15 ms."""
    factor = np.array([[1], [1], [100]])
    run = make_run(num_ranks=3, num_steps=20, host_ns={name: np.asarray(ns) * factor for name, ns in USUAL_NS.items()})
    verdict = analyze(run).verdict
    assert (verdict.kind, verdict.rank, verdict.lost_ratio) == ("none", None, None)
    assert verdict.reason == "the ranks are not in lockstep: rank 2's steps take more than twice as long as others'"


def test_a_delay_that_transfers_hide_is_not_said_to_be_unseen() -> None:
    """Rank 2 comes 40 late to the last of eight buckets, before which the others' transfers have long queued up."""
    late = Delay(rank=2, phase=Phase.BACKWARD, delay_ns=40 * MS, piece=7)
    made = simulate(SimulatedJob(transfer_ns=250 * MS, num_buckets=8, delays=(late,)), seed=1)
    assert (made.truth.step_ns - made.truth.without_delays_ns).mean() < 0.01 * made.truth.step_ns.mean()
    verdict = analyze(made.run).verdict
    assert verdict.rank is None
    assert verdict.reason.startswith("rank 2 arrives after the others, but transfers hide it")
