"""What is wrapped around torch, on a made-up device: DDP's reducer, `torch.distributed`, functional collectives."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from msgspec import Struct
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from benchmarks.simulate.device import HostClock, SimulatedDevice
from benchmarks.simulate.device_graph import CapturedWork
from distprof.facts.micro_batches import OPERATION_KINDS
from distprof.facts.run import KINDS, PHASE_CODE, CollectiveKind, Phase
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.collectives.ddp import watch_ddp
from distprof.record.collectives.exchanges import EXCHANGES, watch_exchanges
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord
from tests.record.collectives.device_group import DeviceGroup, Issued, Layer, open_group

US = 1_000
KERNEL_NS, TRANSFER_NS = 100 * US, 700 * US
LAYERS, WIDTH = 3, 600
FORWARD, BACKWARD, OPTIMIZER = (PHASE_CODE[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))
REDUCE = PHASE_CODE[Phase.ALL_REDUCE]


class Rank(Struct):
    """One rank under a recorder."""

    device: SimulatedDevice
    group: DeviceGroup
    recorder: Recorder
    collective_watch: CollectiveWatch

    def run_step(self, step: int, work: Callable[[], Any], phase: int = BACKWARD) -> None:
        self.recorder.begin_step(step, warmup=False)
        self.recorder.enter(phase)
        work()
        self.recorder.exit()
        self.recorder.end_step()

    def finish(self, *said: str) -> list[StepRecord]:
        assert self.device.synchronised == 0 and self.collective_watch.on
        records = self.recorder.drain(wait=True)
        notes = self.recorder.on_device.describe()
        assert len(notes) == len(said) and all(map(str.startswith, notes, said))
        return records

    def lead_back(self) -> None:
        """What the end of a backward has the compute stream do: wait for what a hook of the script returned."""
        for stream in (self.group.stream, *self.group.callbacks):
            self.device.current_stream().wait_stream(stream)
        self.group.callbacks.clear()

    def make_model(self, hook: Callable[..., Any] | None = None) -> Callable[[], None]:
        layers = nn.Sequential(*[Layer(self.device, KERNEL_NS, WIDTH) for _ in range(LAYERS)])
        model = DistributedDataParallel(layers, bucket_cap_mb=1)
        if hook is not None:
            model.register_comm_hook(None, hook)
        watch_ddp(model, self.collective_watch, pytest.fail)

        def train() -> None:
            model(torch.ones(1, WIDTH)).sum().backward()
            self.lead_back()

        return train


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    device = SimulatedDevice(clock := HostClock())
    with open_group(device, TRANSFER_NS, monkeypatch) as group:
        recorder = Recorder(now_ns=clock, device=device, every=1)
        collective_watch = CollectiveWatch(recorder, pytest.fail)
        undo = watch_collectives(collective_watch)
        yield Rank(device, group, recorder, collective_watch)
        undo()
        while collective_watch.undo:
            collective_watch.undo.pop()()


def reduce_later(rank: Rank) -> None:
    work = dist.all_reduce(torch.ones(1024), async_op=True)
    rank.device.current_stream().launch(KERNEL_NS)
    work.wait()


def reduce_now(rank: Rank) -> None:
    dist.all_reduce(torch.ones(1024))


def reduce_functionally(rank: Rank) -> None:
    reduced = functional.all_reduce(torch.ones(1024), "sum", dist.group.WORLD)
    rank.device.current_stream().launch(KERNEL_NS)
    functional.wait_tensor(reduced)


ISSUED = {"later": reduce_later, "now": reduce_now, "functionally": reduce_functionally}


@pytest.mark.parametrize("hook", [None, default_hooks.allreduce_hook], ids=["reducer", "hook"])
def test_buckets_of_ddp_are_reduced_and_waited_for_where_they_truly_are(rank: Rank, hook: Any) -> None:
    train = rank.make_model(hook)
    for step in range(4):
        rank.run_step(step, train)
    for record in rank.finish()[2:]:  # buckets are made anew before the second
        phases, seen = record.phase_device_ns, record.collectives
        assert phases is not None and sum(phases) == record.step_device_ns and seen is not None
        assert [KINDS[item.kind] for item in seen] == [CollectiveKind.ALL_REDUCE] * LAYERS
        assert sum(item.size_bytes for item in seen) == LAYERS * WIDTH**2 * 4
        # Of three layers the first to be reduced is ready after a kernel; each transfer waits for the one before.
        assert phases[REDUCE] == pytest.approx(LAYERS * TRANSFER_NS - (LAYERS - 1) * 2 * KERNEL_NS, abs=20 * US)
        assert phases[BACKWARD] == pytest.approx(LAYERS * 3 * KERNEL_NS, abs=20 * US)
        assert record.device_times is not None
        ends_ns = [end_ns for end_ns in record.device_times[1] if end_ns is not None]
        between_ns = [later - earlier for earlier, later in itertools.pairwise(ends_ns)]
        assert between_ns == pytest.approx([TRANSFER_NS] * (LAYERS - 1), abs=5 * US)


@pytest.mark.parametrize("how", ISSUED)
def test_collectives_of_the_script_end_and_are_waited_for_where_they_truly_are(rank: Rank, how: str) -> None:
    for step in range(3):
        rank.run_step(step, lambda: ISSUED[how](rank), OPTIMIZER)
    hidden_ns = 0 if how == "now" else KERNEL_NS
    for record in rank.finish():
        ((one,), exposed_ns) = record.collectives or [], record.exposed_device_ns
        assert (KINDS[one.kind], one.size_bytes) == (CollectiveKind.ALL_REDUCE, 4096)
        assert exposed_ns is not None and exposed_ns[one.kind] == pytest.approx(TRANSFER_NS - hidden_ns, abs=5 * US)
        assert record.step_device_ns == pytest.approx(TRANSFER_NS, abs=5 * US)
        assert record.device_times is not None
        (arrival_ns,), (end_ns,) = record.device_times[:2]
        assert arrival_ns is not None
        assert end_ns is None or end_ns - arrival_ns == pytest.approx(TRANSFER_NS, abs=5 * US)


@pytest.mark.parametrize("how", ["ddp", "hook", *ISSUED])
def test_fault_41_a_graph_that_is_captured_is_the_one_of_the_script_alone(rank: Rank, how: str) -> None:
    """No event is recorded in it, no stream joins it, and nothing is asked while it is captured."""
    hooks = {"ddp": None, "hook": default_hooks.allreduce_hook}
    work = rank.make_model(hooks[how]) if how in hooks else lambda: ISSUED[how](rank)
    for step in range(4):
        rank.run_step(step, work)
    graphs = []

    def capture() -> None:
        rank.device.begin_capture()
        work()
        graphs.append(rank.device.end_capture())

    rank.run_step(4, capture)
    rank.collective_watch.on = False
    capture()
    rank.collective_watch.on = True
    watched, plain = ([work.duration_ns for work in graph.works] for graph in graphs)
    assert watched == plain
    for step in (5, 6):
        rank.run_step(step, graphs[0].replay)
    *before, captured, first, second = rank.finish("1 step(s) captured a graph")
    assert captured.step_device_ns is None and captured.step_host_ns >= 0
    assert first.step_device_ns == second.step_device_ns == pytest.approx(sum(plain), abs=10 * US)
    assert all(record.step_device_ns for record in before)
    assert not any(isinstance(event.work, CapturedWork) for event in rank.recorder.on_device._ring._events)  # type: ignore[union-attr]


def test_the_thread_that_reads_what_is_left_takes_no_memory_of_another_device() -> None:
    device = SimulatedDevice(clock := HostClock(), index=3)

    def train() -> tuple[Recorder, list[StepRecord]]:
        device.adopt_thread()
        recorder = Recorder(now_ns=clock, device=device, every=1)
        for step in range(3):
            recorder.begin_step(step, warmup=False)
            device.current_stream().launch(KERNEL_NS)
            recorder.end_step()
        return recorder, run_in_thread(lambda: recorder.drain(wait=True))

    recorder, records = run_in_thread(train)
    assert [record.step_device_ns for record in records] == [pytest.approx(KERNEL_NS, abs=US)] * 3
    assert recorder.on_device.describe() == []


def run_in_thread(work: Callable[[], Any]) -> Any:
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(work()))
    thread.start()
    thread.join()
    return done[0]


def test_exchanges_are_operations_on_the_device_also_those_of_one_block(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block, as of ``batch_isend_irecv`` under NCCL, runs as one, and what is received has its wait."""
    for name in EXCHANGES:
        monkeypatch.setattr(dist.ProcessGroup, name, lambda group, tensors, *where: issue(group))
    monkeypatch.setattr(DeviceGroup, "_start_coalescing", lambda group, device: None, raising=False)
    monkeypatch.setattr(DeviceGroup, "_end_coalescing", lambda group, device: issue(group), raising=False)
    clock = rank.recorder.timeline.now
    assert isinstance(clock, HostClock)

    def issue(group: DeviceGroup) -> Any:
        clock.advance(US)  # what the host needs for it
        return group._issue(None)

    def wait(work: Issued) -> bool:
        clock.advance(US)
        return block(work)

    block = Issued.block
    monkeypatch.setattr(Issued, "block", wait)
    undo, tensor = watch_exchanges(rank.collective_watch, lambda: None), torch.ones(4)

    def work() -> None:
        dist.recv(tensor, 1)
        for phase in (FORWARD, BACKWARD):
            clock.advance(US)
            rank.recorder.enter(phase)
            clock.advance(US)
            rank.device.current_stream().launch(KERNEL_NS)
            rank.recorder.exit()
        clock.advance(US)
        with distributed_c10d._coalescing_manager(None, torch.device("cpu"), async_ops=True) as works:
            dist.irecv(tensor, 1)
            dist.isend(tensor, 1)
        works.works[-1].wait()

    for step in range(2):
        rank.run_step(step, work, phase=PHASE_CODE[Phase.OTHER])
        assert not rank.collective_watch.exchanges
    undo()
    for record in rank.finish():
        done = record.operations
        assert done is not None and done.on_device
        assert [OPERATION_KINDS[kind] for kind, *_ in done.order] == [
            "receive", "forward", "backward", "receive", "send",
        ]  # fmt: skip
        assert [peer for *_, peer, _, _ in done.order] == [1, -1, -1, 1, 1]
        assert done.waited_ns[0] == pytest.approx(TRANSFER_NS, rel=0.05)
        assert done.waited_ns[3] > TRANSFER_NS and done.waited_ns[4] == 0  # three are behind each other on one stream
        assert [ns or 0 for ns in done.duration_ns[1:3]] == pytest.approx([KERNEL_NS] * 2, rel=0.05)


def test_of_an_exchange_that_nobody_waits_for_nothing_is_kept(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handle(dist.Work):
        """Is over at once."""

        def block(self) -> bool:
            return True

    monkeypatch.setattr(dist.ProcessGroup, "send", lambda group, tensors, *where: Handle())
    undo, watch = watch_exchanges(rank.collective_watch, lambda: None), rank.collective_watch

    def work() -> None:
        handles = [dist.isend(torch.ones(4), 1) for _ in range(3)]
        assert len(watch.exchanges) == 3
        del handles[1:]
        assert len(watch.exchanges) == 1
        handles.pop().wait()

    rank.run_step(0, work, phase=PHASE_CODE[Phase.OTHER])
    undo()
    assert not watch.exchanges
