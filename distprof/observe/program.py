"""What kind of program is watched, and what the report says about that."""

from __future__ import annotations

import enum
from typing import Any

INFERENCE_AFTER = 3
"""Forwards without an optimizer and without a backward that make a program one of inference; fewer may be a test."""
MANUAL_AFTER = 2
"""Backwards without an optimizer that make a program one that updates its parameters by itself; one is enough if a
forward or batch follows it."""
NO_OPTIMIZER = (
    "no optimizer of torch.optim was made: a step is taken to begin with the batch or forward after a backward"
)
UNSEEN_AFTER = 64
"""Backwards in one step after which an optimizer whose steps are not seen is no longer waited for."""
UNSEEN = (
    "an optimizer was made, and none of its steps is seen (in a compiled function, or not of torch.optim): a step is "
    "taken to begin with the batch or forward after a backward"
)
COMPILED = (
    "the forward is not seen (in a compiled function, or where a module's forward() is called and not the module): its "
    "time is part of other"
)
INFERENCE = (
    "steps without an optimizer and a backward are inference: each is one batch of a DataLoader, or else one forward"
)
INFERENCE_BEFORE = "the first steps are inference, before the first optimizer was made; warm-up begins again after them"


class Program(enum.Enum):
    """What the program does, as far as it has shown."""

    UNKNOWN = enum.auto()
    TRAINING = enum.auto()
    """It has made an optimizer."""
    MANUAL = enum.auto()
    """It computes gradients without one."""
    INFERENCE = enum.auto()


def unwrap(model: Any) -> list[Any]:
    """A model, and what DDP or `torch.compile` has wrapped in it."""
    found = [] if model is None else [model]
    while (inner := _find_inner(model)) is not None:
        if inner in found or not hasattr(inner, "training"):
            break
        found.append(inner)
        model = inner
    return found


def _find_inner(model: Any) -> Any:
    """What a model has wrapped, once in every step: asking a module for what it does not have is slow."""
    parts = getattr(model, "_modules", {})
    inner = parts.get("_orig_mod") or parts.get("module")
    return model.module if inner is None and hasattr(type(model), "module") else inner  # a property of FSDP1
