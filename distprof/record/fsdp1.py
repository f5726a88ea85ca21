"""Parameter gathering and gradient scattering under FSDP1: which collectives are issued for them.

Where the host blocks in them (gloo), the call itself is the exposed part and is a segment of its own. Where a stream
waits instead (NCCL), the wait stays in forward or backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed import fsdp

from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.collective_watch import CollectiveWatch

_GATHERS = ("_all_gather_flat_param",)
_REDUCTIONS = ("_reduce_grad", "_reduce_grad_no_shard")


def watch_fsdp1(collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Tells what FSDP1 issues from other collectives, from now on; does nothing in a torch that has no such methods.

    Returns:
        A function that undoes it.
    """
    undo = [
        _mark(getattr(getattr(fsdp, "_flat_param", None), "FlatParamHandle", None), _GATHERS, Phase.ALL_GATHER,
              collective_watch),
        _mark(getattr(fsdp, "_runtime_utils", None), _REDUCTIONS, Phase.ALL_REDUCE, collective_watch),
    ]  # fmt: skip

    def restore() -> None:
        for step in undo:
            step()

    return restore


def _mark(place: Any, names: tuple[str, ...], phase: Phase, collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Has blocking collectives that these functions issue count as a phase."""
    replaced = [(name, original) for name in names if (original := getattr(place, name, None)) is not None]
    for name, original in replaced:
        setattr(place, name, _wrap(original, PHASE_CODE[phase], collective_watch))
    ours = [getattr(place, name) for name, _ in replaced]

    def restore() -> None:
        for (name, original), watched in zip(replaced, ours, strict=True):
            if getattr(place, name) is watched:  # otherwise someone has wrapped ours
                setattr(place, name, original)

    return restore


def _wrap(original: Callable[..., Any], code: int, collective_watch: CollectiveWatch) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched(*args: Any, **options: Any) -> Any:
        before, collective_watch.sharding = collective_watch.sharding, code
        try:
            return original(*args, **options)
        finally:
            collective_watch.sharding = before

    return watched
