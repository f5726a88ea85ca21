"""The second scheduler: small jobs by hand, and what holds for all."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.simulate import Between, Clocks, Delay, Fault, Simulated, SimulatedJob, simulate
from distprof.analyze.clocks.clocks import map_clocks
from distprof.facts.run import Clock, Phase, Stretch

MS = 1_000_000
PLAIN = SimulatedJob(
    num_ranks=2, ranks_per_host=1, num_steps=3, num_buckets=2, jitter_ratio=0, transfer_ns=10 * MS, rules="shared",
    latency_ns=0, phase_ns={Phase.FORWARD: 20 * MS, Phase.BACKWARD: 40 * MS, Phase.OPTIMIZER: 5 * MS},
)  # fmt: skip


def find_times(made: Simulated, name: str) -> list[list[float]]:
    """Arrivals or ends in the first step since its begin, ms, by rank and collective."""
    (table,) = made.run.collectives
    begin_ns = made.run.column("begin_host_ns")[:, :1]
    times: list[list[float]] = ((getattr(table, name)[:, 0] - begin_ns) / MS).round(6).tolist()
    return times


def test_without_concurrency_both_rules_agree() -> None:
    """Buckets of 5 at 40 and 60: the step ends at 70, as by the simple rules."""
    made = simulate(PLAIN, seed=0)
    assert find_times(made, "arrival_ns") == [[40, 60]] * 2
    assert find_times(made, "end_ns") == [[45, 65]] * 2
    assert (made.truth.step_ns / MS).round(6).tolist() == [65, 70, 70]
    assert (made.truth.without_transfer_ns / MS).round(6).tolist() == [60, 65, 65]


def test_two_buckets_share_a_link() -> None:
    """Buckets of 15 at 30 and 40. The first has 5 left at 40, at half the rate: it ends at 50, the second at 60."""
    phases = {Phase.FORWARD: 20.0 * MS, Phase.BACKWARD: 20.0 * MS}
    made = simulate(replace(PLAIN, phase_ns=phases, transfer_ns=30 * MS), seed=0)
    assert find_times(made, "arrival_ns") == [[30, 40]] * 2
    assert find_times(made, "end_ns") == [[50, 60]] * 2
    simple = simulate(replace(PLAIN, phase_ns=phases, transfer_ns=30 * MS, rules="simple"), seed=0)
    assert find_times(simple, "end_ns") == [[45, 60]] * 2  # one after the other
    exposed_ns = made.run.column("all_reduce_host_ns")
    assert (exposed_ns[:, 0] / MS).round(6).tolist() == [20, 20]


def test_those_who_are_there_send_a_quarter_ahead() -> None:
    """Four hosts, an all-reduce of 8 at 10; rank 3 comes at 30. Ranks 0, 1 and 2 are neighbours and do 2 of the 8 on
    their two edges; the other two edges do all 8 from 30 on. Without the late rank it is over at 18."""
    job = replace(
        PLAIN, num_ranks=4, num_buckets=1, transfer_ns=8 * MS, phase_ns={Phase.BACKWARD: 10.0 * MS}, num_steps=1,
        delays=(Delay(rank=3, phase=Phase.BACKWARD, delay_ns=20 * MS),),
    )  # fmt: skip
    made = simulate(job, seed=0, faults=True)
    assert find_times(made, "end_ns") == [[38]] * 4
    assert (made.truth.without_faults_ns / MS).round(6).tolist() == [18]
    one_host = simulate(replace(job, ranks_per_host=4), seed=0)
    # at 30 all four edges send at a rate of 1 until 36, when those with a quarter done end; the others go on at 1.25
    assert find_times(one_host, "end_ns") == [[pytest.approx(30 + 6 + 2 / 1.25)]] * 4


def test_a_slow_link_holds_up_a_gather_where_it_passes() -> None:
    """Eight hosts; what crosses the link of host 3 takes three times as long, on its way in and out. A rank waits for
    what it sends and for the half of the ring before it: ranks 0 and 1 are too far from both."""
    job = replace(
        PLAIN, strategy="fsdp", num_ranks=8, num_buckets=1, transfer_ns=8 * MS, phase_ns={}, num_steps=1,
        slow_hosts={3: 3.0},
    )  # fmt: skip
    made = simulate(job, seed=0, faults=True)
    first = [ends[0] for ends in find_times(made, "end_ns")]
    assert first == [8, 8, 24, 24, 24, 24, 24, 24]
    assert made.truth.costs[0].fault == Fault(slow_host=3) and made.truth.costs[0].alone_ns[0] > 0


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_what_ranks_record_is_whole(strategy: str) -> None:
    job = SimulatedJob(
        strategy=strategy, num_ranks=4, ranks_per_host=2, clocks=Clocks(offset_ns=1e9, bound_ns=20_000), rules="shared",  # type: ignore[arg-type]
        between=(Between(stretch=Stretch.EVALUATION, own_ns=9 * MS, every=5),),
    )  # fmt: skip
    made = simulate(job, seed=4)
    run = made.run
    assert np.abs(run.phase_ns(Clock.HOST).sum(axis=2) - run.step_ns(Clock.HOST)).max() < 1e-3
    clocks = map_clocks(run)
    for table in run.collectives:
        assert np.isfinite(table.end_ns).all() and (table.end_ns >= table.arrival_ns).all()
        there, over = (
            np.stack([clocks.to_reference(int(rank), times[row]) for row, rank in enumerate(table.ranks)])
            for times in (table.arrival_ns, table.end_ns)
        )
        assert (over >= there.max(axis=0) - 40_000).all()  # nobody leaves before the last has arrived
    ends = made.truth.transfer_ns
    assert np.ptp(ends, axis=0).max() > 0  # ranks leave at different times
    assert (made.truth.wait_ns >= 0).all()


def test_the_same_seed_gives_the_same_run_by_either_rules() -> None:
    for rules in ("simple", "shared"):
        job = SimulatedJob(rules=rules, num_steps=10, autocorrelation=0.5, pareto_ratio=0.02, token_spread_ratio=0.1)  # type: ignore[arg-type]
        one, same, other = (simulate(job, seed=seed).run.rows for seed in (1, 1, 2))
        assert np.array_equal(one, same, equal_nan=True) and not np.array_equal(one, other, equal_nan=True)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_removing_a_delay_never_makes_the_job_longer(strategy: str) -> None:
    """Where all ranks share one ring, the only thing that a late rank gives the others is bandwidth while it is away,
    and they cannot use more of it than they then save."""
    for seed in range(6):
        delay = Delay(rank=seed % 4, phase=Phase.FORWARD, delay_ns=(0.05, 0.5, 5.0)[seed % 3] * MS)
        job = SimulatedJob(strategy=strategy, num_ranks=4, num_steps=12, delays=(delay,), rules="shared")  # type: ignore[arg-type]
        truth = simulate(job, seed=seed, truth=False, faults=True).truth
        assert (truth.step_ns - truth.without_faults_ns).sum() >= 0
