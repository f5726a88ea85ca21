"""All collectives issued through ``torch.distributed``: kind, group, bytes, arrival, end, wait.

The module's functions are wrapped while a profiler is open, and restored afterwards. Nothing changes for the caller.
Collectives issued on other threads, in C++ or inside a compiled graph are not seen. An exchange between two
ranks is no collective, see `distprof.record.collectives.exchanges`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.facts.run import CollectiveKind
from distprof.patching import replace, require_fit
from distprof.record.collectives.coalescing import pick, watch_coalescing
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.ddp import watch_hooks
from distprof.record.collectives.functional import watch_functional
from distprof.unseen import unseen

_UNKNOWN = (-1, -2, True)
"""In place of what is known about an asynchronous collective."""


class _Form(NamedTuple):
    """How to read the arguments of a collective."""

    kind: CollectiveKind
    buffer: int
    """Position of the argument that is counted, a buffer or a list of buffers. -1: no data is moved."""
    buffer_name: str
    group: int
    """Position of the process group; ``async_op`` is the next argument."""
    shard: bool = False
    """The buffer is one rank's part of the whole."""
    flag: bool = True
    """There is an ``async_op``."""
    coalesces: bool = False
    """Several in a block of ``_coalescing_manager`` are issued as one, by any backend."""


_REDUCE, _SCATTER, _GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER
_EXCHANGE, _OTHER = CollectiveKind.ALL_TO_ALL, CollectiveKind.OTHER
_FORMS: dict[str, _Form] = {
    "all_reduce": _Form(_REDUCE, 0, "tensor", 2, coalesces=True),
    "all_gather": _Form(_GATHER, 0, "tensor_list", 2),
    "all_gather_single": _Form(_GATHER, 0, "output_tensor", 2, coalesces=True),
    "all_gather_into_tensor": _Form(_GATHER, 0, "output_tensor", 2, coalesces=True),
    "reduce_scatter": _Form(_SCATTER, 1, "input_list", 3),
    "reduce_scatter_single": _Form(_SCATTER, 1, "input", 3, coalesces=True),
    "reduce_scatter_tensor": _Form(_SCATTER, 1, "input", 3, coalesces=True),
    "broadcast": _Form(_OTHER, 0, "tensor", 2),
    "reduce": _Form(_OTHER, 0, "tensor", 3),
    "gather": _Form(_OTHER, 0, "tensor", 3, shard=True),
    "gather_single": _Form(_OTHER, 0, "tensor", 3, shard=True),
    "scatter": _Form(_OTHER, 0, "tensor", 3, shard=True),
    "all_to_all": _Form(_EXCHANGE, 0, "output_tensor_list", 2),
    "all_to_all_single": _Form(_EXCHANGE, 0, "output", 4),
    "barrier": _Form(_OTHER, -1, "", 0),
    "_broadcast_coalesced": _Form(_OTHER, 1, "tensors", 0, flag=False),  # DDP's buffers before forward, as of BatchNorm
}
_NEWER = {"all_gather_into_tensor": "all_gather_single", "reduce_scatter_tensor": "reduce_scatter_single"}
"""Since torch 2.13 the old names warn and call the new ones: wrapping those is enough, and keeps warnings in place."""
_ONLY_NEWER = {*_NEWER.values(), "gather_single"}


def watch_collectives(collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Records every collective that the training thread, or autograd for it, issues from now on.

    Call it on the training thread.

    Returns:
        A function that undoes it.
    """
    undo: list[Callable[[], None]] = []
    parts: list[tuple[str, Callable[[], Callable[[], None]]]] = [
        ("communication hooks are", partial(watch_hooks, collective_watch)),
        ("functional collectives are", partial(watch_functional, collective_watch)),
        ("waits for asynchronous collectives are", partial(_watch_waits, collective_watch)),
        ("blocks of coalesced collectives are", partial(watch_coalescing, collective_watch)),
        *((f"{name} is", partial(_watch_function, collective_watch, name)) for name in _FORMS if _is_current(name)),
    ]
    for what, start in parts:
        with collective_watch.leave_out(what):
            undo.append(start())
    collective_watch.stay_on_this_thread()
    collective_watch.recorder.at_next_step(collective_watch.stay_on_this_thread)

    def restore() -> None:
        for step in reversed(undo):
            step()

    return restore


def _is_current(name: str) -> bool:
    """Whether this torch should have a function that does not only pass on to another one."""
    return not hasattr(dist, _NEWER.get(name, "")) and (name not in _ONLY_NEWER or hasattr(dist, name))


def _watch_function(collective_watch: CollectiveWatch, name: str) -> Callable[[], None]:
    """Records the calls of a function of `torch.distributed` from now on; returns a function that undoes it.

    Raises:
        Misfit: This torch has another one.
    """
    form = _FORMS[name]
    reads = {form.group: "group", **({form.buffer: form.buffer_name} if form.buffer >= 0 else {})}
    flag = {form.group + 1: "async_op"} if form.flag else {}
    original = require_fit(dist, name, reads | flag)
    watched = collective_watch.surround(original, partial(_record, collective_watch, form), name=name)
    return replace([dist, distributed_c10d], name, watched)  # torch calls it through either module


def _record(
    collective_watch: CollectiveWatch,
    form: _Form,
    original: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """Makes one call, recorded."""
    recorder = collective_watch.recorder
    asynchronous = form.flag and bool(pick(args, options, form.group + 1, "async_op"))
    try:
        group = pick(args, options, form.group, "group")
        size_bytes, device = _measure(form, pick(args, options, form.buffer, form.buffer_name))
        code = collective_watch.look_up_code(group)
        on_device = device is not None and collective_watch.ends_on_device(group, device)
    except (AttributeError, TypeError):  # not a tensor, or not a group: torch raises its own error
        return original(*args, **options)
    if form.shard:
        size_bytes *= collective_watch.look_up_size(code)
    batch = collective_watch.batch
    if batch is not None and batch.collects(group, alone=form.coalesces):
        batch.add(form.kind, code, on_device, size_bytes)
        return original(*args, **options)
    # Inside a block of torch's own, the call only puts the collective into this list, and it is issued later.
    collected = bool(getattr(distributed_c10d._world, "pg_coalesce_state", None))
    held = not (asynchronous or collected)
    hidden = asynchronous and collective_watch.in_hidden_hook()
    if hidden:
        recorder.discard_mark()  # the hook's collective before was not the last: the rank went on computing
    waits = held and not (on_device and recorder.on_device.is_apart())
    ticket = collective_watch.issue(
        form.kind, size_bytes, code, asynchronous=not (held or hidden), on_device=on_device, apart=not waits
    )
    if collective_watch.synchronising or collective_watch.sharding >= 0:
        collective_watch.newest = ticket
        if form.kind is _SCATTER:
            collective_watch.newest_scatter = ticket
    phase = collective_watch.choose_phase(form.kind, size_bytes)
    if waits:
        recorder.wait(ticket) if phase < 0 else recorder.mark(phase, ticket)
    collective_watch.inside += 1
    try:
        result = original(*args, **options)
    finally:
        collective_watch.inside -= 1
        if waits:
            recorder.resume()
    if held and on_device:
        recorder.end_on_device(ticket)
    elif held:
        recorder.end_collective(ticket)
    elif asynchronous and isinstance(result, dist.Work):
        collective_watch.follow(result, ticket, phase, on_device=on_device)
        if hidden:
            collective_watch.reduce_hidden(ticket, result, on_device)
    return result


def _watch_waits(collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Records how long the caller waits for asynchronous collectives; returns a function that undoes it."""
    recorder, original = collective_watch.recorder, require_fit(dist.Work, "wait")

    def watch(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        work = args[0]
        ticket, code, on_device = collective_watch.works.pop(work, _UNKNOWN)
        if ticket < 0 and (recorder.recording or code == _UNKNOWN[1]):
            return call(*args, **options)  # not ours, or nothing is known about it in this step
        over = on_device or work.is_completed()  # then its end was not seen
        recorder.wait(ticket) if code < 0 else recorder.mark(code, ticket)
        try:
            result = call(*args, **options)
        finally:
            recorder.resume()
        if not over:
            recorder.end_collective(ticket)
        return result

    def is_ours() -> bool:
        return bool(collective_watch.works) and collective_watch.is_ours()

    watched = collective_watch.surround(original, watch, is_ours)
    collective_watch.wait = (watched, vars(dist.Work).get("wait", original))
    return replace([dist.Work], "wait", watched)


@unseen
def _measure(form: _Form, buffer: Any) -> tuple[int, torch.device | None]:
    """Bytes of a buffer or of a list of them, and where they lie."""
    if form.buffer < 0:
        return 0, None
    tensors = buffer if isinstance(buffer, (list, tuple)) else [buffer]
    return sum(tensor.nbytes for tensor in tensors), tensors[0].device
