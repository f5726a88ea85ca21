"""Random jobs on the made-up device: what is drawn, and what really happens, against times worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.simulate.device_job import (
    LATE_RATIOS,
    MOST_AHEAD,
    MOST_DRIFT_PPM,
    STRATEGIES,
    DeviceJob,
    LateRank,
    SlowTransfer,
    draw_job,
)
from benchmarks.simulate.device_play import PlayedRank, find_step_ns, play
from distprof.facts.run import PHASE_CODE, CollectiveKind, Phase

US, MS = 1_000, 1_000_000
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = (
    CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER,
)  # fmt: skip


def make_job(strategy: str = "ddp", **changes: object) -> DeviceJob:
    """A job without jitter, whose launches cost nothing: two ranks, or two by two."""
    plain = DeviceJob(
        seed=0, strategy=strategy, num_replicas=2 if strategy == "hsdp" else 1, num_shards=2, ranks_per_host=2,
        num_steps=4, num_warmup=1, num_units=2, forward_ns=MS, data_ns=100 * US, host_data_ns=0, grad_norm_ns=50 * US,
        optimizer_ns=200 * US, host_unit_ns=0, transfer_ns=600 * US, norm_transfer_ns=20 * US, jitter_ratio=0.0,
        drift_ppm=(0.0,) * (4 if strategy == "hsdp" else 2), run_ahead=2, launch_queue=1024, launch_ns=0,
        num_events=6000, every=1, late=None, link=None,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def list_kinds(rank: PlayedRank, phase: Phase) -> list[CollectiveKind]:
    return [one.kind for one in rank.steps[-1].collectives if one.phase is phase]


def read_phase(rank: PlayedRank, phase: Phase) -> int:
    return rank.steps[-1].sum_phases()[PHASE_CODE[phase]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_a_seed_is_one_job_within_the_stated_limits(seed: int) -> None:
    job = draw_job(seed)
    assert job == draw_job(seed) and job.strategy == STRATEGIES[seed % 3]
    assert 2 <= job.num_ranks <= 8 and job.num_ranks % job.ranks_per_host == 0
    assert job.run_ahead is None or 0 <= job.run_ahead <= MOST_AHEAD
    assert max(map(abs, job.drift_ppm)) <= MOST_DRIFT_PPM and len(job.drift_ppm) == job.num_ranks
    assert job.link is None or job.num_hosts > 1
    if job.late is not None:
        assert LATE_RATIOS[0] <= job.late.ratio <= LATE_RATIOS[1] and job.late.rank < job.num_ranks
        assert not job.late.on_host or (job.run_ahead == 0 and job.late.phase is Phase.DATA)


def test_under_ddp_backward_waits_for_the_last_bucket_and_the_punctual_rank_for_the_late_one() -> None:
    late = LateRank(rank=1, phase=Phase.FORWARD, ratio=0.1, on_host=False, unit=None, late_ns=400 * US)
    ranks = play(make_job(late=late))
    assert [read_phase(rank, Phase.FORWARD) for rank in ranks] == [2 * MS, 2 * MS + 400 * US]
    assert [read_phase(rank, Phase.BACKWARD) for rank in ranks] == [4 * MS] * 2
    # the second bucket is ready 2 ms after the first, whose reduction takes 0.6 ms
    assert [rank.steps[-1].sum_exposed(ALL_REDUCE) for rank in ranks] == [1_000 * US, 600 * US]
    for one, wait_ns in zip(ranks[0].steps[-1].collectives, (400 * US, 400 * US), strict=True):
        assert (one.wait_ns, one.transfer_ns) == (wait_ns, 600 * US)
    assert [one.wait_ns for one in ranks[1].steps[-1].collectives] == [0, 0]
    assert find_step_ns(make_job(), ranks) == 100 * US + 2.4 * MS + 4 * MS + 0.6 * MS + 250 * US


def test_a_bucket_begins_when_the_one_before_is_over() -> None:
    ranks = play(make_job(transfer_ns=5 * MS, run_ahead=0))
    first, second = ranks[0].steps[-1].collectives
    assert second.part.start_ns == first.part.end_ns
    assert ranks[0].steps[-1].sum_exposed(ALL_REDUCE) == 10 * MS - 2 * MS


def test_under_fsdp_gathers_run_ahead_in_backward_and_scatters_behind_it() -> None:
    (rank, _) = play(make_job("fsdp"))
    assert list_kinds(rank, Phase.FORWARD) == [ALL_GATHER] * 3  # root and two layers
    expected = [ALL_GATHER, ALL_GATHER, REDUCE_SCATTER, REDUCE_SCATTER, REDUCE_SCATTER]
    assert list_kinds(rank, Phase.BACKWARD) == expected
    assert list_kinds(rank, Phase.GRAD_NORM) == [ALL_REDUCE]
    step = rank.steps[-1]
    assert sum(step.sum_phases()) == step.end_ns - step.begin_ns
    # Root and first layer: nothing runs beside their gathers but the embedding, 0.3 ms. The second layer's runs beside
    # the first layer's forward, and those of backward beside the head, 2 ms, and a layer.
    gathers = [wait.lasted_ns for wait in step.waits if wait.kind is ALL_GATHER]
    assert gathers[0] == 600 * US + 50 * US and gathers[2:] == [0, 0, 0]
    assert step.waits[-1].kind is ALL_REDUCE and step.waits[-1].lasted_ns == 20 * US


def test_under_hsdp_every_scatter_is_followed_by_a_reduction_among_the_copies() -> None:
    ranks = play(make_job("hsdp", link=SlowTransfer(group="replicate 1", factor=3.0)))
    backward = [(one.kind, one.group) for one in ranks[1].steps[-1].collectives if one.kind is not ALL_GATHER]
    assert backward == [(REDUCE_SCATTER, "shard 0"), (ALL_REDUCE, "replicate 1")] * 3 + [(ALL_REDUCE, "shard 0")]
    moved = {
        one.group: one.transfer_ns for rank in ranks for one in rank.steps[-1].collectives if one.kind is ALL_REDUCE
    }
    assert moved["replicate 0"] == 300 * US and moved["replicate 1"] == 900 * US


def test_a_host_that_fetches_data_too_slowly_starves_its_device_only_if_it_is_not_ahead() -> None:
    late = LateRank(rank=0, phase=Phase.DATA, ratio=0.3, on_host=True, unit=None, late_ns=2 * MS)
    step_ns = {ahead: find_step_ns(make_job(), play(make_job(late=late, run_ahead=ahead))) for ahead in (0, 2)}
    assert step_ns[0] == pytest.approx(step_ns[2] + 2 * MS, rel=0.01)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(STRATEGIES), st.integers(0, 30), st.sampled_from([192, 1024]), st.sampled_from([0, 5 * US]))
def test_however_far_the_hosts_run_ahead_the_devices_do_the_same(
    strategy: str, ahead: int, queue: int, launch_ns: int
) -> None:
    job = make_job(strategy, num_steps=8, run_ahead=ahead, launch_queue=queue, launch_ns=launch_ns)
    ranks = play(job)
    for rank in ranks:
        assert rank.device.synchronised == 0 and len(rank.steps) == 8
        for step in rank.steps:
            assert sum(step.sum_phases()) == step.end_ns - step.begin_ns
            assert all(one.wait_ns >= 0 and len(one.meeting.parts) == 2 for one in step.collectives)
    free_ns = find_step_ns(job, play(replace(job, launch_ns=0, run_ahead=None)))
    launched = ranks[0].device.launched / job.num_steps
    slack_ns = (launched + 40) * launch_ns if ahead == 0 else 100 * launch_ns  # what the host does meanwhile
    assert free_ns <= find_step_ns(job, ranks) <= free_ns + slack_ns
