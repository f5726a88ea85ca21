"""Gradient synchronisation under DistributedDataParallel: bytes, intervals, and the exposed part.

DDP calls its communication hook for a bucket when the bucket's gradients are ready. After the last bucket all gradients
of the model are computed, so from there until ``backward()`` returns the rank only waits: the exposed part. The hook
does what DDP does without one: it multiplies by 1 / ranks and sums, in that order, so losses stay bit-identical.

A model takes only one hook. Ours calls the user's hook, whether that is registered before or after `watch_ddp`; until
that issues something, its time is the rank's own. A hook registered before the profiler started is left alone. What it
issues is seen, so the exposed part begins with the last collective that it issues in a backward.
"""
# No postponed annotations: DDP inspects those of the hook and needs the types themselves.

import functools
import inspect
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.collective_watch import Bucket, CollectiveWatch

_ALL_REDUCE = PHASE_CODE[Phase.ALL_REDUCE]
_HIDDEN = (
    "a communication hook was registered before distprof started: waits are known only for what the hook itself issues "
    "through torch.distributed"
)


class _Hook:
    """What distprof registered on one model, and the user's own inside it."""

    def __init__(self, collective_watch: CollectiveWatch) -> None:
        self.collective_watch = collective_watch
        """Of the profiler that watches the model now."""
        self.users: tuple[Callable[..., Any], object] | None = None
        """The user's hook and its state. None: reduce as DDP does."""
        self._code, self._known_to = -1, collective_watch

    def find_code(self, group: Any) -> int:
        """The code of the model's process group; finding its name takes long."""
        if self._code < 0 or self._known_to is not self.collective_watch:
            self._code, self._known_to = self.collective_watch.find_code(group), self.collective_watch
        return self._code


_register_comm_hook = DistributedDataParallel.register_comm_hook
_hooks: weakref.WeakKeyDictionary[DistributedDataParallel, _Hook] = weakref.WeakKeyDictionary()


def watch_ddp(model: DistributedDataParallel, collective_watch: CollectiveWatch, note: Callable[[str], None]) -> None:
    """Registers the hook on a DDP model before the next step, so that a user's own can still be registered until then.

    Args:
        model: Before its first backward.
        collective_watch: Of the recorder to use.
        note: Receives what cannot be measured.
    """

    def register() -> None:
        if model in _hooks:
            _hooks[model].collective_watch = collective_watch
        elif hooks := getattr(model, "_comm_hooks", None):
            note(_HIDDEN)
            collective_watch.hidden_hooks |= {code for hook, _ in hooks if (code := _find_code(hook)) is not None}
        elif _has_builtin_hook(model):
            note("a built-in communication hook of DDP is registered: all_reduce is counted as backward")
        else:
            _register(model, collective_watch)

    collective_watch.recorder.at_next_step(register)


def watch_hooks(collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Makes hooks that users register on DDP models from now on run inside ours.

    Returns:
        A function that undoes it; registered hooks stay, and work.
    """
    original = DistributedDataParallel.register_comm_hook

    @functools.wraps(original)
    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Callable[..., Any]) -> None:
        hold = _hooks.get(self)
        if hold is not None and hold.users is not None:
            original(self, state, hook)  # a second hook: DDP raises its own error
            return
        self._check_comm_hook(hook)  # type: ignore[no-untyped-call]
        if hold is None:
            try:
                hold = _register(self, collective_watch)
            except Exception as error:
                collective_watch.give_up(error)
                original(self, state, hook)
                return
        hold.users = (hook, state)
        if self.logger is not None:
            self.logger._set_comm_hook_name(hook.__qualname__)
        self._comm_hooks.append((hook, state))

    def restore() -> None:
        if DistributedDataParallel.register_comm_hook is register_comm_hook:
            DistributedDataParallel.register_comm_hook = original  # type: ignore[method-assign]

    DistributedDataParallel.register_comm_hook = register_comm_hook  # type: ignore[method-assign]
    return restore


def _find_code(hook: Any) -> CodeType | None:
    """What runs when a hook is called; None: it is not written in Python."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    function = hook if inspect.isroutine(hook) else type(hook).__call__
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _has_builtin_hook(model: DistributedDataParallel) -> bool:
    read: Callable[[], dict[str, Any]] | None = getattr(model, "_get_ddp_logging_data", None)
    return bool(read is not None and read().get("comm_hook"))


def _register(model: DistributedDataParallel, collective_watch: CollectiveWatch) -> _Hook:
    hold = _Hook(collective_watch)
    _register_comm_hook(model, None, _make_hook(model, hold))
    model._comm_hooks.pop()  # a saved model must hold only what its user registered
    _hooks[model] = hold
    return hold


def _make_hook(model: DistributedDataParallel, hold: _Hook) -> Callable[..., Any]:
    group = model.process_group
    scale = 1.0 / dist.get_world_size(group)
    # Where a collective ends on the device, its future is done as soon as the work is queued.
    on_device = hold.collective_watch.ends_on_device(group, torch.device(model.device_type))

    def issue(ready: Bucket | None) -> int:
        """Records a bucket; returns its ticket, -1 if there is none."""
        collective_watch = hold.collective_watch
        if ready is None or collective_watch.off:
            return -1
        try:
            return collective_watch.issue_bucket(ready)
        except Exception as error:
            collective_watch.give_up(error)
            return -1

    def end(ticket: int) -> None:
        collective_watch = hold.collective_watch
        if not collective_watch.off:
            try:
                recorder = collective_watch.recorder
                recorder.end_on_device(ticket) if on_device else recorder.end_collective(ticket)
            except Exception as error:
                collective_watch.give_up(error)

    def reduce_as_ddp_does(
        bucket: Any, buffer: torch.Tensor, ready: Bucket | None
    ) -> torch.futures.Future[torch.Tensor]:
        if not on_device:
            issue(ready)  # DDP's own account of a bucket begins here too
        buffer.mul_(scale)
        ticket = issue(ready)
        work = group.allreduce([torch.view_as_real(buffer) if buffer.is_complex() else buffer])  # as DDP calls it

        def finish(future: torch.futures.Future[Any]) -> torch.Tensor:
            end(ticket)  # on a device in a stream that waits for the collective, as torch runs callbacks there
            result: torch.Tensor = future.value()[0]
            return result

        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(finish)
        return reduced

    def reduce_as_user_does(
        bucket: Any, buffer: torch.Tensor, ready: Bucket | None
    ) -> torch.futures.Future[torch.Tensor]:
        assert hold.users is not None
        hook, state = hold.users
        collective_watch = hold.collective_watch
        collective_watch.bucket, collective_watch.synchronising = ready, ready is not None
        try:
            reduced: torch.futures.Future[torch.Tensor] = hook(state, bucket)
        finally:
            collective_watch.bucket, collective_watch.synchronising = None, False
        ticket = issue(ready)

        def finish(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            end(ticket)
            return future.value()

        return reduced.then(finish)

    def begin(buffer: torch.Tensor) -> Bucket:
        collective_watch = hold.collective_watch
        collective_watch.recorder.retract()  # another model finished before; it does not wait while this one computes
        return Bucket(
            size_bytes=buffer.nbytes, code=hold.find_code(group),
            asynchronous=not collective_watch.in_phase,  # otherwise the end of backward is not known
            on_device=on_device,
        )  # fmt: skip

    def distprof_hook(
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        collective_watch, buffer, ready = hold.collective_watch, bucket.buffer(), None
        if not collective_watch.off:
            try:
                ready = begin(buffer)
            except Exception as error:
                collective_watch.give_up(error)
        reduced = (reduce_as_ddp_does if hold.users is None else reduce_as_user_does)(bucket, buffer, ready)
        if ready is not None and not ready.asynchronous and bucket.is_last():
            ticket = issue(ready)
            if not collective_watch.off:
                try:
                    collective_watch.recorder.mark(_ALL_REDUCE, ticket)
                except Exception as error:
                    collective_watch.give_up(error)
        return reduced

    return distprof_hook
