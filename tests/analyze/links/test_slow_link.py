"""Which link is slow, or becomes so in the middle of a job, what it costs, and that healthy networks are left alone."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Clocks, Delay, SimulatedJob
from benchmarks.verdicts.verdict_rows.links import rate_links
from distprof.analyze.links.link_speeds import GIGABIT_BYTES_PER_S
from distprof.analyze.links.link_traffic import list_traffic
from distprof.analyze.links.slow_link import locate_change
from distprof.analyze.replay.replay import replay_without
from distprof.facts.run import OWN_PHASES, Phase
from tests.analyze.links.linked_runs import APART, FOUR, TWO, USUAL, Strategy, find, measure, set_readings, simulate_run
from tests.factories import MS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("clocks", [Clocks(), APART])
def test_what_goes_with_a_link_is_what_transfers_take_beyond_those_on_other_links(clocks: Clocks) -> None:
    """Each of the four units' transfers takes 10 ms instead of 2.5."""
    run = simulate_run(structs.replace(FOUR, clocks=clocks))
    (candidate,) = find(run)
    assert (candidate.kind, candidate.hosts) == ("slow_link", ("host-2",))
    assert candidate.part is None and candidate.late_ns is None
    assert len(candidate.rows) == 0 and candidate.acts.all() and candidate.counterfactual.work_ns == {}
    taken_ns = candidate.counterfactual.transfer_ns
    assert taken_ns is not None
    assert taken_ns[:, :, 0] == pytest.approx(7.5 * MS, abs=0.5 * MS if clocks is APART else 100)
    twice = "at both ends of the job it carries less than three quarters of what the other links do"
    assert candidate.reason == twice
    once = measure(set_readings(run, USUAL, USUAL / 4, USUAL, last=()))
    (candidate,) = find(once)
    assert candidate.reason == "it carries less than half of what the other links do"


def assert_named_at_its_cost(job: SimulatedJob) -> None:
    """The link of the third host is named, and costs what the job saves on a link like the others."""
    measured_steps, cycles = measure(simulate_run(job))
    _, healthy = measure(simulate_run(structs.replace(job, slow_hosts={})))
    (candidate,) = find((measured_steps, cycles))
    assert candidate.hosts == ("host-2",)
    true_ns = float(cycles.cycle_ns.mean() - healthy.cycle_ns.mean())
    saved_ns = float((cycles.cycle_ns - replay_without(cycles, [candidate.counterfactual])).mean())
    assert saved_ns == pytest.approx(true_ns, rel=0.05)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_the_cost_is_what_the_job_saves_on_a_link_like_the_others(strategy: Strategy) -> None:
    job = rate_links(structs.replace(FOUR, strategy=strategy, jitter_ratio=0.02))
    assert_named_at_its_cost(job)


def draw_job(draws: np.random.Generator) -> SimulatedJob:
    """A healthy job with jitter and, mostly, a rank that is late by 5 to 20 % of the step."""
    ranks = int(draws.choice([16, 32]))
    phase = OWN_PHASES[int(draws.integers(4))]
    late = Delay(rank=int(draws.integers(ranks)), phase=phase, delay_ns=float(draws.uniform(5, 20)) * MS)
    return SimulatedJob(
        strategy=draws.choice(["ddp", "fsdp", "hsdp"]), num_ranks=ranks, num_steps=20,
        ranks_per_host=ranks // int(draws.choice([2, 4, 8])), jitter_ratio=float(draws.choice([0.02, 0.05, 0.1])),
        delays=(late,) if draws.random() < 0.7 else (),
        clocks=APART if draws.random() < 0.5 else Clocks(),
    )  # fmt: skip


@pytest.mark.slow
def test_no_link_of_a_healthy_network_is_named_and_a_slow_one_is() -> None:
    draws = np.random.default_rng(11)
    for seed in range(30):
        job = draw_job(draws)
        assert find(simulate_run(job, seed)) == [], job
        slow = structs.replace(job, ranks_per_host=job.num_ranks // 4, slow_hosts={2: 4.0})
        assert [candidate.hosts for candidate in find(simulate_run(slow, seed))] == [("host-2",)], slow


def test_of_two_slow_links_the_slower_one_sets_the_pace() -> None:
    """With the slower one repaired, transfers take 5/8 as long; with both, a quarter."""
    job = rate_links(structs.replace(FOUR, num_ranks=24))
    speeds = [job.link_bytes_per_s / factor for factor in (1, 4, 2.5, 1, 1)]
    slower, slow = find(set_readings(simulate_run(job), *speeds))
    assert (slower.hosts, slow.hosts) == (("host-2",), ("host-3",))
    for candidate, share in ((slower, 1 - 2.5 / 4), (slow, 2.5 / 4 - 2.5 / 10)):
        assert candidate.counterfactual.transfer_ns is not None
        assert candidate.counterfactual.transfer_ns[:, :, 0] == pytest.approx(share * 10 * MS, abs=100)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_a_probe_that_read_too_little_is_not_believed(strategy: Strategy) -> None:
    """The steps themselves move data through that link as fast as through the others; under HSDP, that of four groups
    side by side."""
    job = rate_links(structs.replace(FOUR, strategy=strategy, shard_size=4, slow_hosts={}))
    usual = job.link_bytes_per_s
    assert find(set_readings(simulate_run(job), usual, 0.4 * usual, usual)) == []


def test_a_link_that_is_slower_by_a_third_needs_two_probes_that_agree() -> None:
    """What its transfers take beyond those on other links: a third."""
    run = simulate_run(structs.replace(FOUR, slow_hosts={2: 1.5}))
    measured_steps, cycles = measure(run)
    (candidate,) = find((measured_steps, cycles))
    assert candidate.hosts == ("host-2",) and candidate.counterfactual.transfer_ns is not None
    assert candidate.counterfactual.transfer_ns[:, :, 0] == pytest.approx(cycles.transfer_ns[:, :, 0] / 3)
    healthy, slow = (USUAL,) * 3, (USUAL, USUAL / 1.5, USUAL)
    assert find(set_readings(run, *slow, last=())) == []  # as of a job that died
    assert find(set_readings(run, *slow, last=healthy)) == []
    assert find(set_readings(run, *healthy, last=slow)) == []  # and transfers have not grown


@pytest.mark.parametrize(
    ("took_ms", "then_ms"),
    [
        (10, 2.5),  # the link is all that takes time
        (16, 8.5),  # 6 ms are the hosts', and stay
        (6, 2.5),  # some of the bytes cross before the last rank arrives; all of them need 2.5 ms
        (7, 2.5),
    ],
)
def test_a_transfer_that_needs_10_ms_on_a_slow_link_and_2_5_on_a_usual_one(took_ms: float, then_ms: float) -> None:
    run = simulate_run(structs.replace(FOUR, transfer_ns=took_ms * MS))  # of each of its 4 units
    (candidate,) = find(run)
    assert candidate.counterfactual.transfer_ns is not None
    assert candidate.counterfactual.transfer_ns[:, :, 0] == pytest.approx((took_ms - then_ms) * MS, abs=100)


def test_the_parts_that_replicas_reduce_share_a_link() -> None:
    """HSDP shards fill a host: 4 parts of a quarter go side by side, each at a quarter of what the link carries."""
    ring_bytes = 2 * 3 / 4 * 25e6
    job = structs.replace(FOUR, strategy="hsdp", shard_size=4, link_bytes_per_s=ring_bytes / 2.5e-3)
    measured_steps, cycles = measure(simulate_run(job))
    reduced = [item for item in list_traffic(measured_steps, cycles) if item.group.startswith("replica")]
    assert sum(item.ring_bytes for item in reduced[:4]) == ring_bytes
    (candidate,) = find((measured_steps, cycles))
    assert candidate.needed_ns == pytest.approx(40 * MS, rel=1e-3)  # and the norm's bytes


def test_a_few_links_are_no_measure_for_one_another() -> None:
    three = simulate_run(structs.replace(FOUR, num_ranks=12))
    assert find(three) == [] and len(three.meta.link_readings) == 2


def test_a_link_that_carries_little_is_none_of_transfers_that_need_little() -> None:
    assert find(simulate_run(structs.replace(FOUR, bucket_bytes=25_000))) == []


def test_the_only_link_is_compared_with_gigabit_ethernet() -> None:
    measured_steps, cycles = measure(simulate_run(TWO))
    (candidate,) = find((measured_steps, cycles))
    assert candidate.hosts == ("host-0", "host-1")
    assert candidate.counterfactual.transfer_ns is not None
    assert candidate.counterfactual.transfer_ns == pytest.approx(0.8 * cycles.transfer_ns, rel=0.01)
    needed_ns = candidate.needed_ns
    assert needed_ns == pytest.approx(4 * 168_000 * 2 * 7 / 8 / (GIGABIT_BYTES_PER_S / 5) * 1e9)
    assert candidate.reason == "it carries 23.5 MB/s, less than gigabit Ethernet"
    assert find(set_readings(measured_steps.run, 0.85 * GIGABIT_BYTES_PER_S)) == []


def test_a_network_that_is_slow_everywhere_is_named_by_all_its_hosts() -> None:
    """Three hosts whose links carry 30 and 25 MB/s, of which the slower one sets the pace."""
    run = simulate_run(structs.replace(TWO, num_ranks=12))
    (candidate,) = find(set_readings(run, 30e6, 25e6))
    assert candidate.hosts == ("host-0", "host-1", "host-2")
    assert candidate.reason == "it carries 25 MB/s, less than gigabit Ethernet"
    (candidate,) = find(set_readings(run, 10e9, 25e6))
    assert candidate.hosts == ("host-2",)
    assert find(set_readings(run, 10e9, 10e9)) == []


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_a_link_is_named_where_hosts_take_more_of_the_transfers_than_it_does(strategy: Strategy) -> None:
    """On a usual link the bytes need a sixth of a transfer; where they need four times as long, four of nine parts."""
    job = rate_links(structs.replace(FOUR, strategy=strategy, link_share_ratio=1 / 6, transfer_ns=30 * MS))
    assert_named_at_its_cost(job)


def test_a_probe_says_nothing_of_the_network_of_another_backend() -> None:
    run = simulate_run(FOUR)
    assert find(structs.replace(run, meta=structs.replace(run.meta, backend="nccl"))) == []


def test_ranks_that_never_arrive_together_hide_a_link() -> None:
    """A rank chosen anew in every step is late by several times what the transfers take."""
    late = Delay(rank=None, phase=Phase.FORWARD, delay_ns=200 * MS)
    job = structs.replace(FOUR, strategy="ddp")
    assert find(simulate_run(job)) and not find(simulate_run(structs.replace(job, delays=(late,))))


def test_a_rank_that_is_always_late_does_not_hide_a_link() -> None:
    late = Delay(rank=5, phase=Phase.FORWARD, delay_ns=200 * MS)
    assert find(simulate_run(structs.replace(FOUR, strategy="ddp", delays=(late,))))


def test_transfers_of_a_group_on_one_host_cross_no_link() -> None:
    """HSDP shards within a host, so only the reduction over the replicas crosses the link."""
    measured_steps, cycles = measure(simulate_run(structs.replace(TWO, strategy="hsdp", bucket_bytes=200_000)))
    crossing = {item.group for item in list_traffic(measured_steps, cycles) if len(item.hosts) > 1}
    assert crossing == {"default", *(f"replica-{number}" for number in range(4))}
    (candidate,) = find((measured_steps, cycles))
    assert candidate.counterfactual.transfer_ns is not None
    for item in list_traffic(measured_steps, cycles):
        removed_ns = candidate.counterfactual.transfer_ns[item.rows, :, item.index]
        assert bool(removed_ns.any()) == (item.group in crossing)


LATER = structs.replace(FOUR, num_steps=40, slow_from_step=15, jitter_ratio=0.02)
GROWN = "transfers between hosts take longer than before, and nothing else does"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_a_link_that_became_slow_is_measured_against_its_past_and_probed_again(strategy: Strategy) -> None:
    job = structs.replace(LATER, strategy=strategy)
    measured_steps, cycles = measure(simulate_run(job))
    (candidate,) = find((measured_steps, cycles))
    assert candidate.hosts == ("host-2",)
    assert cycles.steps[candidate.acts].tolist() == list(range(15, 40))
    assert candidate.needed_ns is None
    assert candidate.reason == f"{GROWN}; a probe at the end of the job finds this link slow"
    _, healthy = measure(simulate_run(structs.replace(job, slow_hosts={}, slow_from_step=0)))
    true_ns = float(cycles.cycle_ns.mean() - healthy.cycle_ns.mean())
    saved_ns = float((cycles.cycle_ns - replay_without(cycles, [candidate.counterfactual])).mean())
    assert saved_ns == pytest.approx(true_ns, rel=0.05)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_of_a_job_that_died_only_hsdps_groups_tell_which_link_became_slow(strategy: Strategy) -> None:
    """Probed at the start, every link was well; so all hosts are named unless some transfers are as fast as ever."""
    run = set_readings(simulate_run(structs.replace(LATER, strategy=strategy)), 10e9, 10e9, 10e9, last=())
    measured_steps, cycles = measure(run)
    (candidate,) = find((measured_steps, cycles))
    assert candidate.hosts == (("host-2",) if strategy == "hsdp" else ("host-0", "host-1", "host-2", "host-3"))
    assert candidate.reason == GROWN


def test_transfers_that_grew_are_none_of_links_that_a_probe_finds_as_fast_as_before() -> None:
    run = simulate_run(LATER)
    assert find(set_readings(run, 10e9, 10e9, 10e9)) == []
    (all_slow,) = find(set_readings(run, 10e9, 10e9, 10e9, last=(5e9, 5e9, 5e9)))  # rank 0's link, or what they share
    assert all_slow.hosts == ("host-0", "host-1", "host-2", "host-3")
    hsdp = simulate_run(structs.replace(LATER, strategy="hsdp"))
    assert find(set_readings(hsdp, 10e9, 10e9, 10e9, last=(2.5e9, 10e9, 10e9))) == []  # slower transfers end elsewhere


def test_of_two_links_that_became_slow_the_slower_one_sets_the_pace() -> None:
    """Transfers grew from 2.5 to 10 ms: with the slower link repaired, they take 6.25 ms; with both, 2.5."""
    run = simulate_run(structs.replace(LATER, num_ranks=24, jitter_ratio=0))
    slower, slow = find(set_readings(run, *[10e9] * 5, last=(10e9, 2.5e9, 4e9, 10e9, 10e9)))
    assert (slower.hosts, slow.hosts) == (("host-2",), ("host-3",))
    for candidate, took_ns in ((slower, 3.75 * MS), (slow, 3.75 * MS)):
        assert candidate.counterfactual.transfer_ns is not None
        assert candidate.counterfactual.transfer_ns[:, -1, 0] == pytest.approx(took_ns, abs=100)


def test_if_the_ranks_own_work_slows_down_with_the_transfers_it_is_not_the_network() -> None:
    slower = tuple(Delay(rank=rank, phase=Phase.FORWARD, delay_ns=250 * MS, first_step=15) for rank in range(16))
    assert find(simulate_run(LATER)) and not find(simulate_run(structs.replace(LATER, delays=slower)))


def test_a_change_has_to_last() -> None:
    level = np.repeat([10.0, 14.0], [20, 20])
    noise = np.random.default_rng(2).normal(0, 0.5, 40)
    assert locate_change(level) == 20 and locate_change(level + noise) == 20
    assert locate_change(-level) is None and locate_change(level[:15]) is None
    burst = np.where((np.arange(40) >= 15) & (np.arange(40) < 25), 14.0, 10.0)
    assert locate_change(burst + noise) is None
    assert locate_change(np.repeat([10.0, 12.0], [20, 20])) is None


def test_drift_is_no_change() -> None:
    """A first-order autoregression wanders by a third of its mean."""
    draws = np.random.default_rng(5)
    found = 0
    for _ in range(500):
        values = np.zeros(100)
        for step in range(1, 100):
            values[step] = 0.9 * values[step - 1] + draws.normal(0, 0.1 * np.sqrt(1 - 0.9**2))
        found += locate_change(10 * np.exp(values)) is not None
    assert found <= 5
