"""Parameter gathering and gradient scattering under FSDP2 (``fully_shard``): bytes, intervals, and the exposed part.

Two places can hold a rank up. Where the host blocks in a collective (gloo), the exposed part is the call itself, seen
through FSDP2's public communication objects. Where the compute stream waits (NCCL), it is the wait that FSDP2 puts on
that stream: after a gather in ``wait_for_unshard``, before a scatter and at the end of backward. Those methods are
private; where a torch release lacks one, that wait stays in forward or backward and a note says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from distprof.record.recorder import Recorder
from distprof.run import PHASE_CODE, CollectiveKind, Phase

_ALL_GATHER = PHASE_CODE[Phase.ALL_GATHER]
_ALL_REDUCE = PHASE_CODE[Phase.ALL_REDUCE]


def watch_fsdp(model: nn.Module, recorder: Recorder, *, stream_waits: bool) -> tuple[str, ...]:
    """Watches every FSDP2 unit of a model, before its first forward.

    Args:
        model: Holds modules that ``fully_shard`` was applied to.
        recorder: Gets the segments and collectives.
        stream_waits: Whether a compute stream runs apart from the host (CUDA), so that its waits are to be seen too.

    Returns:
        Notes on what cannot be measured with this release of torch.
    """
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    missing: set[str] = set()
    for unit in units:
        for group in _param_groups(unit):
            _wrap_communication(group, recorder, missing)
            if stream_waits:
                _wrap_waits(group, recorder, missing)
    return tuple(
        f"this torch has no FSDPParamGroup.{name}: that wait is counted as compute" for name in sorted(missing)
    )


def _param_groups(unit: FSDPModule) -> list[Any]:
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.11 a unit had one group
        one = getattr(state, "_fsdp_param_group", None)
        groups = [] if one is None else [one]
    return list(groups)


def _wrap_communication(group: Any, recorder: Recorder, missing: set[str]) -> None:
    for name, kind, code in (
        ("_all_gather_comm", CollectiveKind.ALL_GATHER, _ALL_GATHER),
        ("_reduce_scatter_comm", CollectiveKind.REDUCE_SCATTER, _ALL_REDUCE),
    ):
        if hasattr(group, name):
            setattr(group, name, _Watched(getattr(group, name), recorder, kind, code))
        else:
            missing.add(name)


class _Watched:
    """A communication object of FSDP2 that does what the one inside it does, and is seen doing it."""

    def __init__(self, inner: Any, recorder: Recorder, kind: CollectiveKind, code: int) -> None:
        self._inner, self._recorder, self._kind, self._code = inner, recorder, kind, code

    def allocate(self, *args: Any, **options: Any) -> torch.Tensor:
        """Memory for the collective, from the object inside."""
        buffer: torch.Tensor = self._inner.allocate(*args, **options)
        return buffer

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        recorder = self._recorder
        whole = output_tensor if self._kind is CollectiveKind.ALL_GATHER else input_tensor
        ticket = recorder.begin_collective(self._kind, whole.nbytes)
        recorder.mark(self._code)
        work = self._inner(output_tensor, input_tensor, *args, **options)
        recorder.resume()
        if work is None and not output_tensor.is_cuda:
            recorder.end_collective(ticket)
        return work


def _wrap_waits(group: Any, recorder: Recorder, missing: set[str]) -> None:
    """Puts stamps around the waits of the compute stream.

    Each wait is issued early, between two stamps; FSDP2's own, which follows at once, then finds it done.
    """

    def wait_for(code: int, events: list[Any]) -> None:
        pending = [event for event in events if event is not None]
        if pending:
            recorder.mark(code)
            for event in pending:
                group.device_handle.current_stream().wait_event(event)
            recorder.resume()

    def before_unshard() -> None:
        result = group._all_gather_result
        wait_for(_ALL_GATHER, [None if result is None else result.all_gather_event])

    def after_reshard() -> None:
        if group._training_state.name == "POST_BACKWARD" and group.reduce_grads:
            wait_for(_ALL_REDUCE, [state.event for state in _reclaimed(group.comm_ctx)])

    def before_reduce() -> None:
        wait_for(_ALL_REDUCE, [group._post_reduce_event])

    def before_finalize() -> None:
        last = getattr(group.comm_ctx, "_last_post_reduce_events", None)
        wait_for(_ALL_REDUCE, [group._post_reduce_event] if last is None else list(last.values()))

    for name, before, after in (
        ("wait_for_unshard", before_unshard, None),
        ("reshard", None, after_reshard),
        ("_wait_for_post_backward", before_reduce, None),
        ("finalize_backward", before_finalize, None),
    ):
        if hasattr(group, name):
            setattr(group, name, _surrounded(getattr(group, name), before, after))
        else:
            missing.add(name)


def _reclaimed(context: Any) -> list[Any]:
    """The earlier reduce-scatters that FSDP2 waits for before it starts another, to free their buffers."""
    states = getattr(context, "reduce_scatter_states", None)
    if states is None:  # before torch 2.13 there was one
        one = getattr(context, "reduce_scatter_state", None)
        return [] if one is None else [one]
    return list(states[: max(0, len(states) - context.reduce_scatter_max_input_buffers + 1)])


def _surrounded(
    method: Callable[..., Any], before: Callable[[], None] | None, after: Callable[[], None] | None
) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        if before is not None:
            before()
        result = method(*args, **options)
        if after is not None:
            after()
        return result

    return call
