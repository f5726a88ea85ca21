"""From stamps to own times: an example by hand on two ranks, and what is done where stamps are missing."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import SimulatedJob, simulate
from distprof.analyze.cycles.sync_cycles import SyncCycles, build_cycles
from distprof.analyze.stats.measured_steps import choose_measured_steps, read_timing
from distprof.facts.run import OWN_PARTS, Clock, CollectiveKind, Collectives, Phase, Run, Stretch
from tests.factories import make_run

BEGIN = np.array([[1000.0, 1110.0], [1000.0, 1120.0]])
"""Two steps of two ranks: 100 and 100 long on rank 0, 105 and 100 on rank 1."""


def make_table(**changes: object) -> Collectives:
    """Two buckets: ready 20 and 60 after the step's begin on rank 0, 30 and 70 on rank 1; both over at 85."""
    arrival = BEGIN[:, :, None] + np.array([[20.0, 60.0], [30.0, 70.0]])[:, None, :]
    usual: dict[str, object] = {
        "group": "default", "ranks": np.arange(2), "size": 2, "kinds": (CollectiveKind.ALL_REDUCE,) * 2,
        "phases": (Phase.BACKWARD,) * 2, "sizes_bytes": (8, 8), "steps": np.arange(2), "arrival_ns": arrival,
        "end_ns": np.stack([np.full((2, 2), 1050.0), np.full((2, 2), 1085.0)], axis=2),
        "exposed_ns": np.stack([np.full((2, 2), np.nan), np.array([[25.0, 25.0], [15.0, 15.0]])], axis=2),
    }  # fmt: skip
    return Collectives(**{**usual, **changes})  # type: ignore[arg-type]


def make_two_steps(*tables: Collectives) -> Run:
    run = make_run(
        num_steps=2, num_warmup=0,
        host_ns={"forward": 50.0, "all_reduce": [[25.0], [15.0]], "optimizer": [[25.0, 25.0], [40.0, 35.0]]},
        columns={"begin_host_ns": BEGIN},
    )  # fmt: skip
    return structs.replace(run, collectives=tables)


def find(run: Run) -> SyncCycles:
    measured_steps = choose_measured_steps(run)
    cycles = build_cycles(measured_steps, read_timing(measured_steps, Clock.HOST))
    assert cycles is not None
    return cycles


def test_own_times_by_hand() -> None:
    """Step 1 of rank 0: 15 from the end of step 0's wait (at 1085) to its end at 1100, 10 between the steps, then 20 to
    the first bucket and 40 to the second, whose wait of 25 ends the cycle. Step 0 has no step before it: what usually
    follows the last wait stands for what came before, on rank 1 the middle of 20 and 15."""
    cycles = find(make_two_steps(make_table()))
    assert cycles.source == "collectives"
    assert cycles.is_waited_on.tolist() == [False, True]
    assert cycles.work_ns[0].tolist() == [[15 + 20, 40], [15 + 10 + 20, 40]]
    assert cycles.work_ns[1].tolist() == [[17.5 + 30, 40], [20 + 15 + 30, 40]]
    assert cycles.blocked_ns[:, :, 1].tolist() == [[25, 25], [15, 15]]
    assert cycles.phase_ns[:, :, OWN_PARTS.index(Stretch.BETWEEN)].tolist() == [[0, 10], [0, 15]]
    optimizer = OWN_PARTS.index(Phase.OPTIMIZER)
    assert cycles.phase_ns[:, :, optimizer].tolist() == [[25, 25], [37.5, 40]]  # of the step before


def test_waits_for_collectives_issued_together_follow_each_other() -> None:
    """Both are issued before the first is waited for, as when a ZeRO optimizer sends parameters: at 20 and 21, then the
    waits of 30 and 5 last from 20 to 55. What follows up to 100 takes 45, and 10 lie between the steps."""
    both = {
        "arrival_ns": BEGIN[:, :, None] + np.array([20.0, 21.0]), "end_ns": np.full((2, 2, 2), np.nan),
        "exposed_ns": np.broadcast_to(np.array([30.0, 5.0]), (2, 2, 2)),
    }  # fmt: skip
    cycles = find(make_two_steps(make_table(**both)))
    assert cycles.work_ns[0, 1].tolist() == [45 + 10 + 20, 0]
    assert (cycles.work_ns + cycles.blocked_ns)[0, 1].sum() == 110


def test_transfers_by_hand() -> None:
    """Step 0: the last arrivals are at 1030 and 1070; the first is over at 1050, so that the second does not queue."""
    cycles = find(make_two_steps(make_table()))
    assert cycles.transfer_ns[:, 0].tolist() == [[20, 15], [20, 15]]


def test_unseen_ends_are_the_waits_ends() -> None:
    cycles = find(make_two_steps(make_table(end_ns=np.full((2, 2, 2), np.nan))))
    assert cycles.transfer_ns[:, 0, 1].tolist() == [15, 15]  # 1060 + 25 = 1070 + 15 = 1085, less 1070
    assert cycles.transfer_ns[:, 0, 0].tolist() == [0, 0]  # nobody waits for it


def test_an_end_that_is_seen_in_some_steps_only_is_where_it_usually_is_in_the_others() -> None:
    """In step 0 the first bucket is over 20 after its last rank has come, at 1030; in step 1 that one comes at 1150."""
    end_ns = np.full((2, 2, 2), np.nan)
    end_ns[:, 0, 0] = 1050
    cycles = find(make_two_steps(make_table(end_ns=end_ns)))
    assert cycles.transfer_ns[:, :, 0].tolist() == [[20, 20], [20, 20]]
    assert cycles.transfer_ns[:, 1, 1].tolist() == [5, 15]  # from 1190, when rank 1 has come, to 1195 and 1205


def test_unseen_ends_after_another_transfer_of_the_group_are_filled_in_for_each_rank() -> None:
    end_ns = np.full((2, 2, 2), np.nan)
    end_ns[:, 0] = [[1050, 1200], [1055, 1210]]
    cycles = find(make_two_steps(make_table(end_ns=end_ns)))
    assert cycles.transfer_ns[:, :, 0].tolist() == [[20, 20], [25, 25]]
    assert cycles.transfer_ns.shape[2] == 2 and np.isfinite(cycles.transfer_ns).all()


def test_on_clocks_that_nobody_compared_the_shortest_wait_is_the_transfer() -> None:
    run = make_two_steps(make_table())
    apart = tuple(structs.replace(info, host=f"host-{info.rank}") for info in run.ranks)
    cycles = find(structs.replace(run, ranks=apart))
    assert cycles.transfer_ns[:, 0].tolist() == [[0, 15], [0, 15]]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_own_time_and_waits_make_the_cycle(strategy: str) -> None:
    made = simulate(SimulatedJob(strategy=strategy, num_steps=12), seed=2)
    cycles = find(made.run)
    whole = cycles.work_ns.sum(axis=2) + cycles.blocked_ns.sum(axis=2)
    assert cycles.steps.tolist() == list(range(1, 12))  # how late the ranks came into the first step is not recorded
    assert np.abs(whole - made.truth.step_ns[1:]).max() < 10  # the stamps are rounded to ns


def test_a_group_that_is_used_now_and_then_costs_only_the_steps_it_is_used_in() -> None:
    """Such as a barrier of all ranks before a checkpoint, where gradients are reduced in a group of their own."""
    run = simulate(SimulatedJob(strategy="ddp", num_steps=30), seed=2).run
    (table,) = run.collectives
    part = {name: getattr(table, name)[:, [7, 20], :1] for name in ("arrival_ns", "end_ns", "exposed_ns")}
    barrier = structs.replace(
        table, group="others", kinds=(CollectiveKind.OTHER,), phases=table.phases[:1], sizes_bytes=(0,),
        steps=table.steps[[7, 20]], **part,
    )  # fmt: skip
    found = find(structs.replace(run, collectives=(table, barrier)))
    assert found.steps.tolist() == [step for step in find(run).steps.tolist() if step not in barrier.steps]
    assert len(found.steps) >= 20


def test_ranks_with_different_collectives_are_looked_at_by_their_rows() -> None:
    table = make_table()
    one, other = (
        structs.replace(
            table, group=f"g{rank}", ranks=np.array([rank]), size=1, arrival_ns=table.arrival_ns[[rank]],
            end_ns=table.end_ns[[rank]], exposed_ns=table.exposed_ns[[rank]],
            kinds=(CollectiveKind.ALL_REDUCE, (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER)[rank]),
        )
        for rank in range(2)
    )  # fmt: skip
    cycles = find(make_two_steps(one, other))
    assert cycles.source == "rows"
    assert cycles.blocked_ns[:, :, 0].tolist() == [[25, 25], [15, 15]]
    assert cycles.work_ns[:, :, 0].tolist() == [[75, 85], [87.5, 105]]
    assert cycles.transfer_ns[:, :, 0].tolist() == [[12.5, 5], [15, 15]]  # waited, less what the other did meanwhile
