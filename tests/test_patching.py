"""Functions of torch that are about to be wrapped: what distprof reads of them is where it was."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from distprof.observe.finder import Finder
from distprof.patching import Misfit, leave_out_of_warnings, require_fit
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.step.recorder import Recorder
from tests.observe.told import Told

READS = {0: "tensor", 2: "group"}


def known(tensor: Any, op: Any = None, group: Any = None) -> None: ...
def longer(tensor: Any, op: Any = None, group: Any = None, *, more: Any = None) -> None: ...
def shifted(tensor: Any, more: Any, op: Any = None, group: Any = None) -> None: ...
def renamed(tensor: Any, op: Any = None, process_group: Any = None) -> None: ...
def shorter(tensor: Any) -> None: ...
def passing_on(*args: Any, **options: Any) -> None: ...


def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return watched


@pytest.mark.parametrize("function", [known, longer, passing_on, len, dict.get, wrap(known)])
def test_what_takes_the_same_arguments_or_does_not_tell_fits(function: Callable[..., Any]) -> None:
    reads = READS if function not in (len, dict.get) else {}
    assert require_fit(SimpleNamespace(call=function), "call", reads) is function


@pytest.mark.parametrize("function", [shifted, renamed, shorter, wrap(shifted)])
def test_fault_42_an_argument_elsewhere_does_not_fit(function: Callable[..., Any]) -> None:
    with pytest.raises(Misfit, match=r"^Place\.call of this torch takes no `group` as its argument 3$"):
        require_fit(type("Place", (), {"call": function}), "call", READS)


def test_fault_42_what_is_missing_does_not_fit() -> None:
    with pytest.raises(Misfit, match=r"^this torch has no torch\.distributed\.all_think$"):
        require_fit(dist, "all_think")


def watch(recorder: Recorder) -> tuple[list[str], Callable[[], None]]:
    notes: list[str] = []
    return notes, watch_collectives(CollectiveWatch(recorder, notes.append))


def test_nothing_of_this_torch_is_left_out() -> None:
    notes, undo = watch(Recorder())
    undo()
    finder = Finder(told := Told())
    finder.begin()
    finder.undo()
    assert notes == told.notes == []


def test_fault_42_a_collective_that_differs_is_left_alone_and_the_others_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_reduce(tensor: Any, op: Any = None, timeout: Any = None, group: Any = None, async_op: bool = False) -> None:
        return None

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "broadcast", lambda tensor, src=0, group=None, async_op=False: None)
    recorder = Recorder()
    notes, undo = watch(recorder)
    assert dist.all_reduce is all_reduce
    recorder.begin_step(0, warmup=False)
    dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.ones(2), 0)
    recorder.end_step()
    undo()
    (record,) = recorder.drain()
    assert [item.size_bytes for item in record.collectives or []] == [8]
    (note,) = notes
    assert note == (
        "all_reduce is not recorded: torch.distributed.all_reduce of this torch takes no `group` as its argument 3"
    )


def test_fault_42_a_function_that_differs_is_not_looked_at_and_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd, "grad", lambda outputs, weights, inputs: None)
    monkeypatch.delattr(torch.utils.data.dataloader, "_BaseDataLoaderIter")
    finder = Finder(told := Told())
    finder.begin()
    try:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    finally:
        finder.finish()
        finder.undo()
    assert told.text == "begin forward / backward / optimizer / end"
    grad, batches = told.notes
    assert grad == (
        "backward is not recognised everywhere: torch.autograd.grad of this torch takes no `inputs` as its argument 2"
    )
    assert batches == (
        "getting batches is not recognised everywhere: this torch has no torch.utils.data.dataloader.__next__"
    )


def locate_warnings(script: Callable[[], object]) -> list[int]:
    """The lines that warnings of a function are said to come from, counted from that of its ``def``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        script()
    assert {each.filename for each in caught} == {__file__}
    return [each.lineno - script.__code__.co_firstlineno for each in caught]


def warn() -> str:
    warnings.warn("of torch, about its caller", stacklevel=2)
    return "done"


def test_a_warning_is_about_the_scripts_line_through_any_number_of_wrappers() -> None:
    once, twice = wrap(warn), wrap(wrap(warn))

    def script() -> None:
        warn()
        once()
        assert twice() == "done"

    assert locate_warnings(script) != [1, 2, 3]
    inner: Any = getattr(twice, "__wrapped__", None)
    leave_out_of_warnings(once, twice, inner)
    leave_out_of_warnings(once)
    assert locate_warnings(script) == [1, 2, 3]
    assert once.__code__ is twice.__code__  # the processor's caches hold it once


class Warns(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        warnings.warn("about the caller's caller: between them are torch's two", stacklevel=4)
        return values


def test_torchs_warnings_are_about_the_scripts_lines_while_it_is_watched() -> None:
    collective_watch, model = CollectiveWatch(Recorder()), Warns()
    reduce = collective_watch.surround(warn, lambda call, args, options: call(*args, **options), lambda: True)

    def script() -> None:
        nn.parallel.DistributedDataParallel(nn.Linear(1, 1), check_reduction=True)
        torch.autograd.backward(torch.ones(1, requires_grad=True), grad_variables=torch.ones(1))
        torch.nn.utils.clip_grad_norm_((each for each in ()), 1.0)
        model(torch.ones(1))
        reduce()

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    plain, finder = locate_warnings(script), Finder(Told())
    finder.begin()
    try:
        assert locate_warnings(script) == plain and {4, 5} <= set(plain)  # which others there are is the release's
    finally:
        finder.undo()
        dist.destroy_process_group()
