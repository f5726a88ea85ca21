"""Cycles on the device clock: examples by hand, and made-up jobs whose own times, waits and transfers are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze.cycles.device_collectives import LAG_NS
from distprof.analyze.cycles.sync_cycles import SyncCycles, build_cycles, renumber
from distprof.analyze.replay.replay import replay
from distprof.analyze.stats.measured_steps import choose_measured_steps, read_timing
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PARTS, Clock, CollectiveKind, Collectives, Phase, Run, Stretch
from tests.analyze.device_jobs import Job, Times, make_ddp, make_fsdp
from tests.analyze.synthetic_cycles import measure_saved
from tests.factories import MS, make_run

NUM_STEPS = 10
GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER


def find(run: Run) -> SyncCycles:
    measured_steps = choose_measured_steps(run)
    cycles = build_cycles(measured_steps, read_timing(measured_steps, Clock.DEVICE))
    assert cycles is not None
    return cycles


def make_table(clocks_ns: FloatArray, **stamps: list[list[float]]) -> dict[str, FloatArray]:
    """Stamps in ms from the begin of a step on, by rank and collective, in every step."""
    return {
        name: MS * np.array(values, dtype=float)[:, None, :] + (0 if name == "exposed_ns" else clocks_ns[:, :, None])
        for name, values in stamps.items()
    }  # fmt: skip


def tell(num_ranks: int, step_ms: float, between_ms: float) -> FloatArray:
    """When each step begins on each rank's clock, ``[num_ranks, num_steps]``."""
    told: FloatArray = 1e12 * np.arange(num_ranks)[:, None] + MS * (step_ms + between_ms) * np.arange(NUM_STEPS)
    return told


def make_ddp_run(*, between_ms: float = 0.0, **changes: Any) -> Run:
    """Two buckets on three ranks, in ms from the begin of a step: ready at 10 and 20, on rank 1 at 12 and 22, on rank 2
    at 10 and 25. The first one moves from 12 to 15, the second one from 25 to 29. Then 6 of optimizer."""
    begin_ns = tell(3, 35, between_ms)
    nan = float("nan")
    stamps = make_table(
        begin_ns, arrival_ns=[[10, 20], [12, 22], [10, 25]], end_ns=[[15, 29]] * 3,
        exposed_ns=[[0, 9], [0, 7], [0, 4]], left_ns=[[nan, 29]] * 3,
    )  # fmt: skip
    table = Collectives(
        group="default", ranks=np.arange(3), size=3, kinds=(CollectiveKind.ALL_REDUCE,) * 2,
        phases=(Phase.BACKWARD,) * 2, sizes_bytes=(8, 8), steps=np.arange(NUM_STEPS), clock=Clock.DEVICE,
        **{name: np.broadcast_to(values, (3, NUM_STEPS, 2)) for name, values in stamps.items()},
    )  # fmt: skip
    run = make_run(
        num_ranks=3, num_steps=NUM_STEPS, infos={rank: {"host": f"host-{rank}"} for rank in range(3)},
        device_ns={
            "forward": 5 * MS, "backward": MS * np.array([[15.0], [17.0], [20.0]]),
            "all_reduce": MS * np.array([[9.0], [7.0], [4.0]]), "optimizer": 6 * MS,
        }, columns={"begin_device_ns": begin_ns, **changes},
    )  # fmt: skip
    return structs.replace(run, device_collectives=(table,))


def test_ddp_by_hand() -> None:
    """Its waits begin where the last bucket is issued, so nothing but the clock differs from the host."""
    cycles = find(make_ddp_run())
    assert (cycles.source, cycles.clock) == ("collectives", Clock.DEVICE)
    assert cycles.waits_for is None and cycles.predecessor is None
    assert cycles.is_waited_on.tolist() == [False, True]
    assert (cycles.work_ns[:, 3] / MS).tolist() == [[6 + 10, 10], [6 + 12, 10], [6 + 10, 15]]
    assert (cycles.blocked_ns[:, 3] / MS).tolist() == [[0, 9], [0, 7], [0, 4]]
    assert (cycles.transfer_ns[:, 3] / MS).tolist() == [[3, 4]] * 3  # took least: rank 1 at first, then rank 2
    assert np.abs(cycles.start_ns).max() < 1
    assert cycles.cycle_ns[3] == replay(cycles)[3] == 35 * MS
    rank_2 = cycles.work_ns.copy()
    rank_2[2, :, 1] = 10 * MS
    assert measure_saved(cycles, work_ns=rank_2)[3] == 3 * MS  # then rank 1 is last


def test_time_between_steps_is_the_devices_and_what_it_was_for_the_hosts() -> None:
    """The host logs for 5 ms while the device has work for all but 2 of them."""
    cycles = find(make_ddp_run(between_ms=2, logging_host_ns=5 * MS, begin_host_ns=MS * 45.0 * np.arange(NUM_STEPS)))
    assert (cycles.work_ns[:, 3, 0] / MS).tolist() == [18, 20, 18]
    assert (cycles.phase_ns[:, 3, OWN_PARTS.index(Stretch.LOGGING)] / MS).tolist() == [2, 2, 2]
    assert (cycles.phase_ns[:, 3, OWN_PARTS.index(Stretch.BETWEEN)] / MS).tolist() == [0, 0, 0]


def test_a_wait_between_steps_on_the_host_is_a_collective_of_its_own_as_far_as_the_device_idles() -> None:
    cycles = find(make_ddp_run(between_ms=2, between_count=1, between_wait_host_ns=9 * MS, between_after_host_ns=0))
    assert cycles.is_waited_on.tolist() == [True, False, True]
    assert (cycles.blocked_ns[:, 3, 0] / MS).tolist() == [2, 2, 2]
    assert (cycles.work_ns[:, 3, :2] / MS).tolist() == [[6, 10], [6, 12], [6, 10]]


def make_fsdp_run() -> Run:
    """Two layers on two ranks, in ms: the first is gathered from 1 to 3, and waited for; the second from 3 to 5, while
    the first one computes for 4, on rank 1 for 6. The second computes for 4, then gradients are reduced: ready at 11,
    on rank 1 at 13, over at 15. Meanwhile compute goes on for 1 and then waits. The optimizer takes 1."""
    begin_ns = tell(2, 16, 0)
    stamps = make_table(
        begin_ns, arrival_ns=[[1, 3, 11], [1, 3, 13]], end_ns=[[3, 5, 15]] * 2,
        exposed_ns=[[2, 0, 3], [2, 0, 1]], left_ns=[[3, 7, 15], [3, 9, 15]],
    )  # fmt: skip
    table = Collectives(
        group="default", ranks=np.arange(2), size=2, kinds=(GATHER, GATHER, SCATTER),
        phases=(Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD), sizes_bytes=(8, 8, 8), steps=np.arange(NUM_STEPS),
        clock=Clock.DEVICE, **{name: np.broadcast_to(values, (2, NUM_STEPS, 3)) for name, values in stamps.items()},
    )  # fmt: skip
    run = make_run(
        num_steps=NUM_STEPS, meta={"strategy": "fsdp"}, columns={"begin_device_ns": begin_ns},
        device_ns={
            "data": MS, "forward": MS * np.array([[4.0], [6.0]]), "backward": 5 * MS, "all_gather": 2 * MS,
            "all_reduce": MS * np.array([[3.0], [1.0]]), "optimizer": MS,
        },
    )  # fmt: skip
    return structs.replace(run, device_collectives=(table,))


def test_fsdp2_by_hand() -> None:
    cycles = find(make_fsdp_run())
    assert cycles.waits_for is not None
    assert cycles.waits_for.tolist() == [-1, -1, 1, -1, 3]
    assert cycles.is_waited_on.tolist() == [True, False, True, False, True]
    assert [len(groups) for groups in cycles.groups] == [1, 1, 0, 1, 0]
    assert cycles.kinds == (GATHER, GATHER, GATHER, SCATTER, SCATTER)
    assert cycles.issued == (Phase.FORWARD,) * 3 + (Phase.BACKWARD,) * 2
    assert (cycles.work_ns[:, 3] / MS).tolist() == [[1 + 1, 0, 4, 4, 1], [1 + 1, 0, 6, 4, 1]]
    assert (cycles.blocked_ns[:, 3] / MS).tolist() == [[2, 0, 0, 0, 3], [2, 0, 0, 0, 1]]
    assert (cycles.transfer_ns[:, 3] / MS).tolist() == [[2, 2, 0, 2, 0]] * 2
    assert cycles.cycle_ns[3] == replay(cycles)[3] == 16 * MS
    alike = cycles.work_ns.copy()
    alike[1, :, 2] = 4 * MS
    assert measure_saved(cycles, work_ns=alike)[3] == 2 * MS
    free = np.zeros_like(cycles.transfer_ns)
    assert measure_saved(cycles, transfer_ns=free)[3] == (2 + 1) * MS  # of the last transfer, compute hides one
    slow = cycles.transfer_ns.copy()
    slow[:, :, 1] += 3 * MS  # over at 8, when rank 0 has waited for 1 and rank 1 has not come
    assert replay(cycles, transfer_ns=slow)[3] == 16 * MS
    slow[:, :, 1] += 2 * MS  # over at 10, when both have waited
    assert replay(cycles, transfer_ns=slow)[3] == 17 * MS


def test_a_reduction_among_replicas_follows_that_among_shards() -> None:
    """It stands behind it on its stream, so that its start is no rank's own time, and shorter transfers of the one let
    the other start earlier."""
    job = make_fsdp(Times(4, 12, noise=0), shards=[[0, 1], [2, 3]])
    cycles = find(job.record())
    assert cycles.predecessor is not None
    reduces = [
        index for index, kind in enumerate(cycles.kinds) if kind is CollectiveKind.ALL_REDUCE and cycles.groups[index]
    ]
    assert [cycles.kinds[index] for index in cycles.predecessor[reduces].tolist()] == [SCATTER] * 4
    assert cycles.work_ns[:, :, reduces].max() < 1_000
    last = int(cycles.predecessor[reduces[-1]])
    shorter = cycles.transfer_ns.copy()
    shorter[:, :, last] -= MS
    assert measure_saved(cycles, transfer_ns=shorter) == pytest.approx(MS, abs=20_000)


def test_median_arrivals_ranks_do_not_come_to_a_later_wait_after_the_median_one() -> None:
    """Rank 1 comes to the second wait at 9 and to the reduction at 13; the median of two is 8, and then 12."""
    cycles = find(make_fsdp_run())
    assert (measure_saved(cycles, median_arrivals=True)[3] / MS) == pytest.approx(1.5)


def test_waits_in_another_order_on_some_rank_are_looked_at_by_rows() -> None:
    run = make_fsdp_run()
    (table,) = run.device_collectives
    assert table.left_ns is not None
    left_ns = table.left_ns.copy()
    left_ns[1, :, 1], left_ns[1, :, 2] = table.left_ns[1, :, 2] + MS, table.left_ns[1, :, 2] - 3 * MS
    assert find(structs.replace(run, device_collectives=(structs.replace(table, left_ns=left_ns),))).source == "rows"


def test_steps_in_which_an_end_was_not_seen_are_left_out_if_they_are_few() -> None:
    run = make_fsdp_run()
    (table,) = run.device_collectives
    end_ns = table.end_ns.copy()
    end_ns[0, 4, 1] = np.nan
    cycles = find(structs.replace(run, device_collectives=(structs.replace(table, end_ns=end_ns),)))
    assert cycles.steps.tolist() == [1, 2, 3, 5, 6, 7, 8, 9]
    assert cycles.work_ns[:, 3, 0].tolist() == [2 * MS] * 2  # step 4's tail is told by its row
    end_ns[0, :, 1] = np.nan  # on one rank never: nobody knows what this gather takes
    cycles = find(structs.replace(run, device_collectives=(structs.replace(table, end_ns=end_ns),)))
    assert cycles.steps.tolist() == list(range(1, 10))
    assert cycles.transfer_ns[:, 3].tolist() == [[2 * MS, 0, 0, 2 * MS, 0]] * 2


def test_without_enough_timed_steps_rows_count() -> None:
    run = make_ddp_run()
    (table,) = run.device_collectives
    few = structs.replace(
        table, steps=table.steps[::2], arrival_ns=table.arrival_ns[:, ::2], end_ns=table.end_ns[:, ::2],
        exposed_ns=table.exposed_ns[:, ::2], left_ns=None if table.left_ns is None else table.left_ns[:, ::2],
    )  # fmt: skip
    assert find(structs.replace(run, device_collectives=(few,))).source == "rows"


def test_ranks_with_other_collectives_are_looked_at_by_rows() -> None:
    run = make_fsdp_run()
    (table,) = run.device_collectives
    parts = [
        structs.replace(
            table, group=f"g{rank}", ranks=np.array([rank]), size=1, kinds=(GATHER, (GATHER, SCATTER)[rank], SCATTER),
            **{
                name: getattr(table, name)[[rank]] for name in ("arrival_ns", "end_ns", "exposed_ns", "left_ns")
            },
        ) for rank in range(2)
    ]  # fmt: skip
    assert find(structs.replace(run, device_collectives=tuple(parts))).source == "rows"


def test_indices_follow_their_entries() -> None:
    assert renumber(None, [0]) is None
    waits_for = renumber(np.array([-1, 0, -1]), [-1, 0, 1, 0, 2, 1])
    assert waits_for is not None and waits_for.tolist() == [-1, -1, 1, -1, -1, 3]


JOBS = st.tuples(
    st.sampled_from(["ddp", "fsdp", "hsdp"]), st.integers(2, 5), st.sampled_from([0.2, 2.0, 15.0]), st.booleans(),
    st.integers(1, 3), st.integers(0, 1000),
)  # fmt: skip


def make_job(kind: str, num_layers: int, transfer_ms: float, own_streams: bool, seed: int, num_steps: int) -> Job:
    times = Times(4, num_steps, seed=seed, noise=0.1)
    if kind == "ddp":
        return make_ddp(times, transfers_ns=(transfer_ms * MS,) * num_layers)
    return make_fsdp(
        times, num_layers=num_layers, transfer_ns=transfer_ms * MS, own_streams=own_streams,
        shards=[[0, 1], [2, 3]] if kind == "hsdp" else None,
    )  # fmt: skip


@settings(max_examples=25)
@given(JOBS)
def test_own_times_waits_and_transfers_are_those_of_the_job(
    drawn: tuple[str, int, float, bool, int, int],
) -> None:
    kind, num_layers, transfer_ms, own_streams, every, seed = drawn
    num_steps = 12 * every
    job = make_job(kind, num_layers, transfer_ms, own_streams, seed, num_steps)
    cycles = find(job.record(every=every))
    assert cycles.source == "collectives"
    rate = 1 + 50e-6 * np.linspace(-1, 1, 4)[:, None]
    long_ns = cycles.work_ns.sum(axis=2) + cycles.blocked_ns.sum(axis=2)
    true_ns = job.cycle_ns[:, cycles.steps - 1]
    assert np.abs(long_ns - rate * true_ns).max() < 1_000
    assert np.abs(cycles.blocked_ns.sum(axis=2) - rate * job.exposed_ns[:, cycles.steps].sum(axis=2)).max() < 1_000
    own_ns = rate * sum(job.phase_ns[phase][:, cycles.steps] for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD))
    own_ns += rate * (job.phase_ns[Phase.OPTIMIZER][:, cycles.steps - 1] + job.between_ns)
    assert np.abs(cycles.work_ns.sum(axis=2) - own_ns).max() < 1_000
    assert np.abs(cycles.phase_ns.sum(axis=2) - own_ns).max() < 1_000
    took_ns = [cycles.transfer_ns[:, :, index] for index, groups in enumerate(cycles.groups) if groups]
    expected = sorted(op.transfer_ns for op in job.issued)[-len(took_ns) :]
    assert np.abs(np.sort(took_ns, axis=0) / np.array(expected)[:, None, None] - 1).max() < 0.02
    replayed_ns, whole_ns = replay(cycles), np.sort(true_ns, axis=0)
    near_ns = LAG_NS + 20_000  # a start that followed by chance within the lag is taken to follow at once
    assert (replayed_ns > whole_ns[0] - near_ns).all() and (replayed_ns < whole_ns[-1] + near_ns).all()
    assert (replay(cycles, median_arrivals=True) <= replayed_ns + 1).all()
