"""Parameter gathering and gradient scattering under FSDP1: which collectives are issued for them.

Where the host blocks in them (gloo), the call itself is the exposed part and is a segment of its own. Where a stream
waits instead (NCCL), the wait stays in forward or backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed import fsdp

from distprof.compiling import leave_to_python
from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.signatures import require_fit

_GATHERS = ("_all_gather_flat_param",)
_REDUCTIONS = ("_reduce_grad", "_reduce_grad_no_shard")


def watch_fsdp1(collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Tells what FSDP1 issues from other collectives, from now on; does nothing in a torch without FSDP1.

    Returns:
        A function that undoes it.
    """
    flat = getattr(getattr(fsdp, "_flat_param", None), "FlatParamHandle", None)
    undo: list[Callable[[], None]] = []
    for place, name, phase in (
        *((flat, name, Phase.ALL_GATHER) for name in _GATHERS),
        *((getattr(fsdp, "_runtime_utils", None), name, Phase.ALL_REDUCE) for name in _REDUCTIONS),
    ):
        if place is not None:
            with collective_watch.leave_out(f"{phase} under FSDP1 is"):
                undo.append(_mark(place, name, phase, collective_watch))

    def restore() -> None:
        for step in undo:
            step()

    return restore


def _mark(place: Any, name: str, phase: Phase, collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Has blocking collectives that a function issues count as a phase."""
    original = require_fit(place, name)
    watched = _wrap(original, PHASE_CODE[phase], collective_watch)
    setattr(place, name, watched)

    def restore() -> None:
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

    leave_to_python(watched)
    return watched
