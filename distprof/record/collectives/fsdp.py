"""Parameter gathering and gradient scattering under FSDP2 (``fully_shard``): bytes, intervals, and the exposed part.

A rank can wait in two places. If the host blocks in a collective (gloo), the exposed part is the call itself, seen
through FSDP2's public communication objects; older releases of torch have none, and what they issue for a unit is seen
like any other collective. If the compute stream waits (NCCL), it is the wait that FSDP2 puts on that stream: after a
gather in ``wait_for_unshard``, before a scatter, and at the end of backward. Those methods are private; if a torch
release lacks one, that wait stays in forward or backward and a note says so.

FSDP1, which torch no longer develops, is only distinguished from other wrappers: what it issues is recorded like any
other collective, in the phase in which it is issued.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from distprof.compiling import is_compiling, skip_compile
from distprof.facts.run import KINDS, PHASE_CODE, CollectiveKind, Phase
from distprof.patching import is_fsdp2, is_instance, leave_out_of_warnings
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.step.collective_log import ASYNCHRONOUS, ON_DEVICE
from distprof.record.step.recorder import KIND_CODE, Recorder
from distprof.unseen import count_bytes, is_mode_on

_ALL_GATHER = PHASE_CODE[Phase.ALL_GATHER]
_ALL_REDUCE = PHASE_CODE[Phase.ALL_REDUCE]
_KEPT_SCATTERS = 64
_LAST_WAITS = "_end_backward_iteration"


def is_fsdp1(module: nn.Module) -> bool:
    """Whether a module is FSDP1's wrapper."""
    return is_instance(module, "torch.distributed.fsdp", "FullyShardedDataParallel")


def watch_fsdp(model: nn.Module, collective_watch: CollectiveWatch, *, stream_waits: bool) -> tuple[str, ...]:
    """Watches every FSDP2 unit of a model, before its first forward.

    Args:
        model: Holds modules that ``fully_shard`` was applied to.
        collective_watch: Of the recorder that gets the segments and collectives.
        stream_waits: Whether there is a compute stream apart from the host (CUDA), whose waits are recorded too.

    Returns:
        Notes on what cannot be measured with this release of torch.
    """
    missing: set[str] = set()
    scatters: deque[int] = deque(maxlen=_KEPT_SCATTERS)
    for unit in filter(is_fsdp2, model.modules()):
        for group in list_groups(_get_state(unit)):
            watch_group(group, collective_watch, scatters, missing, stream_waits=stream_waits)
        if stream_waits:
            _watch_last_waits(_get_state(unit), collective_watch)
    return tuple(
        f"this torch has no FSDPParamGroup.{name}: that wait is counted as compute" for name in sorted(missing)
    )


def _get_state(unit: Any) -> Any:
    return unit._get_fsdp_state()


def list_groups(state: Any) -> list[Any]:
    """FSDP2's groups of parameters in the state of a unit, in any release of torch."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.11 a unit had one group
        one = getattr(state, "_fsdp_param_group", None)
        groups = [] if one is None else [one]
    return list(groups)


def watch_group(
    group: Any, collective_watch: CollectiveWatch, scatters: deque[int], missing: set[str], *, stream_waits: bool
) -> None:
    """Watches one group of parameters of a unit; see `watch_fsdp`.

    Args:
        group: As FSDP2 keeps it.
        collective_watch: Of the recorder.
        scatters: Receives the tickets of the model's newest reduce-scatters.
        missing: Receives the names of what the group lacks.
        stream_waits: Whether there is a compute stream apart from the host.
    """
    gather = _WatchedObject(collective_watch, CollectiveKind.ALL_GATHER)
    scatter = _WatchedObject(collective_watch, CollectiveKind.REDUCE_SCATTER, scatters)
    if not _watch_object(group, "_all_gather_comm", gather):
        _watch_gathering(group, gather, missing)
    watched = _watch_object(group, "_reduce_scatter_comm", scatter)
    reduced = _watch_synchronisation(group, collective_watch, missing, None if watched else scatters)
    if stream_waits:
        GroupWaits(group, collective_watch, gather.tickets, scatters, reduced).watch(missing)


def _watch_object(group: Any, name: str, watched: _WatchedObject) -> bool:
    """Watches a communication object; returns whether there is one."""
    if not hasattr(group, name):
        return False
    _replace(group, name, watched.wrap(getattr(group, name)), watched.collective_watch)
    return True


def _replace(group: Any, name: str, new: Any, collective_watch: CollectiveWatch) -> None:
    """Replaces an attribute of a group in the steps that are recorded, until the profiler is closed, unless somebody
    replaces it in between."""
    is_own, original = name in vars(group), vars(group).get(name)
    # The group keeps what is around its method, which would keep the model if it were kept here.
    held, kept = weakref.ref(group), f"_distprof_{name}_{id(new):x}"
    vars(group)[kept] = new

    def choose(aside: bool) -> None:
        attributes = {} if (there := held()) is None else vars(there)
        if kept not in attributes:
            return
        if aside and attributes.get(name) is attributes[kept]:
            setattr(there, name, original) if is_own else delattr(there, name)
        elif not aside and attributes.get(name) is original:
            setattr(there, name, attributes[kept])

    def put_back() -> None:
        choose(True)
        if (there := held()) is not None:
            delattr(there, kept)

    collective_watch.undo += [put_back, collective_watch.tell_aside(choose)]


class _WatchedObject:
    """Wraps a communication object of FSDP2 and records its collectives."""

    def __init__(
        self, collective_watch: CollectiveWatch, kind: CollectiveKind, tickets: deque[int] | None = None
    ) -> None:
        self.tickets: deque[int] = deque([-1], maxlen=1) if tickets is None else tickets
        """Tickets of its newest collectives."""
        self._group: Any = None  # of the last collective; what is known of it takes a call into torch to find out
        self._group_code, self._on_device, self._held = 0, False, False
        gathers = kind is CollectiveKind.ALL_GATHER
        self.collective_watch, self._counted = collective_watch, "output_tensor" if gathers else "input_tensor"
        self._kind, self._code = KIND_CODE[kind], _ALL_GATHER if gathers else _ALL_REDUCE

    def wrap(self, inner: Any) -> Callable[..., Any]:
        """What is called instead of the object, and allocates as it does. What fails in it never reaches the caller."""
        collective_watch, recorder = self.collective_watch, self.collective_watch.recorder
        arguments = collective_watch.make_part(f"{KINDS[self._kind]} under FSDP2 is counted as compute")
        counted, kind, phase, begin_held, end_held = (
            self._counted, self._kind, self._code, recorder.begin_held, recorder.end_held
        )  # fmt: skip

        def watched(*args: Any, **options: Any) -> Any:
            if not collective_watch.on or recorder.skipping or is_compiling():
                return inner(*args, **options)
            try:
                # What a host waits for needs no further call: each costs more than all that it does.
                if self._held and options.get("group") is self._group and not options.get("async_op"):
                    buffer = options[counted]
                    size_bytes = count_bytes(buffer) if is_mode_on() else buffer.nbytes
                    ticket = begin_held(kind, size_bytes, self._group_code, phase)
                    self.tickets.append(ticket)
                    collective_watch.newest = ticket
                else:
                    ticket = self._begin(args, options)
            except (KeyError, TypeError) as error:  # FSDP2 gives other arguments than it did
                arguments.fail(error)
                return inner(*args, **options)
            except Exception as error:  # flat: see above
                collective_watch.fail(error)
                return inner(*args, **options)
            work, collective_watch.inside = None, collective_watch.inside + 1
            try:
                work = inner(*args, **options)
            finally:
                collective_watch.inside -= 1
                try:
                    if work is None and self._held:
                        end_held(ticket)
                    else:
                        self._end(ticket, work)
                except Exception as error:  # flat: see above
                    collective_watch.fail(error)
            return work

        skip_compile(watched, wholly=True)
        # FSDP2 has the object allocate the tensor that it then gives to it.
        watched.allocate = getattr(inner, "allocate", None)  # type: ignore[attr-defined]
        return watched

    def _begin(self, args: tuple[Any, ...], options: dict[str, Any]) -> int:
        """What is called is about to be issued. Returns the ticket."""
        collective_watch, recorder = self.collective_watch, self.collective_watch.recorder
        given = options if self._counted in options and "group" in options else _name(*args, **options)
        buffer, group = given[self._counted], given["group"]
        if group is not self._group:
            self._group, self._group_code = group, collective_watch.look_up_code(group)
            self._on_device = collective_watch.ends_on_device(group, buffer.device)
            self._held = not self._on_device
        size_bytes = count_bytes(buffer)
        flags = ASYNCHRONOUS if options.get("async_op") else 0
        if self._on_device:  # this only gives work to another stream: nothing waits here
            ticket = recorder.log_collective(self._kind, size_bytes, self._group_code, flags | ON_DEVICE)
        elif flags:
            ticket = recorder.log_collective(self._kind, size_bytes, self._group_code, flags)
            recorder.mark(self._code, ticket)
        else:
            ticket = recorder.begin_held(self._kind, size_bytes, self._group_code, self._code)
        self.tickets.append(ticket)
        collective_watch.newest = ticket
        return ticket

    def _end(self, ticket: int, work: Any) -> None:
        """The object has returned, or failed, and the host has not waited for it."""
        collective_watch, recorder = self.collective_watch, self.collective_watch.recorder
        if not self._on_device:
            recorder.resume()
        if work is not None:
            collective_watch.follow(work, ticket, self._code, on_device=self._on_device)
        else:
            recorder.end_on_device(ticket)


def _name(
    output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, *args: Any, **options: Any
) -> dict[str, Any]:
    """What all releases of torch give to a communication object, by position or by name."""
    return {"output_tensor": output_tensor, "input_tensor": input_tensor, "group": group}


def _watch_gathering(group: Any, gather: _WatchedObject, missing: set[str]) -> None:
    """Counts what FSDP2 issues to gather a unit's parameters as that, where no communication object shows it."""
    if not hasattr(group, "unshard"):
        missing.add("unshard")
        return
    inner, collective_watch = group.unshard, gather.collective_watch

    @functools.wraps(inner)
    def unshard(*args: Any, **options: Any) -> Any:
        before = collective_watch.sharding, collective_watch.newest
        collective_watch.sharding, collective_watch.newest = _ALL_GATHER, -1
        try:
            return inner(*args, **options)
        finally:
            if collective_watch.newest >= 0:
                gather.tickets.append(collective_watch.newest)
            collective_watch.sharding, collective_watch.newest = before

    leave_out_of_warnings(unshard)
    _replace(group, "unshard", unshard, collective_watch)


def _watch_synchronisation(
    group: Any, collective_watch: CollectiveWatch, missing: set[str], scatters: deque[int] | None
) -> list[int]:
    """Counts what FSDP2 issues after a unit's backward as gradient synchronisation, including HSDP's all-reduce.

    Args:
        group: Of the unit's parameters.
        collective_watch: Of the recorder.
        missing: Receives the name of what the group lacks.
        scatters: Receives the tickets of reduce-scatters. None: their communication object is watched.

    Returns:
        A list that holds the ticket of the unit's last reduction.
    """
    reduced = [-1]
    if not hasattr(group, "post_backward"):
        missing.add("post_backward")
        return reduced
    inner = group.post_backward

    @functools.wraps(inner)
    def post_backward(*args: Any, **options: Any) -> Any:
        collective_watch.synchronising, collective_watch.newest, collective_watch.newest_scatter = True, -1, -1
        try:
            return inner(*args, **options)
        finally:
            collective_watch.synchronising = False
            reduced[0] = collective_watch.newest
            if scatters is not None and collective_watch.newest_scatter >= 0:
                scatters.append(collective_watch.newest_scatter)

    leave_out_of_warnings(post_backward)
    skip_compile(post_backward)
    _replace(group, "post_backward", post_backward, collective_watch)
    return reduced


class GroupWaits:
    """The waits of the compute stream for one group of parameters.

    Each wait is issued early, between two stamps; FSDP2's own, which follows immediately, then has nothing to wait for.
    """

    def __init__(
        self,
        group: Any,
        collective_watch: CollectiveWatch,
        gathers: deque[int],
        scatters: deque[int],
        reduced: list[int],
    ) -> None:
        """Args:
        group: As FSDP2 keeps it.
        collective_watch: Of the recorder.
        gathers: Tickets of the group's newest gathers.
        scatters: Tickets of the model's newest reduce-scatters.
        reduced: Holds the ticket of the group's last reduction.
        """
        self._group, self._collective_watch = group, collective_watch
        self._gathers, self._scatters, self._reduced = gathers, scatters, reduced

    def watch(self, missing: set[str]) -> None:
        """Records the waits from now on; ``missing`` receives the names of methods that the group lacks."""
        for name, before, after in (
            ("wait_for_unshard", self._before_unshard, None),
            ("reshard", None, self._after_reshard),
            ("_wait_for_post_backward", self._before_reduce, None),
            ("finalize_backward", self._before_finalize, None),
        ):
            if hasattr(self._group, name):
                _surround(self._group, name, before, after, self._collective_watch)
            else:
                missing.add(name)

    def _wait_for(self, code: int, events: list[Any], ticket: int) -> None:
        _wait_early(self._collective_watch.recorder, self._group.device_handle, code, events, ticket)

    def _before_unshard(self) -> None:
        # FSDP2 has the compute stream wait for the event of the gather that `unshard` has issued, if there is one.
        result = self._group._all_gather_result
        self._wait_for(_ALL_GATHER, [None if result is None else result.all_gather_event], self._gathers[-1])

    def _after_reshard(self) -> None:
        # What `post_backward` does next is to wait for earlier reduce-scatters, whose buffers it then frees.
        group = self._group
        if group._training_state.name == "POST_BACKWARD" and group.reduce_grads and _is_first_back(group):
            reclaimed, kept = _reclaim(group.comm_ctx)
            index = len(self._scatters) - kept - 1
            ticket = self._scatters[index] if index >= 0 else -1
            self._wait_for(_ALL_REDUCE, [state.event for state in reclaimed], ticket)

    def _before_reduce(self) -> None:
        # Under HSDP an all-reduce follows the reduce-scatter, and has an event of its own.
        kept = getattr(self._group, "_all_reduce_state", None)
        self._wait_for(
            _ALL_REDUCE, [self._group._post_reduce_event, getattr(kept, "event", None)], self._reduced[0]
        )  # fmt: skip

    def _before_finalize(self) -> None:
        # Newer releases keep the last events of all groups in the context that these share.
        last = getattr(self._group.comm_ctx, "_last_post_reduce_events", None)
        if last is None:
            self._wait_for(_ALL_REDUCE, [self._group._post_reduce_event], self._reduced[0])
        else:
            self._wait_for(_ALL_REDUCE, list(last.values()), self._collective_watch.newest)


def _watch_last_waits(state: Any, collective_watch: CollectiveWatch) -> None:
    """Records the waits for the last reductions of a backward, which since torch 2.15 the state of a unit makes for all
    groups before it finalizes them."""
    if not hasattr(state, _LAST_WAITS):
        return

    def before() -> None:
        context = state._comm_ctx
        events = list(context._last_post_reduce_events.values())
        _wait_early(collective_watch.recorder, context.device_handle, _ALL_REDUCE, events, collective_watch.newest)

    _surround(state, _LAST_WAITS, before, None, collective_watch)


def _wait_early(recorder: Recorder, device_handle: Any, code: int, events: list[Any], ticket: int) -> None:
    """Has the compute stream wait for events, recorded as a wait for a collective."""
    pending = [event for event in events if event is not None]
    if pending and not recorder.on_device.captures():
        stream = device_handle.current_stream()
        recorder.mark(code, ticket)
        for event in pending:
            stream.wait_event(event)
        recorder.resume()


def _is_first_back(group: Any) -> bool:
    """Whether this is the group of its unit whose backward comes first; since torch 2.13 only that one reclaims."""
    index = getattr(group, "_param_group_index", None)
    return index is None or bool(index == group._num_param_groups - 1)


def _reclaim(context: Any) -> tuple[list[Any], int]:
    """The earlier reduce-scatters whose buffers FSDP2 waits to free before another one, and how many it keeps."""
    states = getattr(context, "reduce_scatter_states", None)
    if states is None:  # before torch 2.13 there was one
        one = getattr(context, "reduce_scatter_state", None)
        return [] if one is None else [one], 0
    number = max(0, len(states) - context.reduce_scatter_max_input_buffers + 1)
    return list(states[:number]), len(states) - number


def _surround(
    place: Any,
    name: str,
    before: Callable[[], None] | None,
    after: Callable[[], None] | None,
    collective_watch: CollectiveWatch,
) -> None:
    """Has a method of FSDP2 do more, before or after what it does. What fails in it ends this wait's record only."""
    method = getattr(place, name)
    boundary = collective_watch.make_part(f"FSDP2's waits in {name} are counted as compute")

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        if before is not None and collective_watch.on:
            boundary.run(before)
        result = method(*args, **options)
        if after is not None and collective_watch.on:
            boundary.run(after)
        return result

    leave_out_of_warnings(call)
    skip_compile(call)
    _replace(place, name, call, collective_watch)
