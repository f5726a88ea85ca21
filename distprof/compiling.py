"""What `torch.compile` may do with code of distprof.

Its compiler, dynamo, meets that code in two ways. A function that runs beside a graph, because torch's C++ calls it or
after a graph break, would be compiled by itself: `skip_compile` prevents that. A function that is called in
what is being compiled is traced into the graph: there it does what the original does, or nothing (`replace_in_graphs`).
What a graph hides in this way is remembered when it is traced (`hide`), for the notes of the report.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any

import torch

from distprof.error_boundary import ErrorBoundary

_MOST = 16
_hidden: dict[str, None] = {}

if hasattr(torch.compiler, "_compile_session_context"):
    from torch.compiler import is_compiling as is_compiling  # exported
else:  # before torch 2.13 this was False while the compiler runs Python: torch's backward of a graph, DTensor

    def is_compiling() -> bool:
        """Whether a graph is traced now, by dynamo or by what comes after it."""
        return torch.compiler.is_compiling() or torch._guards.TracingContext.try_get() is not None


def skip_compile(function: Any, *, wholly: bool = False) -> None:
    """Keeps torch.compile from compiling a function by itself.

    Args:
        function: Of distprof.
        wholly: Also what it calls; otherwise that is compiled as it would be without distprof.
    """
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
        strategy = frames._FrameExecStrategy(skip, skip if wholly else default)
        frames.set_code_exec_strategy(function.__code__, strategy)
    elif hasattr(frames, "skip_code"):  # before torch 2.7
        frames.skip_code(function.__code__)


if is_compiling.__module__ == __name__:  # wrappers that are left to Python themselves call it
    skip_compile(is_compiling, wholly=True)
skip_compile(ErrorBoundary.run, wholly=True)


def replace_in_graphs(function: Any, instead: Callable[..., Any]) -> None:
    """Has a function of distprof do something else in a graph, with the same arguments. Outside of graphs it runs as
    plain Python, at no cost."""
    function._torchdynamo_inline = instead
    skip_compile(function, wholly=True)


def hide(what: str) -> None:
    """Remembers what a graph hides, once, while the graph is traced."""
    if len(_hidden) < _MOST:
        _hidden[what] = None


hide._dynamo_marked_constant = True  # type: ignore[attr-defined]  # called by the compiler, and not by the graph


def update_compiler(replaced: Iterable[tuple[Callable[..., Any], Callable[..., Any]]]) -> None:
    """Has dynamo, which is imported, trace replaced functions of torch as it traces the original ones.

    dynamo has a table of what to do with some of them, which it makes once, and a table of what they are, which it
    makes anew now and then.

    Args:
        replaced: Originals, which are in their places now, and what replaces them.
    """
    _leave_all_to_python()
    with ErrorBoundary("what torch.compile knows of replaced functions"):  # some releases keep it elsewhere
        handlers = sys.modules["torch._dynamo"].variables.torch.TorchInGraphFunctionVariable._get_handlers()
        handlers.update({new: handlers[original] for original, new in replaced if original in handlers})


def _leave_all_to_python() -> None:
    """Before torch 2.7, what a function calls that is left to Python is compiled all the same: leaves it all."""
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy") or not hasattr(frames, "skip_code"):
        return
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    codes = [each.__code__ for each in functions if str(each.__module__).startswith(f"{__package__}.")]
    for code in codes:
        frames.skip_code(code)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]  # functions in it


def remind_compiler() -> None:
    """Has dynamo look anew at what is in the places of torch's functions."""
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        with ErrorBoundary("what torch.compile knows of replaced functions"):
            dynamo.trace_rules.get_torch_obj_rule_map.cache_clear()


def take_hidden() -> list[str]:
    """What graphs have hidden since the last call, in its order."""
    found = list(_hidden)
    _hidden.clear()
    return found
