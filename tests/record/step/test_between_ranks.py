"""Collectives between two steps, on real gloo ranks whose clocks move only where the test says so."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.facts.run import Stretch
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.step.between_steps import BetweenRecord
from distprof.record.step.recorder import Recorder
from distprof.record.step.stretches import StretchContext
from distprof.world import World
from tests.fakes import FakeClock
from tests.ranks import call_on_ranks

STEPS = 4
TRANSFER_NS = 7
OPTIMIZER_NS = (100, 130)
EVALUATION_NS = (40, 10)
LOGGING_NS, REST_NS, WORK_NS = 3, 5, 11


class SharedClock(FakeClock):
    """Blocking reductions take until the last rank has arrived, and the transfer; waits for others, `WORK_NS`."""

    def slow_down(self) -> None:
        """For a process that ends with the test, and before anything else wraps these functions."""
        reduce, wait = dist.all_reduce, dist.Work.wait

        def reduce_late(tensor: Any, *args: Any, **options: Any) -> Any:
            arrived = torch.tensor([self.now])
            result = reduce(tensor, *args, **options)
            if not options.get("async_op"):
                reduce(arrived, op=dist.ReduceOp.MAX)
                self.now = int(arrived) + TRANSFER_NS  # whatever torch itself has waited for in there
            return result

        def wait_long(work: Any, *args: Any) -> Any:
            self.now += WORK_NS
            return wait(work, *args)

        dist.all_reduce = distributed_c10d.all_reduce = reduce_late  # type: ignore[assignment]
        dist.Work.wait = wait_long  # type: ignore[assignment, method-assign]


def record_loop(world: World) -> None:
    clock = SharedClock()
    clock.slow_down()
    recorder = Recorder(now_ns=clock)
    undo = watch_collectives(CollectiveWatch(recorder))
    begun_ns = list[int]()
    for step in range(STEPS):
        recorder.begin_step(step, warmup=False)
        begun_ns.append(clock.now)
        clock.advance(OPTIMIZER_NS[world.rank])
        recorder.end_step()
        dist.all_reduce(torch.ones(1))  # the mean loss, for a log
        with StretchContext(recorder, Stretch.EVALUATION):
            clock.advance(EVALUATION_NS[world.rank])
            dist.all_reduce(torch.ones(1))
        work = dist.all_reduce(torch.ones(1), async_op=True)
        with StretchContext(recorder, Stretch.LOGGING):
            clock.advance(LOGGING_NS)
            assert work is not None
            work.wait()
        clock.advance(REST_NS)
    undo()
    waited_ns = max(OPTIMIZER_NS) - OPTIMIZER_NS[world.rank] + max(EVALUATION_NS) - EVALUATION_NS[world.rank]
    expected = BetweenRecord(
        issued=3, wait_ns=waited_ns + 2 * TRANSFER_NS + WORK_NS, after_ns=REST_NS, data_ns=0, collected_ns=(0, 0),
        stretches_ns=(EVALUATION_NS[world.rank], 0, LOGGING_NS),
    )  # fmt: skip
    records = recorder.drain()
    assert [record.between for record in records] == [None, *[expected] * (STEPS - 1)]
    assert [record.collectives for record in records] == [[]] * STEPS
    length_ns = max(OPTIMIZER_NS) + max(EVALUATION_NS) + 2 * TRANSFER_NS + WORK_NS + LOGGING_NS + REST_NS
    assert {after - before for before, after in itertools.pairwise(begun_ns)} == {length_ns}
    if world.rank == 0:  # what it waited for is all that the other rank held it up
        held_ns = length_ns - OPTIMIZER_NS[0] - EVALUATION_NS[0] - 2 * TRANSFER_NS - WORK_NS - LOGGING_NS - REST_NS
        assert expected.wait_ns == held_ns + 2 * TRANSFER_NS + WORK_NS == 30 + 2 * TRANSFER_NS + WORK_NS


def test_a_rank_waits_after_its_steps_and_the_wait_is_not_its_own_time(tmp_path: Path) -> None:
    call_on_ranks(2, record_loop, tmp_path=tmp_path)
