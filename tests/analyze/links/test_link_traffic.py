"""Links of a job over NCCL: by its probe, by its collectives on the device clock, and by groups on other hosts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from msgspec import structs

from benchmarks.verdicts.verdict_rows.links import rate_links
from distprof.analyze import analyze
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.links.link_speeds import GIGABIT_BYTES_PER_S, LinkSpeeds, list_slow
from distprof.analyze.links.link_traffic import list_slow_groups, list_traffic
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.run import Clock, LinkReading
from distprof.report.wait_report import VerdictKind
from tests.analyze.device_jobs import Job, Times, make_fsdp
from tests.analyze.links.device_links import make_device_run, measure_on_device
from tests.analyze.links.linked_runs import FOUR, Strategy, find
from tests.analyze.links.test_slow_link import draw_job
from tests.factories import MS

SHARDS = rate_links(structs.replace(FOUR, strategy="hsdp", shard_size=4, slow_hosts={}, jitter_ratio=0.02))
"""Shards fill a host, so what they gather and scatter stays on it."""


def slow_down(
    measured_steps: MeasuredSteps, cycles: SyncCycles, factors: Mapping[str, float], spread_ratio: float = 0.02
) -> SyncCycles:
    """Transfers inside these hosts take longer; those of all hosts differ by chance."""
    draws, transfer_ns = np.random.default_rng(5), cycles.transfer_ns.copy()
    for item in list_traffic(measured_steps, cycles):
        if len(item.hosts) == 1:
            noise = draws.lognormal(0, spread_ratio, len(cycles.steps))
            transfer_ns[item.rows, :, item.index] *= noise * factors.get(min(item.hosts), 1.0)
    return structs.replace(cycles, transfer_ns=transfer_ns)


def find_groups(factors: Mapping[str, float], spread_ratio: float = 0.02) -> list[tuple[str, ...]]:
    measured_steps, cycles = measure_on_device(SHARDS)
    slow = slow_down(measured_steps, cycles, factors, spread_ratio)
    return [hosts for hosts, _ in list_slow_groups(slow, list_traffic(measured_steps, slow))]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_probe_over_nccl_that_the_collectives_agree_with_names_the_link(strategy: Strategy) -> None:
    """As over gloo: 10 ms in place of 2.5 for each of four units."""
    job = rate_links(structs.replace(FOUR, strategy=strategy, jitter_ratio=0.02))
    measured_steps, cycles = measure_on_device(job)
    (candidate,) = find((measured_steps, cycles))
    assert (candidate.kind, candidate.hosts) == ("slow_link", ("host-2",))
    assert candidate.counterfactual.transfer_ns is not None and candidate.needed_ns is not None
    assert candidate.counterfactual.transfer_ns[:, :, 0] == pytest.approx(7.5 * MS, abs=0.5 * MS)
    assert find(measure_on_device(structs.replace(job, slow_hosts={}))) == []


def test_probes_over_gloo_say_nothing_of_a_job_over_nccl() -> None:
    measured_steps, cycles = measure_on_device(FOUR)
    meta = measured_steps.run.meta
    gloo = tuple(structs.replace(link, network="gloo") for link in meta.link_readings)
    run = structs.replace(measured_steps.run, meta=structs.replace(meta, link_readings=gloo, last_link_readings=()))
    assert find((structs.replace(measured_steps, run=run), cycles)) == []


def test_the_only_link_of_nccl_is_not_compared_with_ethernet() -> None:
    low = {"b": 0.1 * GIGABIT_BYTES_PER_S}
    assert list_slow(LinkSpeeds(near="a", network="gloo", first=low, last={}))
    assert not list_slow(LinkSpeeds(near="a", network="nccl", first=low, last={}))


def test_a_link_of_nccl_became_slow_by_its_collectives_alone() -> None:
    """It is not probed at the end, so the ends of the slower transfers are named."""
    job = structs.replace(FOUR, slow_hosts={}, num_steps=40, jitter_ratio=0.02)
    measured_steps, cycles = measure_on_device(job)
    run = measured_steps.run
    once = structs.replace(run, meta=structs.replace(run.meta, last_link_readings=()))
    measured_steps = structs.replace(measured_steps, run=once)
    since = np.arange(len(cycles.steps)) >= 20
    transfer_ns = cycles.transfer_ns * np.where(since, 2, 1)[:, None]
    (candidate,) = find((measured_steps, structs.replace(cycles, transfer_ns=transfer_ns)))
    assert candidate.hosts == ("host-0", "host-1", "host-2", "host-3") and candidate.acts.tolist() == since.tolist()


def test_a_host_whose_shards_take_longer_than_those_of_others_is_named_with_what_that_costs() -> None:
    measured_steps, cycles = measure_on_device(SHARDS)
    slow = slow_down(measured_steps, cycles, {"host-2": 2.0})
    (candidate,) = find((measured_steps, slow))
    assert candidate.hosts == ("host-2",) and candidate.acts.all()
    assert candidate.counterfactual.transfer_ns is not None
    for item in list_traffic(measured_steps, slow):
        removed_ns = candidate.counterfactual.transfer_ns[item.rows, :, item.index]
        usual_ns = np.median(cycles.transfer_ns[item.rows, :, item.index])
        expected_ns = usual_ns if item.hosts == {"host-2"} else 0.0
        assert removed_ns == pytest.approx(expected_ns, rel=0.05, abs=1.0)
    assert candidate.needed_ns is None
    reason = "collectives over it move data at less than three quarters of the speed of those of other hosts"
    assert candidate.reason == reason


def test_a_group_is_named_only_beyond_the_limit_and_what_the_others_differ_by() -> None:
    assert find_groups({}) == [] and find_groups({"host-2": 1.25}) == [] and find_groups({"host-2": 0.5}) == []
    assert find_groups({"host-2": 1.5}) == [("host-2",)]
    assert find_groups({"host-1": 1.5, "host-2": 3.0}) == [("host-2",), ("host-1",)]
    # The others differ by a fifth themselves.
    assert find_groups({"host-0": 0.8, "host-1": 1.2, "host-3": 1.0, "host-2": 1.5}) == []
    # Now and then transfers take four times as long, on any host.
    assert find_groups({"host-2": 1.4}, spread_ratio=0.7) == []


def test_the_host_clock_and_too_few_groups_say_nothing() -> None:
    measured_steps, cycles = measure_on_device(SHARDS)
    slow = slow_down(measured_steps, cycles, {"host-1": 3.0})
    traffic = list_traffic(measured_steps, slow)
    assert list_slow_groups(slow, traffic) and not list_slow_groups(structs.replace(slow, clock=Clock.HOST), traffic)
    two = [item for item in traffic if item.hosts in ({"host-1"}, {"host-2"})]
    assert not list_slow_groups(slow, two)


def test_a_host_whose_own_work_is_slow_too_has_no_slow_link() -> None:
    measured_steps, cycles = measure_on_device(SHARDS)
    slow = slow_down(measured_steps, cycles, {"host-2": 1.5})
    inside = np.array([measured_steps.run.ranks[at].host == "host-2" for at in cycles.positions.tolist()])
    hot = structs.replace(slow, work_ns=slow.work_ns * np.where(inside, 1.3, 1.0)[:, None, None])
    traffic = list_traffic(measured_steps, slow)
    assert list_slow_groups(slow, traffic) and not list_slow_groups(hot, traffic)


def test_replicas_that_share_their_hosts_name_nobody() -> None:
    """Each joins one rank of every host: the slow one tells which of the hosts' network cards, not of which host."""
    measured_steps, cycles = measure_on_device(SHARDS)
    transfer_ns = cycles.transfer_ns.copy()
    traffic = list_traffic(measured_steps, cycles)
    for item in traffic:
        if item.group == "replica-1":
            transfer_ns[item.rows, :, item.index] *= 3
    assert list_slow_groups(structs.replace(cycles, transfer_ns=transfer_ns), traffic) == []


def test_the_report_of_a_job_over_nccl_names_its_slow_link_and_shows_what_its_collectives_reach() -> None:
    report = analyze(make_device_run(structs.replace(FOUR, jitter_ratio=0.02)))
    verdict = report.verdict
    assert (verdict.kind, verdict.hosts, verdict.clock) == (VerdictKind.SLOW_LINK, ("host-2",), "device")
    assert verdict.reason == "it carries less than half of what the other links do"
    (bucket, *_) = report.bandwidths
    assert (bucket.kind, bucket.least_bytes, len(bucket.hosts)) == ("all_gather", 25_000_000, 4)
    assert bucket.bus_bytes_per_s == pytest.approx(25e6 * 15 / 16 / 10e-3, rel=0.01)  # a quarter of 2.5 ms' worth


@pytest.mark.slow
def test_over_nccl_no_link_of_a_healthy_network_is_named_and_a_slow_one_is() -> None:
    draws = np.random.default_rng(12)
    for seed in range(30):
        job = draw_job(draws)
        assert find(measure_on_device(job, seed)) == [], job
        slow = structs.replace(job, ranks_per_host=job.num_ranks // 4, slow_hosts={2: 4.0})
        found = find(measure_on_device(slow, seed))
        assert [candidate.hosts for candidate in found] == [("host-2",)], slow


def test_under_fsdp2_where_ranks_wait_later_than_they_issue_the_probed_link_is_named() -> None:
    """Each collective takes 20 ms, as it does where a ring's 15/16 of a megabyte cross the slow link."""
    run = make_fsdp(Times(16, 30, noise=0.02), transfer_ns=20 * MS).record(hosts=4)
    slow = 1e6 * 15 / 16 / 20e-3
    links = tuple(
        LinkReading(rank=rank, bytes_per_s=slow * (1 if rank == 8 else 4), network="nccl") for rank in (4, 8, 12)
    )
    verdict = analyze(structs.replace(run, meta=structs.replace(run.meta, link_readings=links))).verdict
    assert (verdict.kind, verdict.hosts) == (VerdictKind.SLOW_LINK, ("host-2",)) and verdict.critical


def test_what_slow_shards_cost_is_what_steps_take_longer() -> None:
    """The shards of host-2 take twice as long to gather and to scatter, and its replicas then wait for them."""
    shards = [range(first, first + 4) for first in range(0, 16, 4)]
    healthy = make_fsdp(Times(16, 30, noise=0.02), transfer_ns=16 * MS, shards=shards)
    took_ns = np.where(np.arange(16) // 4 == 2, 2.0, 1.0) * 16 * MS
    ops = [
        structs.replace(op, transfer_ns=took_ns) if op.issues is not None and op.group == "shards" else op
        for op in healthy.ops
    ]
    slow = Job(ops, 16, 30, groups=healthy.groups)
    verdict = analyze(slow.record(hosts=4)).verdict
    assert (verdict.kind, verdict.hosts) == (VerdictKind.SLOW_LINK, ("host-2",))
    true_ns = float(slow.cycle_ns.mean() - healthy.cycle_ns.mean())
    assert verdict.lost_ns is not None and verdict.lost_ns.value == pytest.approx(true_ns, rel=0.1)
    verdict = analyze(healthy.record(hosts=4)).verdict
    assert verdict.hosts == ()
