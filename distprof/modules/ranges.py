"""The calls of a model's modules as annotations in torch.profiler's trace. Used only inside a kernel window.

The hooks are those of single modules, not torch's for all modules, as the latter make torch.compile compile again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from distprof.compiling import is_compiling
from distprof.facts.range_names import OWN_MODULE
from distprof.modules.names import COMPILED, is_compiled, list_modules, unwrap


class ModuleRanges:
    """Annotates modules while it is open, and leaves nothing behind on them.

    A compiled module has an annotation around it and none inside: what is inside runs as one graph.
    """

    def __init__(self, model: nn.Module, note: Callable[[str], None] = lambda text: None) -> None:
        """Takes a model.

        Args:
            model: It may be wrapped or compiled.
            note: Receives a sentence on modules that cannot be distinguished.
        """
        self._model, self._note = model, note
        self._undo: list[Callable[[], None]] = []
        self._running = threading.local()

    def __enter__(self) -> ModuleRanges:
        labels = {item.module: f"{OWN_MODULE}{item.name}:{type(item.module).__name__}"
                  for item in list_modules(self._model)}  # fmt: skip
        compiled = [module for module in self._model.modules() if is_compiled(module)]
        hidden = {inner for outer in compiled for inner in outer.modules() if inner is not outer}
        if compiled:
            self._note(
                f"compiled modules ({len(compiled):,}) are annotated as a whole: what runs inside counts for them, not "
                "for their submodules"
            )
        try:
            for module in self._model.modules():
                label = labels.get(unwrap(module) if type(module).__name__ == COMPILED else module)
                if label is not None and module not in hidden:
                    self._annotate(module, label)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _annotate(self, module: nn.Module, label: str) -> None:
        if (call := module._compiled_call_impl) is not None:  # by module.compile(): hooks would be compiled, too
            module._compiled_call_impl = partial(self._call, label, call)
            self._undo.append(partial(setattr, module, "_compiled_call_impl", call))
        elif not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
            before = module.register_forward_pre_hook(partial(self._before, label), prepend=True)
            after = module.register_forward_hook(partial(self._after, label), always_call=True)
            self._undo += [before.remove, after.remove]

    def _call(self, label: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with record_function(label):
            return call(*given, **named)

    def _before(self, label: str, module: nn.Module, inputs: Any) -> None:
        if is_compiling():
            return
        annotation = record_function(label)
        annotation.__enter__()  # type: ignore[no-untyped-call]
        self._opened.append((label, annotation))

    def _after(self, label: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if is_compiling() or not any(label == opened for opened, _ in self._opened):
            return
        while True:  # an inner one is still open where its forward failed before the hooks were called
            closing, annotation = self._opened.pop()
            annotation.__exit__(None, None, None)
            if closing == label:
                break

    @property
    def _opened(self) -> list[tuple[str, record_function]]:
        """Open annotations, which Kineto tracks by thread."""
        opened: list[tuple[str, record_function]] | None = getattr(self._running, "opened", None)
        if opened is None:
            opened = self._running.opened = []
        return opened
