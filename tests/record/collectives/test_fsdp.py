"""Parameter gathering and gradient scattering under FSDP2, on real gloo ranks."""

from __future__ import annotations

import functools
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from distprof.facts.run import KINDS, PHASE_CODE, CollectiveKind, Phase
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.collectives.fsdp import watch_fsdp
from distprof.record.step.recorder import Recorder
from distprof.world import World
from tests.ranks import call_on_ranks

WIDTH, DEPTH = 32, 3
GATHER_NS = 1_000_000
PHASES_OF_FSDP = {PHASE_CODE[phase] for phase in (Phase.ALL_GATHER, Phase.ALL_REDUCE)}


def make_model(world: World, *, reshard: bool = True) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])
    mesh = init_device_mesh("cpu", (world.size,))
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return fully_shard(model, mesh=mesh, reshard_after_forward=reshard)  # type: ignore[return-value]


def run_steps(world: World, model: nn.Module, recorder: Recorder | None, *, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(world.rank)
    losses = []
    for step in range(steps):
        inputs = torch.randn(4, WIDTH, generator=generator)
        if recorder is not None:
            recorder.begin_step(step, warmup=False)
            recorder.enter(PHASE_CODE[Phase.FORWARD])
        loss = model(inputs).square().mean()
        if recorder is not None:
            recorder.exit()
            recorder.enter(PHASE_CODE[Phase.BACKWARD])
        loss.backward()
        if recorder is not None:
            recorder.exit()
            recorder.enter(PHASE_CODE[Phase.GRAD_NORM])
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert isinstance(norm, DTensor)
        norm.full_tensor()
        if recorder is not None:
            recorder.work.keep_scalars(loss=loss, grad_norm=norm)
            recorder.exit()
        optimizer.step()
        optimizer.zero_grad()
        if recorder is not None:
            recorder.end_step()
        losses.append(float(loss.detach()))
    return losses


def count(record: Any, kind: CollectiveKind) -> tuple[int, int]:
    own = [item.size_bytes for item in record.collectives if KINDS[item.kind] is kind]
    return len(own), sum(own)


class GatherClock:
    """A clock on which gathers take time, and everything else 1 ns between two looks at it."""

    def __init__(self) -> None:
        self._now_ns = 0

    def __call__(self) -> int:
        self._now_ns += 1
        return self._now_ns

    def slow_down(self, name: str) -> None:
        """Makes a function of torch.distributed take time. For a process that ends with the test."""
        gather = getattr(dist, name)

        @functools.wraps(gather)
        def late(*args: Any, **options: Any) -> Any:
            work = gather(*args, **options)
            self._now_ns += GATHER_NS
            return work

        setattr(dist, name, late)


def see_everything(world: World, stream_waits: bool, reshard: bool) -> None:
    plain = run_steps(world, make_model(world, reshard=reshard), None, steps=4)
    clock = GatherClock()
    clock.slow_down("all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor")
    model, recorder = make_model(world, reshard=reshard), Recorder(now_ns=clock)
    collective_watch = CollectiveWatch(recorder)
    assert watch_fsdp(model, collective_watch, stream_waits=stream_waits) == ()
    undo = watch_collectives(collective_watch)
    assert run_steps(world, model, recorder, steps=4) == plain
    undo()
    partial = "it is a DTensor with a part of the value on each rank: pass value.full_tensor()"
    notes = recorder.on_device.describe()  # whether the norm is whole on every rank depends on the release of torch
    assert notes in ([], [f"grad_norm is not recorded: {partial}"])
    layer_bytes = 4 * (WIDTH * WIDTH + WIDTH)
    gathers = DEPTH * (2 if reshard else 1)
    # Of all norms, or of their sum, for clipping and for a tensor that is whole.
    reductions = (2, 2 * 4) if notes else (1, 4 * 2 * DEPTH)
    for record, loss in zip(recorder.drain(), plain, strict=True):
        assert record.scalars[0] == loss and (record.scalars[1] is None) == bool(notes)
        totals = record.phase_host_ns
        assert totals is not None and sum(totals) == record.step_host_ns
        assert count(record, CollectiveKind.ALL_GATHER) == (gathers, gathers * layer_bytes)
        assert count(record, CollectiveKind.REDUCE_SCATTER) == (DEPTH, DEPTH * layer_bytes)
        assert count(record, CollectiveKind.ALL_REDUCE) == reductions
        for phase in (Phase.ALL_GATHER, Phase.ALL_REDUCE, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM):
            assert totals[PHASE_CODE[phase]] > 0
        assert totals[PHASE_CODE[Phase.DATA]] == 0
        gathering = [item for item in record.collectives if KINDS[item.kind] is CollectiveKind.ALL_GATHER]
        blocked = sum(item.end_ns - item.arrival_ns for item in gathering)
        assert gathers * GATHER_NS <= totals[PHASE_CODE[Phase.ALL_GATHER]] <= blocked  # gloo blocks: all is exposed


@pytest.mark.parametrize(("stream_waits", "reshard"), [(False, True), (True, True), (False, False)])
@pytest.mark.sharding
def test_gathers_and_scatters_are_told_from_compute(tmp_path: Path, stream_waits: bool, reshard: bool) -> None:
    call_on_ranks(2, see_everything, stream_waits, reshard, tmp_path=tmp_path)


def accumulate(world: World) -> None:
    model, recorder = make_model(world), Recorder()
    collective_watch = CollectiveWatch(recorder)
    watch_fsdp(model, collective_watch, stream_waits=False)
    watch_collectives(collective_watch)  # before torch 2.9 FSDP2 issues what any loop could
    recorder.begin_step(0, warmup=False)
    for last in (False, True):
        model.set_requires_gradient_sync(last)  # type: ignore[operator]
        model(torch.ones(2, WIDTH)).sum().backward()
    recorder.end_step()
    (record,) = recorder.drain()
    assert count(record, CollectiveKind.ALL_GATHER)[0] == 4 * DEPTH
    assert count(record, CollectiveKind.REDUCE_SCATTER)[0] == DEPTH


@pytest.mark.sharding
def test_accumulation_scatters_once(tmp_path: Path) -> None:
    call_on_ranks(2, accumulate, tmp_path=tmp_path)


class OldGroup:
    """A parameter group of some torch that has none of the private methods."""

    _all_gather_comm = None
    _reduce_scatter_comm = None


def make_unit(*groups: Any) -> nn.Module:
    """A module that looks as if `fully_shard` had been applied to it, and had made these groups of parameters."""
    state = SimpleNamespace(_fsdp_param_groups=groups)

    class Unit(nn.Module, FSDPModule):
        def __new__(cls) -> Unit:
            return nn.Module.__new__(cls)

        def _get_fsdp_state(self) -> Any:
            return state

    return Unit()


def test_a_torch_without_the_private_methods_is_a_note() -> None:
    notes = watch_fsdp(make_unit(OldGroup()), CollectiveWatch(Recorder()), stream_waits=True)
    assert len(notes) == 5 and "wait_for_unshard: that wait is counted as compute" in notes[-1]


def test_fault_42_gathers_are_told_from_compute_without_communication_objects() -> None:
    """As before torch 2.9."""

    class Group(SimpleNamespace):
        pass

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    part, whole = torch.ones(8), torch.empty(8)
    gather = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    scatter = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    group = Group(
        unshard=lambda: getattr(dist, gather)(whole, part), post_backward=lambda: getattr(dist, scatter)(part, whole)
    )
    recorder = Recorder()
    collective_watch = CollectiveWatch(recorder)
    assert watch_fsdp(make_unit(group), collective_watch, stream_waits=False) == ()
    undo = watch_collectives(collective_watch)
    recorder.begin_step(0, warmup=False)
    recorder.enter(PHASE_CODE[Phase.FORWARD])
    group.unshard()
    group.post_backward()
    getattr(dist, gather)(whole, part)  # of somebody else
    recorder.exit()
    recorder.end_step()
    undo()
    dist.destroy_process_group()
    (record,) = recorder.drain()
    codes = [code for code in record.segments.codes if code in PHASES_OF_FSDP]
    assert codes == [PHASE_CODE[Phase.ALL_GATHER], PHASE_CODE[Phase.ALL_REDUCE]]
    assert count(record, CollectiveKind.ALL_GATHER) == (2, 2 * part.nbytes)


def test_fault_42_a_wait_that_fsdp2_keeps_elsewhere_costs_nothing_but_that_wait() -> None:
    waited: list[str] = []
    group = GroupOfTwo(1, waited)
    del group._all_gather_result
    notes: list[str] = []
    collective_watch = CollectiveWatch(Recorder(), notes.append)
    watch_fsdp(make_unit(group), collective_watch, stream_waits=True)
    for _ in range(2):
        group.wait_for_unshard()
        group.reshard()
    assert waited == ["scatter 0", "scatter 0"] and collective_watch.on
    (note,) = notes
    assert note.startswith("FSDP2's waits in wait_for_unshard are counted as compute from step ")


def test_a_unit_gets_its_own_methods_back() -> None:
    group, kept = GroupOfTwo(0, []), GroupOfTwo(1, [])
    before = dict(vars(group))
    collective_watch = CollectiveWatch(Recorder())
    watch_fsdp(make_unit(group, kept), collective_watch, stream_waits=True)
    assert all(vars(group)[name] is not before[name] for name in ("post_backward", "reshard", "_all_gather_comm"))
    kept.reshard = users = lambda: None
    for undo in reversed(collective_watch.undo):
        undo()
    assert vars(group) == before and kept.reshard is users


def test_a_unit_has_its_own_methods_in_steps_that_are_not_recorded() -> None:
    group, recorder = GroupOfTwo(0, []), Recorder()
    before, collective_watch = dict(vars(group)), CollectiveWatch(recorder)
    watch_fsdp(make_unit(group), collective_watch, stream_waits=True)
    around = dict(vars(group))
    for _ in range(2):
        recorder.set_aside(True)
        assert {name: vars(group)[name] for name in before} == before
        recorder.set_aside(False)
        assert vars(group) == around
    recorder.set_aside(True)
    group.reshard = users = lambda: None
    recorder.set_aside(False)
    assert group.reshard is users and group.post_backward is around["post_backward"]
    recorder.set_aside(True)
    for undo in reversed(collective_watch.undo):
        undo()
    assert vars(group) == {**before, "reshard": users} and recorder.on_aside == []


def test_what_puts_a_unit_back_does_not_keep_its_model() -> None:
    groups = [GroupOfTwo(0, [])]
    collective_watch, held = CollectiveWatch(Recorder()), weakref.ref(groups[0])
    watch_fsdp(make_unit(*groups), collective_watch, stream_waits=True)
    groups.clear()
    gc.collect()
    assert held() is None and collective_watch.undo
    for undo in reversed(collective_watch.undo):
        undo()


class GroupOfTwo(SimpleNamespace):
    """One of the two parameter groups of a unit in torch 2.13, whose compute stream notes what it waits for."""

    def __init__(self, index: int, waited: list[str]) -> None:
        stream = SimpleNamespace(wait_event=waited.append)
        states = [SimpleNamespace(event=f"scatter {number}") for number in range(2)]
        super().__init__(
            _param_group_index=index, _num_param_groups=2, reduce_grads=True, _post_reduce_event=None,
            _training_state=SimpleNamespace(name="POST_BACKWARD"), _all_gather_result=None,
            device_handle=SimpleNamespace(current_stream=lambda: stream),
            comm_ctx=SimpleNamespace(reduce_scatter_states=states, reduce_scatter_max_input_buffers=2),
        )  # fmt: skip
        for name in ("wait_for_unshard", "reshard", "_wait_for_post_backward", "finalize_backward", "post_backward"):
            setattr(self, name, lambda: None)
        self._all_gather_comm = self._reduce_scatter_comm = lambda *_: None


@pytest.mark.parametrize(("index", "expected"), [(0, []), (1, ["scatter 0"])])
def test_only_the_group_with_which_a_units_backward_begins_waits_for_earlier_scatters(
    index: int, expected: list[str]
) -> None:
    waited: list[str] = []
    group = GroupOfTwo(index, waited)
    assert watch_fsdp(make_unit(group), CollectiveWatch(Recorder()), stream_waits=True) == ()
    group.reshard()
    assert waited == expected
