"""Gradient synchronisation under DistributedDataParallel: bytes, intervals, and the exposed part.

DDP calls its communication hook for a bucket when the bucket's gradients are ready. With the last bucket all gradient
compute is done, so that from there to the return of ``backward()`` the rank only waits for gradients: the exposed part.
The hook does what DDP does without one: it multiplies by 1 / ranks and sums, in that order, so losses stay the same to
the last bit.
"""
# Without postponed annotations: DDP inspects those of the hook, and wants the types themselves.

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from distprof.record.recorder import Recorder
from distprof.run import PHASE_CODE, CollectiveKind, Phase

_ALL_REDUCE = PHASE_CODE[Phase.ALL_REDUCE]


def watch_ddp(model: DistributedDataParallel, recorder: Recorder) -> tuple[str, ...]:
    """Registers the hook on a DDP model, before its first backward.

    Returns:
        Notes on what cannot be measured: a model has room for one hook, and a user's own comes first.
    """
    if getattr(model, "_comm_hooks", None):
        return ("a communication hook was registered before distprof's: all_reduce is not told from backward",)
    group = model.process_group
    hook = _make_hook(recorder, group, host_sees_end=model.device_type == "cpu")
    model.register_comm_hook(None, hook)
    return ()


def _make_hook(recorder: Recorder, group: Any, *, host_sees_end: bool) -> Callable[..., Any]:
    scale = 1.0 / dist.get_world_size(group)

    def distprof_hook(
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        ticket = recorder.begin_collective(CollectiveKind.ALL_REDUCE, buffer.nbytes)  # ready, as DDP counts it too
        buffer.mul_(scale)
        work = dist.all_reduce(buffer, group=group, async_op=True)
        assert work is not None
        if bucket.is_last():
            recorder.mark(_ALL_REDUCE)

        def finish(future: torch.futures.Future[Any]) -> torch.Tensor:
            if host_sees_end:  # on a GPU the future is done when the work is queued, which says nothing
                recorder.end_collective(ticket)
            result: torch.Tensor = future.value()[0]
            return result

        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(finish)
        return reduced

    return distprof_hook
