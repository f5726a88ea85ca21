"""What is shared by all that is wrapped: whose faults reach a caller, and whether a collective ends on the host."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.step.recorder import Recorder
from tests.fakes import FakeClock

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(params=["gloo", "fake"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend "fake"
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


def test_gloo_ends_on_the_host_also_with_tensors_of_a_device(backend: str) -> None:
    watch = CollectiveWatch(Recorder())
    group = dist.new_group([0], backend="gloo")
    assert not watch.ends_on_device(None, CPU) and not watch.ends_on_device(group, CUDA)
    assert watch.ends_on_device(None, CUDA) == watch.ends_on_device(dist.group.WORLD, CUDA) == (backend != "gloo")
    assert not watch.ends_on_device(group.group_name, CUDA)


def test_the_host_sees_a_collective_of_gloo_end_and_how_long_it_blocks(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: clock.advance(700))
    recorder = Recorder(now_ns=clock)
    undo = watch_collectives(CollectiveWatch(recorder))
    tensor: Any = SimpleNamespace(nbytes=64, device=CUDA)
    recorder.begin_step(0, warmup=False)
    dist.all_reduce(tensor)
    recorder.end_step()
    undo()
    (record,) = recorder.drain()
    (seen,) = record.collectives or ()
    wanted = (clock.now, 700) if backend == "gloo" else (None, None)
    assert (seen.end_ns, seen.exposed_ns) == wanted


def test_threads_that_issue_collectives_beside_a_recorded_step_are_known(backend: str) -> None:
    recorder, threads = Recorder(), []
    watch = CollectiveWatch(recorder)
    undo = watch_collectives(watch)

    def reduce() -> None:
        threads.append(threading.get_ident())
        dist.all_reduce(torch.ones(1))

    def reduce_aside() -> None:
        thread = threading.Thread(target=reduce)
        thread.start()
        thread.join()

    reduce_aside()  # no step is open
    recorder.begin_step(0, warmup=False)
    reduce()
    assert not watch.threads_aside
    reduce_aside()
    recorder.end_step()
    undo()
    assert watch.threads_aside == {threads[-1]}


NOTE = "collectives are not recorded from step 0 on: LookupError: ours"


class Case:
    """A function that counts its calls, and a watch whose notes are kept."""

    def __init__(self, error: Exception | None = None) -> None:
        """The function raises the error, if there is one."""
        self.notes: list[str] = []
        self.calls, self.looks, self.error = 0, 0, error
        self.watch = CollectiveWatch(Recorder(), self.notes.append)

    def reduce(self, value: int) -> int:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return value + 1

    def surround(self, watch: Callable[..., Any]) -> Callable[..., Any]:
        def look(*given: Any) -> Any:
            self.looks += 1
            return watch(*given)

        return self.watch.surround(self.reduce, look, lambda: True)


def fail_before(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    raise LookupError("ours")


def fail_after(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    try:
        return call(*args, **options)
    finally:
        raise LookupError("ours")


@pytest.mark.parametrize("watch", [fail_before, fail_after])
def test_a_fault_of_ours_ends_the_watch_and_nothing_else(watch: Callable[..., Any]) -> None:
    case = Case()
    watched = case.surround(watch)
    assert [watched(1), watched(value=2)] == [2, 3]
    assert (case.calls, case.looks, case.notes, case.watch.on) == (2, 1, [NOTE], False)


@pytest.mark.parametrize("watch", [fail_after, lambda call, args, options: call(*args, **options)])
def test_an_error_of_the_collective_is_its_callers(watch: Callable[..., Any]) -> None:
    case = Case(RuntimeError("theirs"))
    with pytest.raises(RuntimeError, match="theirs") as raised:
        case.surround(watch)(1)
    assert raised.value is case.error and case.calls == 1


def test_a_fault_in_finding_out_whether_a_call_is_watched_does_not_reach_it() -> None:
    case = Case()

    def fail() -> bool:
        raise LookupError("ours")

    assert case.watch.surround(case.reduce, fail_before, fail)(1) == 2
    assert (case.calls, case.notes) == (1, [NOTE])
