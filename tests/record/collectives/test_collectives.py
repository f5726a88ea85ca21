"""Collectives that a user issues, on real gloo ranks: what is seen of them, and that nothing changes for the user."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from distprof.facts.run import KINDS, OWN_PHASES, PHASE_CODE, PHASES, CollectiveKind, Phase
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.collectives.exchanges import EXCHANGES, watch_exchanges
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import SeenCollective, StepRecord
from distprof.world import World
from tests.ranks import call_on_ranks

FORWARD = PHASE_CODE[Phase.FORWARD]
REDUCE, SCATTER = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER
GATHER, EXCHANGE, OTHER = CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL, CollectiveKind.OTHER


def record_step(
    recorder: Recorder, work: Callable[[], Any], *, phase: int | None = FORWARD
) -> tuple[StepRecord, list[SeenCollective]]:
    """One step with ``work`` in its forward, or outside of all phases."""
    recorder.begin_step(0, warmup=False)
    if phase is not None:
        recorder.enter(phase)
    work()
    if phase is not None:
        recorder.exit()
    recorder.end_step()
    (record,) = recorder.drain()
    assert record.phase_host_ns is not None and sum(record.phase_host_ns) == record.step_host_ns
    return record, record.collectives or []


def wait_in_forward(record: StepRecord) -> int:
    assert record.wait_host_ns is not None
    return record.wait_host_ns[OWN_PHASES.index(Phase.FORWARD)]


def see_what_users_issue(world: World) -> None:
    before = {name: getattr(dist, name) for name in dir(dist)}
    pair = dist.new_group([0, 1], group_desc="mine")
    recorder = Recorder()
    undo = watch_collectives(CollectiveWatch(recorder))
    see_blocking_ones(recorder)
    see_the_buffers_of_ddp(recorder)
    see_old_names(recorder)
    see_gathers_into_one(recorder)
    see_groups(recorder, pair)
    see_asynchronous_ones(recorder)
    see_gradients_of_a_bare_loop(recorder)
    see_functional_ones(recorder)
    see_differentiable_ones(recorder)
    see_gradients_reduced_by_hand(recorder)
    see_no_others(recorder)
    see_autograd(recorder)
    undo()
    after = {name: getattr(dist, name) for name, original in before.items() if callable(original)}
    assert after == {name: before[name] for name in after}  # torch sets flags of its own as it goes
    assert dist.all_reduce is distributed_c10d.all_reduce


def see_gradients_reduced_by_hand(recorder: Recorder) -> None:
    """After a backward and outside of all phases; a loss, a sum before it, and one inside a phase are none."""

    def list_phases(*lines: Callable[[], Any], backward: bool = True) -> list[Phase]:
        recorder.begin_step(0, warmup=False)
        recorder.enter(PHASE_CODE[Phase.BACKWARD if backward else Phase.FORWARD])
        recorder.exit()
        for line in lines:
            line()
        recorder.end_step()
        (record,) = recorder.drain()
        return [PHASES[code] for code in dict.fromkeys(record.segments.codes) if PHASES[code] is not Phase.OTHER]

    def clip() -> None:
        recorder.enter(PHASE_CODE[Phase.GRAD_NORM])
        dist.all_reduce(gradient)
        recorder.exit()

    gradient, loss = torch.ones(64), torch.ones(1)
    assert list_phases(lambda: dist.all_reduce(gradient)) == [Phase.BACKWARD, Phase.ALL_REDUCE]
    both = (lambda: dist.all_reduce(loss), lambda: dist.all_reduce(gradient, async_op=True).wait())
    assert list_phases(*both) == [Phase.BACKWARD, Phase.ALL_REDUCE]
    assert list_phases(lambda: dist.all_reduce(loss)) == [Phase.BACKWARD]
    assert list_phases(lambda: dist.broadcast(gradient, 0)) == [Phase.BACKWARD]
    assert list_phases(clip, lambda: dist.all_reduce(gradient)) == [Phase.BACKWARD, Phase.GRAD_NORM]
    assert list_phases(lambda: dist.all_reduce(gradient), backward=False) == [Phase.FORWARD]


def by_newest_name(place: Any, *names: str) -> Callable[..., Any]:
    """The first of these functions that this torch has; asked for at each call, as a user's line does."""
    found: Callable[..., Any] = getattr(place, next(name for name in names if hasattr(place, name)))
    return found


def see_old_names(recorder: Recorder) -> None:
    """The names before torch 2.13: some releases warn and call the new ones, and each call is seen once."""

    def work() -> None:
        dist.all_gather_into_tensor(torch.empty(8), torch.ones(4))
        dist.reduce_scatter_tensor(torch.empty(4), torch.ones(8))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        _, seen = record_step(recorder, work)
    assert [(KINDS[item.kind], item.size_bytes) for item in seen] == [(GATHER, 32), (SCATTER, 32)]


def see_gathers_into_one(recorder: Recorder) -> None:
    """torch 2.15 gathers into one tensor on one rank, by two names; gloo refuses, after the call was seen."""

    def work() -> None:
        target = torch.empty(8) if dist.get_rank() == 0 else None
        for gather in gathers:
            with contextlib.suppress(RuntimeError):
                gather(torch.ones(4), target, dst=0)

    gathers = [getattr(dist, name) for name in ("gather_single", "gather_into_tensor") if hasattr(dist, name)]
    _, seen = record_step(recorder, work)
    assert [(KINDS[item.kind], item.size_bytes) for item in seen] == [(OTHER, 32)] * len(gathers)


def see_blocking_ones(recorder: Recorder) -> None:
    scatters_lists = True
    try:
        dist.reduce_scatter(torch.empty(4), [torch.ones(4), torch.ones(4)])
    except RuntimeError:  # of torch 2.6 on gloo
        scatters_lists = False

    def work() -> None:
        one, two = torch.ones(4), torch.ones(8)
        dist.all_reduce(one)
        dist.all_gather([torch.empty(4), torch.empty(4)], one)
        by_newest_name(dist, "all_gather_single", "all_gather_into_tensor")(two, one)
        if scatters_lists:
            dist.reduce_scatter(torch.empty(4), input_list=[torch.ones(4), torch.ones(4)])
        by_newest_name(dist, "reduce_scatter_single", "reduce_scatter_tensor")(torch.empty(4), two)
        dist.broadcast(one, 0)
        dist.reduce(tensor=one, dst=0)
        dist.gather(one, [torch.empty(4), torch.empty(4)] if dist.get_rank() == 0 else None)
        dist.scatter(one, [torch.ones(4), torch.ones(4)] if dist.get_rank() == 0 else None, 0)
        dist.all_to_all_single(torch.empty(8), two)
        dist.barrier()
        distributed_c10d.all_reduce(one)

    record, seen = record_step(recorder, work)
    scatters = [SCATTER, SCATTER][not scatters_lists :]
    kinds = [REDUCE, GATHER, GATHER, *scatters, OTHER, OTHER, OTHER, OTHER, EXCHANGE, OTHER, REDUCE]
    assert [KINDS[item.kind] for item in seen] == kinds
    sizes = [16, 32, 32, *(32 for _ in scatters), 16, 16, 32, 32, 32, 0, 16]
    assert [item.size_bytes for item in seen] == sizes
    for item in seen:
        assert (item.group, item.phase) == (0, FORWARD) and item.end_ns is not None
        assert item.exposed_ns is not None and 0 < item.exposed_ns <= item.end_ns - item.arrival_ns
    assert wait_in_forward(record) == sum(item.exposed_ns or 0 for item in seen)
    assert set(record.segments.codes) == {FORWARD, PHASE_CODE[Phase.OTHER]}  # a wait inside a phase stays in it


def see_the_buffers_of_ddp(recorder: Recorder) -> None:
    """Before forward, DDP broadcasts rank 0's statistics of a BatchNorm: whoever is early waits there."""
    model = DistributedDataParallel(torch.nn.BatchNorm1d(3))
    record, (seen,) = record_step(recorder, lambda: model(torch.ones(2, 3)))
    assert (KINDS[seen.kind], seen.size_bytes, seen.group) == (OTHER, 2 * 3 * 4 + 8, 0)
    assert seen.exposed_ns is not None and 0 < seen.exposed_ns == wait_in_forward(record)
    assert seen.end_ns is not None


def see_groups(recorder: Recorder, pair: dist.ProcessGroup) -> None:
    _, seen = record_step(recorder, lambda: (dist.all_reduce(torch.ones(2), group=pair), dist.barrier(pair)))
    assert len({item.group for item in seen}) == 1
    name, ranks = recorder.groups[seen[0].group]
    assert name == f"mine {pair.group_name} (ranks 0, 1)" and ranks == (0, 1)
    _, seen = record_step(recorder, lambda: dist.all_reduce(torch.ones(2), group=dist.group.WORLD))
    assert seen[0].group == 0 and recorder.groups[0] == ("default", None)


def see_asynchronous_ones(recorder: Recorder) -> None:
    def work() -> None:
        works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(2)]
        assert works[0] is not None and works[1] is not None
        works[0].wait()
        works.append(works.pop(0))
        kept.append(works)

    kept: list[Any] = []
    record, (waited, left) = record_step(recorder, work)
    assert waited.exposed_ns is not None and waited.exposed_ns == wait_in_forward(record)
    assert (left.exposed_ns, left.end_ns) == (None, None)  # the user has not waited for it in this step
    assert record.exposed_host_ns is not None and record.exposed_host_ns[KINDS.index(REDUCE)] is None
    record, seen = record_step(recorder, lambda: kept[0][0].wait())
    assert seen == [] and wait_in_forward(record) == 0


def see_gradients_of_a_bare_loop(recorder: Recorder) -> None:
    """What a loop reduces between backward and the optimizer, other than a few numbers, are gradients."""

    def run_phase(phase: Phase) -> None:
        recorder.enter(PHASE_CODE[phase])
        recorder.exit()

    def work() -> None:
        dist.all_reduce(torch.ones(50))  # before backward
        run_phase(Phase.BACKWARD)
        dist.all_reduce(torch.ones(1))  # the loss
        dist.all_reduce(torch.ones(60))
        later = dist.all_reduce(torch.ones(70), async_op=True)
        assert later is not None
        later.wait()
        run_phase(Phase.OPTIMIZER)
        dist.all_reduce(torch.ones(80))  # such as metrics

    record, seen = record_step(recorder, work, phase=None)
    exposed_ns = {item.size_bytes // 4: item.exposed_ns or 0 for item in seen}
    assert list(exposed_ns) == [50, 1, 60, 70, 80] and record.wait_host_ns is not None
    assert record.phase_host_ns is not None
    assert record.phase_host_ns[PHASE_CODE[Phase.ALL_REDUCE]] == exposed_ns[60] + exposed_ns[70]
    assert record.wait_host_ns[OWN_PHASES.index(Phase.OTHER)] == exposed_ns[50] + exposed_ns[1] + exposed_ns[80]


def see_functional_ones(recorder: Recorder) -> None:
    group = dist.group.WORLD
    assert group is not None

    def work() -> None:
        reduced = functional.all_reduce(torch.ones(3), "sum", group)
        assert reduced.add(0).tolist() == [2, 2, 2]
        gather = by_newest_name(functional, "all_gather_single", "all_gather_tensor")
        assert gather(torch.ones(2, 3), 1, group).sum() == 12
        scatter = by_newest_name(functional, "reduce_scatter_single", "reduce_scatter_tensor")
        assert scatter(torch.ones(4), "sum", 0, group).tolist() == [2, 2]

    record, seen = record_step(recorder, work)
    assert [(KINDS[item.kind], item.size_bytes) for item in seen] == [(REDUCE, 12), (GATHER, 48), (SCATTER, 16)]
    assert all(item.exposed_ns is not None and item.exposed_ns > 0 for item in seen)
    assert wait_in_forward(record) == sum(item.exposed_ns or 0 for item in seen)


def see_differentiable_ones(recorder: Recorder) -> None:
    """Their backward is C++'s, and what waits for their results may be given the result itself."""
    group = dist.group.WORLD
    assert group is not None

    def work() -> None:
        part = torch.ones(2, 3, requires_grad=True)
        gather = by_newest_name(functional, "all_gather_single_autograd", "all_gather_tensor_autograd")
        functional.wait_tensor(gather(part, 0, group)).square().sum().backward()
        assert part.grad is not None and part.grad.tolist() == [[4.0] * 3] * 2
        scatter = by_newest_name(functional, "reduce_scatter_single_autograd", "reduce_scatter_tensor_autograd")
        assert functional.wait_tensor(scatter(torch.ones(4), "sum", 0, group)).tolist() == [2, 2]

    _, seen = record_step(recorder, work)
    assert [(KINDS[item.kind], item.size_bytes) for item in seen] == [(GATHER, 48), (SCATTER, 16)], str(seen)
    _, again = record_step(recorder, lambda: dist.all_reduce(torch.ones(1)))
    assert [KINDS[item.kind] for item in again] == [REDUCE], "recording goes on"


def see_no_others(recorder: Recorder) -> None:
    dist.all_reduce(torch.ones(1))  # no step is open
    group = dist.new_group()

    def work() -> None:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(1),), kwargs={"group": group})
        thread.start()
        thread.join()
        gathered: list[Any] = [None, None]
        dist.all_gather_object(gathered, "x")
        assert gathered == ["x", "x"]
        try:
            dist.all_reduce("no tensor")
        except TypeError as error:
            assert "tensor" in str(error)  # torch's own words

    _, seen = record_step(recorder, work)
    assert [KINDS[item.kind] for item in seen] == [GATHER, GATHER]  # sizes and texts: what all_gather_object issues


def see_autograd(recorder: Recorder) -> None:
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(lambda gradient: dist.all_reduce(gradient) and gradient)
    backward = PHASE_CODE[Phase.BACKWARD]

    def work() -> None:
        recorder.enter(backward)
        weight.sum().backward()
        recorder.exit()

    record, (item,) = record_step(recorder, work)
    assert PHASES[item.phase] is Phase.BACKWARD and item.exposed_ns
    assert record.wait_host_ns is not None
    assert record.wait_host_ns[OWN_PHASES.index(Phase.BACKWARD)] == item.exposed_ns
    compiled = torch.compile(reduce_in_place, backend="eager", fullgraph=True)
    _, seen = record_step(recorder, lambda: compiled(torch.ones(2)))
    assert seen == []  # inside a graph: not seen, and no break of the graph, which would be an error here


def reduce_in_place(value: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(value)
    return functional.all_reduce(value, "sum", "0") + 1


def test_what_a_user_issues_is_seen_once_and_put_back(tmp_path: Path) -> None:
    call_on_ranks(2, see_what_users_issue, tmp_path=tmp_path)


def _gather_in_cpp(self: torch.Tensor, gather_dim: int, group: Any, tag: str = "") -> Any:
    return CPP.all_gather_into_tensor(self, 1, functional._resolve_group_name(group, tag))


def _scatter_in_cpp(self: torch.Tensor, reduction: str, scatter_dim: int, group: Any, tag: str = "") -> Any:
    return CPP.reduce_scatter_tensor(self, reduction, 1, functional._resolve_group_name(group, tag))


def _exchange_in_cpp(self: torch.Tensor, outputs: Any, inputs: Any, group: Any, tag: str = "") -> Any:
    return CPP.all_to_all_single(self, outputs, inputs, functional._resolve_group_name(group, tag))


CPP: Any = torch.ops._c10d_functional_autograd
IN_CPP = {
    "all_gather_tensor_autograd": (_gather_in_cpp, GATHER, (0,)),
    "all_gather_single_autograd": (_gather_in_cpp, GATHER, (0,)),
    "reduce_scatter_tensor_autograd": (_scatter_in_cpp, SCATTER, ("sum", 0)),
    "reduce_scatter_single_autograd": (_scatter_in_cpp, SCATTER, ("sum", 0)),
    "all_to_all_single_autograd": (_exchange_in_cpp, EXCHANGE, ([4], [4])),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_CPP)
def test_differentiable_ones_are_seen_where_torch_calls_no_plain_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before torch 2.13, which had the older of these names, and called C++ in them."""
    function, kind, given = IN_CPP[name]
    for other in IN_CPP:
        monkeypatch.delattr(functional, other, raising=False)
    monkeypatch.setattr(functional, name, function, raising=False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    recorder = Recorder()
    undo = watch_collectives(CollectiveWatch(recorder))

    def call() -> None:
        functional.wait_tensor(getattr(functional, name)(torch.ones(4), *given, dist.group.WORLD))

    try:
        _, seen = record_step(recorder, call)
    finally:
        undo()
        dist.destroy_process_group()
    assert [(KINDS[item.kind], item.size_bytes) for item in seen] == [(kind, 16)]


def exchange(world: World) -> None:
    tensor = torch.full((2,), float(world.rank))
    if world.rank == 0:
        dist.send(tensor, 1)
        ends = [dist.P2POp(dist.irecv, tensor, 1)]
    else:
        other = torch.empty(2)
        dist.recv(other, 0)
        assert other.tolist() == [0.0, 0.0]
        ends = [dist.P2POp(dist.isend, tensor, 0)]
    for work in dist.batch_isend_irecv(ends):
        work.wait()
    assert tensor.tolist() == [1.0, 1.0]


def see_exchanges(world: World) -> None:
    before = [vars(dist.ProcessGroup)[name] for name in EXCHANGES]
    recorder, seen = Recorder(), list[bool]()
    watch = CollectiveWatch(recorder)
    undo = [watch_collectives(watch), watch_exchanges(watch, lambda: seen.append(True))]
    exchange(world)
    assert not seen  # outside a step
    for _ in range(2):
        record, items = record_step(recorder, lambda: exchange(world))
        assert seen and items == []  # what two ranks exchange is no collective
        assert record.issued is not None and len(record.issued.exchanges) == 2  # the first, and the one of the batch
        assert wait_in_forward(record) == sum(record.segments.durations_ns[at] for at in record.issued.exchanges) > 0
    record, items = record_step(recorder, lambda: (exchange(world), dist.barrier()))
    assert record.issued is not None and len(record.issued.waits) == len(items) == 1
    waits = (*record.issued.exchanges, record.issued.waits[0][0])
    assert wait_in_forward(record) == sum(record.segments.durations_ns[at] for at in waits)
    assert items[0].exposed_ns == record.segments.durations_ns[waits[-1]]
    for step in reversed(undo):
        step()
    assert [vars(dist.ProcessGroup)[name] for name in EXCHANGES] == before
    exchange(world)


def test_waits_for_exchanges_between_two_ranks_are_recorded_and_torch_is_as_it_was(tmp_path: Path) -> None:
    call_on_ranks(2, see_exchanges, tmp_path=tmp_path)
