"""The reductions that DTensors issue, such as the one inside ``clip_grad_norm_`` under FSDP2: bytes and count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed._functional_collectives as functional

from distprof.record.recorder import Recorder
from distprof.run import CollectiveKind


def watch_functional(recorder: Recorder) -> Callable[[], None]:
    """Counts functional all-reduces from now on; they stay in the phase that issues them.

    Their end is not seen: a functional collective ends where its result is first used.

    Returns:
        A function that puts everything back.
    """
    original = functional.all_reduce

    def all_reduce(tensor: Any, *args: Any, **options: Any) -> Any:
        recorder.begin_collective(CollectiveKind.ALL_REDUCE, tensor.nbytes)
        return original(tensor, *args, **options)

    def restore() -> None:
        functional.all_reduce = original

    functional.all_reduce = all_reduce  # type: ignore[assignment]
    return restore
