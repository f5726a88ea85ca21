"""FSDP2's own code on a made-up device: its streams and events are pretended, and what it waits for is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.simulate.device import HostClock, SimulatedDevice, SimulatedEvent, Stream
from distprof.facts.run import KINDS, PHASE_CODE, CollectiveKind, Phase
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.collectives.fsdp import GroupWaits, _watch_last_waits, watch_fsdp
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord

US = 1_000
FORWARD_NS, BACKWARD_NS = 300 * US, 500 * US
RANKS = 4


class Handle:
    """In place of ``torch.cuda`` for FSDP2."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def Stream(self, **_: Any) -> Stream:  # noqa: N802
        return Stream(self._device)

    def Event(self, **_: Any) -> SimulatedEvent:  # noqa: N802
        return SimulatedEvent(self._device)

    def current_stream(self, *_: Any) -> Stream:
        return self._device.current_stream()

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self._device.set_stream(stream)
        yield
        self._device.set_stream(before)


class Comm:
    """A collective of FSDP2 that takes some time on the current stream and moves nothing."""

    def __init__(self, device: SimulatedDevice, duration_ns: int) -> None:
        self._device, self._duration_ns = device, duration_ns

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.zeros(*size, dtype=dtype, device=device)

    def __call__(self, *_: Any, **__: Any) -> None:
        self._device.current_stream().launch(self._duration_ns)


class Kernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, device: SimulatedDevice) -> torch.Tensor:
        ctx.device = device
        device.current_stream().launch(FORWARD_NS)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.device.current_stream().launch(BACKWARD_NS)
        return grads[0], None


class Layer(nn.Module):
    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self.inner, self._device = nn.Linear(4, 4, bias=False), device

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Kernels.apply(self.inner(inputs), self._device)  # type: ignore[no-any-return, no-untyped-call]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    device = SimulatedDevice(HostClock())
    for name in ("_fsdp_collectives", "_fsdp_param_group", "_fsdp_state"):
        monkeypatch.setattr(f"torch.distributed.fsdp._fully_shard.{name}._get_device_handle", lambda _: Handle(device))
    monkeypatch.setattr(CollectiveWatch, "ends_on_device", lambda *_: True)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield device
    dist.destroy_process_group()


def make_model(
    device: SimulatedDevice, patch: pytest.MonkeyPatch, depth: int, *, shape: tuple[int, ...], gather_ns: int,
    scatter_ns: int,
) -> Any:  # fmt: skip
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    model = nn.Sequential(*[Layer(device) for _ in range(depth)])
    gather, scatter = Comm(device, gather_ns), Comm(device, scatter_ns)
    for layer in model:
        fully_shard(layer, mesh=mesh)
        if hasattr(layer, "set_custom_all_gather"):
            layer.set_custom_all_gather(gather)
            layer.set_custom_reduce_scatter(scatter)
        else:  # before torch 2.9
            patch.setattr(dist, "all_gather_into_tensor", lambda *args, **options: gather(*args, **options))
            patch.setattr(dist, "reduce_scatter_tensor", lambda *args, **options: scatter(*args, **options))
    return fully_shard(model, mesh=mesh)


def waits_together(model: Any) -> bool:
    """Whether a backward ends with one wait for the last reductions of all groups, or before torch 2.13 with theirs."""
    return hasattr(model._get_fsdp_state()._comm_ctx, "_last_post_reduce_events")


def run_steps(device: SimulatedDevice, model: Any, steps: int, micro_steps: int) -> list[StepRecord]:
    recorder = Recorder(now_ns=device.clock, device=device, every=1)
    collective_watch = CollectiveWatch(recorder)
    assert watch_fsdp(model, collective_watch, stream_waits=True) == ()
    undo = watch_collectives(collective_watch)
    for step in range(steps):
        recorder.begin_step(step, warmup=False)
        for micro_step in range(micro_steps):
            model.set_requires_gradient_sync(micro_step == micro_steps - 1)
            recorder.enter(PHASE_CODE[Phase.FORWARD])
            loss = model(torch.ones(1, 4)).sum()
            recorder.exit()
            recorder.enter(PHASE_CODE[Phase.BACKWARD])
            loss.backward()
            recorder.exit()
        recorder.end_step()
    undo()
    assert device.synchronised == 0
    records = recorder.drain(wait=True)
    assert recorder.on_device.describe() == []
    return records


@pytest.mark.sharding
@pytest.mark.parametrize(
    ("shape", "gather_ns", "scatter_ns", "reduce_ns"),
    [
        ((RANKS,), 900 * US, 50 * US, 0), ((RANKS,), 50 * US, 900 * US, 0), ((RANKS,), 100 * US, 100 * US, 0),
        ((2, 2), 50 * US, 50 * US, 1_700 * US),
    ],
    ids=["gathers", "scatters", "hidden", "hsdp"],
)  # fmt: skip
def test_what_compute_waits_for_is_apart_and_nothing_else_is(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], gather_ns: int, scatter_ns: int,
    reduce_ns: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: device.current_stream().launch(reduce_ns) and None)
    depth, micro_steps = 6, 2
    model = make_model(device, monkeypatch, depth, shape=shape, gather_ns=gather_ns, scatter_ns=scatter_ns)
    for record in run_steps(device, model, 4, micro_steps):
        phases = record.phase_device_ns
        assert phases is not None and sum(phases) == record.step_device_ns
        kernels = {Phase.FORWARD: FORWARD_NS, Phase.BACKWARD: BACKWARD_NS}
        for phase, kernel_ns in kernels.items():
            assert phases[PHASE_CODE[phase]] == pytest.approx(depth * micro_steps * kernel_ns, abs=20 * US)
        waited = phases[PHASE_CODE[Phase.ALL_GATHER]] + phases[PHASE_CODE[Phase.ALL_REDUCE]]
        assert waited == pytest.approx(
            (record.step_device_ns or 0) - depth * micro_steps * (FORWARD_NS + BACKWARD_NS), abs=40 * US
        )
        by_kind = dict(zip(KINDS, record.exposed_device_ns or [], strict=True))
        assert by_kind[CollectiveKind.ALL_GATHER] == phases[PHASE_CODE[Phase.ALL_GATHER]]
        last_waits = 1 if waits_together(model) else depth
        assert len(record.segments.codes) <= depth * (micro_steps * 4 + 4) + 2 * (2 * micro_steps + last_waits)
        assert record.collectives is not None
        kinds = [KINDS[item.kind] for item in record.collectives]
        assert kinds.count(CollectiveKind.ALL_GATHER) == 2 * depth * micro_steps
        assert kinds.count(CollectiveKind.REDUCE_SCATTER) == depth
        assert kinds.count(CollectiveKind.ALL_REDUCE) == (depth if reduce_ns else 0)
        lasts_ns = {
            CollectiveKind.ALL_GATHER: gather_ns, CollectiveKind.REDUCE_SCATTER: scatter_ns,
            CollectiveKind.ALL_REDUCE: reduce_ns,
        }  # fmt: skip
        assert record.device_times is not None
        for kind, arrival_ns, end_ns, exposed_ns, left_ns in zip(kinds, *record.device_times, strict=True):
            assert arrival_ns is not None and end_ns is not None and exposed_ns is not None
            assert end_ns - arrival_ns == pytest.approx(lasts_ns[kind], abs=2 * US)
            if exposed_ns > 10 * US:
                assert left_ns is not None and left_ns >= end_ns - 2 * US


class Group(SimpleNamespace):
    """As FSDP2 keeps one: it can be referred to weakly."""


@pytest.mark.parametrize(("index", "waits"), [(0, False), (1, True), (None, True)])
def test_only_the_group_that_reclaims_buffers_waits_for_earlier_scatters(index: int | None, waits: bool) -> None:
    clock = HostClock()
    device = SimulatedDevice(clock)
    scatter = SimulatedEvent(device)
    scatter.record(communication := Stream(device))
    group = Group(
        wait_for_unshard=None, reshard=lambda: None, _wait_for_post_backward=None, finalize_backward=None,
        device_handle=Handle(device), reduce_grads=True, _training_state=SimpleNamespace(name="POST_BACKWARD"),
        comm_ctx=SimpleNamespace(
            reduce_scatter_states=[SimpleNamespace(event=scatter)], reduce_scatter_max_input_buffers=1
        ),
    )  # fmt: skip
    if index is not None:  # since torch 2.13
        group._param_group_index, group._num_param_groups = index, 2
    recorder = Recorder(now_ns=clock, device=device, num_events=16)
    missing: set[str] = set()
    GroupWaits(group, CollectiveWatch(recorder), deque([-1]), deque([-1]), [-1]).watch(missing)
    recorder.begin_step(0, warmup=False)
    group.reshard()
    recorder.end_step()
    (record,) = recorder.drain(wait=True)
    assert len(record.segments.codes) == (3 if waits else 1) and not missing and communication.queue


def test_fault_42_waits_that_have_moved_from_the_groups_to_the_unit_are_recorded() -> None:
    device = SimulatedDevice(clock := HostClock())
    reduced = SimulatedEvent(device)
    stream = Stream(device)
    with Handle(device).stream(stream):
        stream.launch(700 * US)
        reduced.record(stream)
    context = SimpleNamespace(_last_post_reduce_events={stream: reduced}, device_handle=Handle(device))
    state = Group(_comm_ctx=context, _end_backward_iteration=lambda: None)
    recorder = Recorder(now_ns=clock, device=device, every=1)
    collective_watch = CollectiveWatch(recorder)
    _watch_last_waits(state, collective_watch)
    recorder.begin_step(0, warmup=False)
    recorder.enter(PHASE_CODE[Phase.BACKWARD])
    state._end_backward_iteration()
    recorder.exit()
    recorder.end_step()
    (record,) = recorder.drain(wait=True)
    assert record.phase_device_ns is not None
    assert record.phase_device_ns[PHASE_CODE[Phase.ALL_REDUCE]] == pytest.approx(700 * US, abs=20 * US)
    assert record.phase_device_ns[PHASE_CODE[Phase.BACKWARD]] < 20 * US
    for undo in collective_watch.undo:
        undo()
    assert state._end_backward_iteration.__name__ == "<lambda>"
