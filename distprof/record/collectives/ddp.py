"""Gradient synchronisation under DistributedDataParallel: bytes, intervals, and the exposed part.

After the last bucket all gradients of the model are computed, so from there until ``backward()`` returns the rank only
waits: the exposed part. No bucket is known to be the last when it is issued, so the wait is discarded when another one
follows. On the host the wait begins when the backward has computed all that it computes, such as the gradients of the
model's input: autograd then calls back what its graph's hooks have queued, in their order, and DDP, which waits there,
queues that with the last bucket.
"""
# No postponed annotations: DDP inspects those of the hook and needs the types themselves.

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from distprof.compiling import skip_compile
from distprof.facts.run import PHASE_CODE, CollectiveKind, Phase
from distprof.patching import leave_out_of_warnings, replace, require_fit
from distprof.record.collectives.collective_watch import Bucket, CollectiveWatch
from distprof.record.step.collective_log import AWAITED, ON_DEVICE, sees_ends
from distprof.record.step.recorder import KIND_CODE, Recorder
from distprof.record.step.timeline import OTHER

_ALL_REDUCE, _KIND = PHASE_CODE[Phase.ALL_REDUCE], KIND_CODE[CollectiveKind.ALL_REDUCE]
_STRIDED = torch.strided
_ENGINE: Any = torch.autograd.Variable._execution_engine
_HIDDEN = (
    "a communication hook was registered before recording began: waits are known only for what the hook itself issues "
    "through torch.distributed"
)
_BUILT_IN = "a built-in communication hook of DDP is registered: all_reduce is counted as backward"
_PASSED_ON = ("allgather", "allreduce_coalesced", "alltoall_base", "barrier", "broadcast", "reduce_scatter")
"""What the reducer might have its group do, besides `allreduce`."""


class _Reductions:
    """The buckets of one model."""

    def __init__(self, model: DistributedDataParallel, collective_watch: CollectiveWatch) -> None:
        self._group = model.process_group
        self.around: _WatchedGroup | None = None
        """The group around the model's. A built-in hook may keep it, so it must live as long as the model. None: a hook
        of the user's takes its place."""
        self.on_device = collective_watch.ends_on_device(self._group, torch.device(model.device_type))
        self.attach_to(collective_watch)

    def attach_to(self, collective_watch: CollectiveWatch) -> None:
        """Uses another recorder from now on."""
        self.collective_watch, self._code = collective_watch, -1
        self.recorder, self.timeline = collective_watch.recorder, collective_watch.recorder.timeline
        self.step: int | None = None
        self.number = 0
        """Of the newest bucket: its step, and which one it is in it."""
        self.queued: int | None = None
        """The step in whose backward autograd is to call back. None: it has, or is not asked to."""
        self.follows, self.flags, self.code = True, ON_DEVICE if self.on_device else AWAITED, -1
        """Whether the ends of this step's buckets are seen, or on a device may be; and as for `begin_bucket`."""

    def begin(self, buffer: torch.Tensor) -> Bucket:
        """A bucket is ready."""
        collective_watch = self.collective_watch
        collective_watch.recorder.discard_mark()  # the bucket before was not the last, or was another model's
        return Bucket(
            size_bytes=_count_bytes(buffer), code=self._look_up_code(),
            asynchronous=not collective_watch.in_phase,  # otherwise the end of backward is not known
            on_device=self.on_device,
        )  # fmt: skip

    def wait(self, ready: Bucket) -> None:
        """The bucket is issued, and the rank waits for it from now on unless another one follows."""
        ticket = self.collective_watch.issue_bucket(ready)
        if not ready.asynchronous:
            self.collective_watch.recorder.mark(_ALL_REDUCE, ticket)

    def begin_step(self) -> None:
        """The bucket that is ready now is the first one of its step."""
        step = self.recorder.step
        sees = sees_ends(step, self.number)
        self.follows, self.flags = sees or self.on_device, ON_DEVICE if self.on_device else AWAITED * sees
        self.step, self.number, self.code = step, 0, self._look_up_code()

    def call_back(self) -> None:
        """Has autograd say when the backward that runs has nothing left to compute."""
        self.queued = self.recorder.step
        with contextlib.suppress(RuntimeError):  # none runs: a rank whose data has ended takes part in others' (join)
            _ENGINE.queue_callback(self._end_computing)

    def _end_computing(self) -> None:
        self.queued = None
        self.collective_watch.run(self.recorder.begin_tail_late)

    def follow(self, ticket: int, work: Any, recorder: Recorder) -> None:
        """Records when the reduction ends, by torch's handle of it."""
        # On the host the future is done when the data is there. On a device it is done as soon as the work is queued;
        # what follows it then runs in a stream that waits for the work.
        if not self.on_device:
            if ticket >= 0:
                work.get_future().add_done_callback(functools.partial(self.end, ticket))
        elif recorder.on_device.times_collectives and not recorder.on_device.captures():
            recorder.on_device.follow(work, functools.partial(self.end, ticket))

    def end(self, ticket: int | None, future: Any = None) -> None:
        """The bucket has been reduced: on the host now, on a device in a stream that waits for it. On any thread."""
        collective_watch, recorder = self.collective_watch, self.collective_watch.recorder
        if ticket is None or not collective_watch.on:
            return
        try:
            recorder.end_on_device(ticket) if self.on_device else recorder.end_collective(ticket)
        except Exception as error:  # flat: called on a thread of torch's for every bucket, holding Python's lock
            collective_watch.fail(error)

    def _look_up_code(self) -> int:
        if self._code < 0:  # finding the name of a group takes long
            self._code = self.collective_watch.look_up_code(self._group)
        return self._code


class _WatchedGroup(dist.ProcessGroup):
    """A process group that records what DDP's reducer has reduced by the one inside it, to which it passes all on.

    The reducer issues the all-reduce of a bucket, when the bucket's gradients are ready, through the group that it was
    given. So what is computed is DDP's own, unlike with a communication hook, which would replace it.
    """

    def __init__(self, group: Any, reductions: _Reductions) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._group, self._reductions = group, reductions

    def getBackendName(self) -> str:  # noqa: N802 torch's name for it
        name: str = self._group.name()
        return name

    def allreduce(self, tensors: list[torch.Tensor], *options: Any) -> Any:  # type: ignore[override]
        # Flat, because next to a backward each call and each object costs a multiple of what it does.
        reductions, buffer = self._reductions, tensors[0]
        recorder = reductions.recorder
        # With find_unused_parameters the reducer also sums whole numbers: which parameters were used. No gradients.
        if not (reductions.collective_watch.on and (buffer.is_floating_point() or buffer.is_complex())):
            return self._group.allreduce(tensors, *options)
        try:
            if recorder.step != reductions.step:
                reductions.begin_step()
            reductions.number += 1
            size_bytes = buffer.nbytes if buffer.layout is _STRIDED else _count_bytes(buffer)
            ticket = recorder.begin_bucket(_KIND, size_bytes, reductions.code, reductions.flags)
        except Exception as error:  # flat: see above
            reductions.collective_watch.fail(error)
            return self._group.allreduce(tensors, *options)
        work = self._group.allreduce(tensors, *options)
        try:
            # Outside of all phases the end of backward is not known.
            if recorder.recording and reductions.timeline.phase != OTHER:
                recorder.mark_tail(ticket)  # the rank waits for it from now on unless another one follows
                if reductions.queued != recorder.step and not reductions.on_device:
                    reductions.call_back()
            if reductions.follows:
                reductions.follow(ticket, work, recorder)
        except Exception as error:  # flat: see above
            reductions.collective_watch.fail(error)
        return work


def _pass_on(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(self._group, name)(*args)  # all have the same code, which is skipped below


for _name in _PASSED_ON:
    setattr(_WatchedGroup, _name, _pass_on(_name))
# The reducer calls these from C++, also while a compiled model or step runs.
for _name in ("allreduce", "getBackendName", "broadcast"):
    skip_compile(getattr(_WatchedGroup, _name), wholly=True)
for _called in (_Reductions.end, _Reductions._end_computing):
    skip_compile(_called, wholly=True)


_reductions: weakref.WeakKeyDictionary[DistributedDataParallel, _Reductions] = weakref.WeakKeyDictionary()
"""By model that is watched, or was."""


def watch_ddp(model: DistributedDataParallel, collective_watch: CollectiveWatch, note: Callable[[str], None]) -> None:
    """Sees a DDP model's all-reduces from now on, until the watch is undone.

    Args:
        model: Not in its backward.
        collective_watch: Of the recorder to use.
        note: Receives what cannot be measured.
    """
    reductions = _reductions.get(model)
    if reductions is not None:
        reductions.attach_to(collective_watch)
    elif hooks := getattr(model, "_comm_hooks", None):
        # Registered before, so that it is left alone. What it issues is seen: the exposed part begins with the last
        # collective that it issues in a backward.
        note(_HIDDEN)
        collective_watch.hidden_hooks |= {code for hook, _ in hooks if (code := _unwrap_code(hook)) is not None}
    elif _has_builtin_hook(model):
        note(_BUILT_IN)
    elif getattr(model, "reducer", None) is not None:
        with collective_watch.leave_out("DDP's reductions, which count as backward, are"):
            require_fit(model.reducer, "_update_process_group")
            reductions = _Reductions(model, collective_watch)
            reductions.around = _WatchedGroup(model.process_group, reductions)
            _reductions[model] = reductions
    if reductions is not None and reductions.around is not None:
        choose = functools.partial(_choose_group, weakref.ref(model))
        # In a step of which nothing is recorded, DDP uses its own group: the way through one in Python costs most.
        collective_watch.undo += [functools.partial(choose, True), collective_watch.tell_aside(choose)]


def _choose_group(model: weakref.ref[DistributedDataParallel], original: bool) -> None:
    """Has a model, unless it is gone, reduce through its own process group, or through the one around it."""
    watched = model()
    if watched is not None:
        around = None if original else _reductions[watched].around
        watched.reducer._update_process_group(watched.process_group if around is None else around)


def watch_hooks(collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Makes hooks that users register on DDP models from now on run inside ours.

    Returns:
        A function that undoes it; registered hooks stay, and work.
    """
    original = require_fit(DistributedDataParallel, "register_comm_hook", {1: "state", 2: "hook"})
    require_fit(DistributedDataParallel, "_check_comm_hook", {1: "hook"})

    @functools.wraps(original)
    def register_comm_hook(
        self: DistributedDataParallel, state: object, hook: Callable[..., Any], *args: Any, **options: Any
    ) -> None:
        self._check_comm_hook(hook)  # type: ignore[no-untyped-call]  # ours would pass where the user's does not
        shown = list(getattr(self, "_comm_hooks", ()))
        reductions = _reductions.get(self) or collective_watch.run(_Reductions, self, collective_watch)
        if reductions is None:
            original(self, state, hook, *args, **options)
            return
        original(self, state, _surround(hook, reductions), *args, **options)
        _reductions[self] = reductions
        with collective_watch.leave_out("the name of a communication hook is"):
            self._comm_hooks[:] = [*shown, (hook, state)]  # a saved model holds what its user registered
            if self.logger is not None:
                self.logger._set_comm_hook_name(hook.__qualname__)

    leave_out_of_warnings(register_comm_hook)
    return replace([DistributedDataParallel], "register_comm_hook", register_comm_hook)


def _surround(hook: Callable[..., Any], reductions: _Reductions) -> Callable[..., Any]:
    """A user's hook, with what it reduces recorded. Until it issues something, its time is the rank's own."""

    def distprof_hook(
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        collective_watch = reductions.collective_watch
        ready = collective_watch.run(reductions.begin, bucket.buffer())
        if ready is None:
            reduced: torch.futures.Future[torch.Tensor] = hook(state, bucket)
            return reduced
        collective_watch.bucket, collective_watch.synchronising = ready, True
        try:
            reduced = hook(state, bucket)
        finally:
            collective_watch.bucket, collective_watch.synchronising = None, False
        collective_watch.run(reductions.wait, ready)
        if reductions.on_device and collective_watch.recorder.on_device.captures():
            return reduced

        def finish(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            reductions.end(ready.ticket)
            return future.value()

        return reduced.then(finish)

    skip_compile(distprof_hook)  # the user's own is compiled where it would be without this one
    return distprof_hook


def _count_bytes(buffer: torch.Tensor) -> int:
    """Bytes of the gradients of a bucket, which may be sparse."""
    if buffer.layout == torch.strided:
        return buffer.nbytes
    return buffer._values().nbytes + buffer._indices().nbytes


def _unwrap_code(hook: Any) -> CodeType | None:
    """What runs when a hook is called; None: it is not written in Python."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    function = hook if inspect.isroutine(hook) else type(hook).__call__
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _has_builtin_hook(model: DistributedDataParallel) -> bool:
    read: Callable[[], dict[str, Any]] | None = getattr(model, "_get_ddp_logging_data", None)
    return bool(read is not None and read().get("comm_hook"))
