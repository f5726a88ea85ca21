"""The modules of a model as NVTX ranges. A compiled module is one range: hooks below it would cut its graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from distprof.record.windows.nvtx_ranges import NvtxRanges


def show_modules(model: nn.Module, ranges: NvtxRanges, *, depth: int) -> None:
    """Shows every call of a module inside a model as a range with its name, and nothing below a compiled call.

    Args:
        model: Unwrapped; it has no range itself.
        ranges: This rank's.
        depth: How deep modules lie at most; 1: the model's own children.
    """
    below: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(below):
            continue
        compiled = getattr(module, "_compiled_call_impl", None)
        if compiled is not None or type(module).__name__ == "OptimizedModule":
            below += (f"{name}." if name else "",)
        if not name or name.count(".") >= depth:
            continue
        before, after = ranges.module_hooks(name)
        if compiled is not None:  # by ``module.compile()``, which compiles the module's hooks too
            module._compiled_call_impl = _surround(compiled, before, after)
        else:
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after, always_call=True)


def _surround(call: Callable[..., Any], before: Callable[[], None], after: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(call)
    def surrounded(*args: Any, **options: Any) -> Any:
        before()
        try:
            return call(*args, **options)
        finally:
            after()

    return surrounded
