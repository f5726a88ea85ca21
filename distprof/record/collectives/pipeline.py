"""The stages of ``torch.distributed.pipelining``: when each computes which micro-batch.

All of its schedules (GPipe, 1F1B, interleaved, zero bubble) call three methods of a stage with the number
of the micro-batch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from distprof.compiling import is_compiling, skip_compile
from distprof.error_boundary import ErrorBoundary
from distprof.facts.micro_batches import OPERATION_CODE, UNKNOWN, OperationKind
from distprof.patching import Swap, after_import, require_fit, step_aside
from distprof.record.collectives.collective_watch import CollectiveWatch

_STAGES = "torch.distributed.pipelining.stage"
_CALLS = {
    "forward_one_chunk": (OperationKind.FORWARD, "fwd_chunk_id"),
    "backward_one_chunk": (OperationKind.BACKWARD, "bwd_chunk_id"),
    "backward_weight_one_chunk": (OperationKind.WEIGHT, "bwd_chunk_id"),
}


def watch_stages(collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Records what stages compute from now on, or from when the script imports them.

    Returns:
        A function that undoes it.
    """
    part = collective_watch.make_part("the micro-batches of pipelines are not recorded")
    undo: list[Callable[[], None]] = []

    def begin() -> None:
        with collective_watch.leave_out("the micro-batches of pipelines are"):
            base = require_fit(sys.modules[_STAGES], "_PipelineStageBase")
            fits = {name: require_fit(base, name, {1: number}) for name, (_, number) in _CALLS.items()}
            swaps = [Swap(base, name, _wrap(each, name, part, collective_watch)) for name, each in fits.items()]
            undo.extend(swap.undo for swap in swaps)
            undo.append(collective_watch.tell_aside(functools.partial(step_aside, swaps)))

    undo.append(after_import(_STAGES, begin))

    def restore() -> None:
        while undo:
            undo.pop()()

    return restore


def _wrap(
    original: Callable[..., Any], name: str, part: ErrorBoundary, collective_watch: CollectiveWatch
) -> Callable[..., Any]:
    kind, number = _CALLS[name]
    code, recorder = OPERATION_CODE[kind], collective_watch.recorder

    def begin(stage: Any, args: tuple[Any, ...], options: dict[str, Any]) -> int:
        # Without a backward it is an evaluation, whose micro-batches belong to no step.
        if not (collective_watch.is_ours() and torch.is_grad_enabled() and stage.has_backward):
            return -1
        micro_batch: Any = args[0] if args else options.get(number)
        index = stage.stage_index
        known = type(micro_batch) is int and type(index) is int
        return recorder.begin_operation(
            code, micro_batch=micro_batch if known else UNKNOWN, stage=index if known else UNKNOWN
        )

    @functools.wraps(original)
    def watched(stage: Any, *args: Any, **options: Any) -> Any:
        if is_compiling():
            return original(stage, *args, **options)
        ticket = part.run(begin, stage, args, options)
        try:
            return original(stage, *args, **options)
        finally:
            if ticket is not None and ticket >= 0:
                part.run(recorder.end_operation, ticket)

    skip_compile(watched)
    skip_compile(begin, wholly=True)
    return watched
