"""Simulated jobs: an example by hand without randomness, and what must hold for every job's facts."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.simulate import Clocks, Delay, Simulated, SimulatedJob, simulate
from distprof.analyze.clocks.clocks import map_clocks
from distprof.facts.run import COLUMN, Clock, Phase

MS = 1_000_000
PLAIN = SimulatedJob(
    num_ranks=2, num_steps=3, num_buckets=2, jitter_ratio=0, transfer_ns=10 * MS,
    phase_ns={Phase.FORWARD: 20 * MS, Phase.BACKWARD: 40 * MS, Phase.OPTIMIZER: 5 * MS},
)  # fmt: skip


def get(made: Simulated, name: str) -> list[list[float]]:
    return (made.run.rows[:, :, COLUMN[name]] / MS).round(6).tolist()  # type: ignore[no-any-return]


def test_a_step_of_ddp_by_hand() -> None:
    """Forward ends at 20, backward's halves at 40 and 60, with buckets of 5; the wait ends at 65, the step at 70."""
    made = simulate(PLAIN, seed=0)
    assert get(made, "step_host_ns") == [[70] * 3] * 2
    assert get(made, "all_reduce_host_ns") == [[5] * 3] * 2
    assert get(made, "all_reduce_busy_host_ns") == [[10] * 3] * 2
    (table,) = made.run.collectives
    begin = made.run.column("begin_host_ns")[:, :, None]
    assert ((table.arrival_ns - begin) / MS)[0].round(6).tolist() == [[40, 60]] * 3
    assert ((table.end_ns - begin) / MS)[0].round(6).tolist() == [[45, 65]] * 3
    assert (made.truth.step_ns / MS).round(6).tolist() == [65, 70, 70]
    assert (made.truth.without_transfer_ns / MS).round(6).tolist() == [60, 65, 65]


def test_a_delay_by_hand() -> None:
    """Rank 1 takes 30 longer in the optimizer of step 1: rank 0 waits for it in step 2."""
    delay = Delay(rank=1, phase=Phase.OPTIMIZER, delay_ns=30 * MS, first_step=1)
    made = simulate(SimulatedJob(**{**_fields(PLAIN), "delays": (delay,)}), seed=0)
    assert get(made, "step_host_ns") == [[70, 70, 100], [70, 100, 100]]
    assert get(made, "all_reduce_host_ns") == [[5, 5, 35], [5, 5, 5]]
    assert ((made.truth.step_ns - made.truth.without_delays_ns) / MS).round(6).tolist() == [0, 0, 30]
    assert (made.truth.wait_ns[:, 2] / MS).round(6).tolist() == [[30, 30], [0, 0]]


def _fields(job: SimulatedJob) -> dict[str, object]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_phases_sum_to_steps_and_waits_stand_inside_phases(strategy: str) -> None:
    job = SimulatedJob(strategy=strategy, num_ranks=4, ranks_per_host=2, clocks=Clocks(drift_ratio=50e-6))
    run = simulate(job, seed=4).run
    assert np.abs(run.phase_ns(Clock.HOST).sum(axis=2) - run.step_ns(Clock.HOST)).max() < 1e-3
    own = run.phase_ns(Clock.HOST)[:, :, [0, 1, 2, 5, 6, 7]]
    assert (run.wait_ns(Clock.HOST) <= own).all()
    begin, step = run.column("begin_host_ns"), run.step_ns(Clock.HOST)
    for table in run.collectives:
        inside = table.arrival_ns >= begin[table.ranks][:, :, None] - 1
        assert inside.all() and (table.end_ns <= (begin + step)[table.ranks][:, :, None] + 1).all()


def test_a_probe_reads_what_a_link_carries_when_it_is_probed() -> None:
    job = replace(PLAIN, num_ranks=6, ranks_per_host=2, link_bytes_per_s=8e9, slow_hosts={2: 4.0}, slow_from_step=2)

    def read(job: SimulatedJob) -> list[list[float]]:
        meta = simulate(job, seed=0).run.meta
        return [[link.bytes_per_s for link in links] for links in (meta.link_readings, meta.last_link_readings)]

    assert read(job) == [[8e9, 8e9], [8e9, 2e9]] and read(replace(job, slow_from_step=0)) == [[8e9, 2e9]] * 2
    first, last = read(replace(job, slow_hosts={}, probe_spread_ratio=0.05))
    assert len({*first, *last}) == 4  # each with its own error


def test_hsdps_replicas_reduce_the_shards_of_a_hosts_ranks_side_by_side() -> None:
    """8 ranks on 4 hosts; a shard fills a host, or two: then half of it is on either, and takes half as long."""
    for shard_size, took_ns in ((2, 5 * MS), (4, 2.5 * MS)):
        made = simulate(
            replace(PLAIN, strategy="hsdp", num_ranks=8, ranks_per_host=2, shard_size=shard_size, bucket_bytes=800),
            seed=0,
        )
        reduced = [table for table in made.run.collectives if table.group.startswith("replica")]
        assert {table.sizes_bytes for table in reduced} == {(800 // shard_size,) * 2}
        for table in reduced:
            assert (table.end_ns - table.arrival_ns).max(axis=0) == pytest.approx(took_ns)


def test_the_same_seed_gives_the_same_run() -> None:
    one, same, other = (simulate(SimulatedJob(), seed=seed).run.rows for seed in (1, 1, 2))
    assert np.array_equal(one, same, equal_nan=True) and not np.array_equal(one, other, equal_nan=True)


def test_the_hosts_clocks_are_as_far_apart_as_the_readings_say() -> None:
    clocks = Clocks(offset_ns=3e9, drift_ratio=50e-6, bound_ns=20_000)
    run = simulate(SimulatedJob(num_ranks=4, ranks_per_host=2, clocks=clocks, strategy="fsdp"), seed=6).run
    (table,) = run.collectives
    found = map_clocks(run)
    ends = np.stack([found.to_reference(rank, table.end_ns[rank]) for rank in range(4)])  # all are released together
    bounds = np.stack([found.bound_ns(rank, ends[rank]) for rank in range(4)])
    assert (np.abs(ends - ends[0]) <= bounds + bounds[0] + 2).all()
    assert np.abs(table.end_ns[2] - table.end_ns[0]).min() > 1e6  # and are not, by their own clocks


def test_noise_strikes_one_phase_of_a_step_and_has_a_pareto_tail() -> None:
    """A tenth of 4 x 4,000 steps has 2 ms or more, half of them 3.2 ms (2 ** (1 / 1.5) times as long), in a phase in
    proportion to its time."""
    job = replace(PLAIN, num_ranks=4, num_steps=4000)
    noisy = simulate(replace(job, noise_share_ratio=0.1), seed=1, truth=False).run
    more_ns = sum(
        noisy.column(f"{phase}_host_ns") - PLAIN.phase_ns[phase] for phase in (Phase.FORWARD, Phase.OPTIMIZER)
    )
    struck = more_ns > 1
    assert struck.mean() == pytest.approx(0.1 * 25 / 65, rel=0.1)
    assert more_ns[struck].min() >= 2 * MS * (1 - 1e-9)
    assert np.median(more_ns[struck]) == pytest.approx(2 * MS * 2 ** (1 / 1.5), rel=0.1)


def test_a_shadow_step_has_times_but_no_phases_and_no_collectives() -> None:
    job = replace(PLAIN, num_steps=60, num_warmup=5, shadow_every=10)
    run, whole = (simulate(item, seed=1).run for item in (job, replace(job, shadow_every=0)))
    shadows = np.flatnonzero(run.column("shadow")[0])
    assert len(shadows) == 6 - (len(shadows) == 5) and (run.column("shadow") == run.column("shadow")[0]).all()
    assert (np.diff(shadows // 10) == 1).all() and shadows.min() >= 5
    for name in ("step_host_ns", "begin_host_ns", "between_count"):
        assert np.array_equal(run.column(name), whole.column(name), equal_nan=True)
    for name in ("forward_host_ns", "backward_wait_host_ns", "all_reduce_count"):
        assert np.isnan(run.column(name)[:, shadows]).all()
        assert np.isfinite(np.delete(run.column(name), shadows, axis=1)).all()
    (table,), (every,) = run.collectives, whole.collectives
    assert np.array_equal(table.steps, np.setdiff1d(np.arange(60), shadows))
    assert np.array_equal(table.arrival_ns, every.arrival_ns[:, table.steps])


@pytest.mark.parametrize(
    "wrong",
    [{"num_ranks": 0}, {"strategy": "hsdp", "num_ranks": 3}, {"phase_ns": {Phase.ALL_REDUCE: 1.0}}, {"num_buckets": 0}],
)
def test_jobs_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"rank|own phases"):
        SimulatedJob(**wrong)  # type: ignore[arg-type]
