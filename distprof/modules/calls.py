"""Which module an operation belongs to: in forward, when activations are recomputed, and in backward.

In forward, hooks that torch calls for every module tell which modules run. In backward, an operation runs inside a node
of the autograd graph, and the number of that node tells when in forward it was made, thus by which module. So neither
the model nor its tensors are touched, functional calls count, and it does not matter what a module takes or returns.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from distprof.modules.names import NamedModule

OUTSIDE = 0
"""The path of what runs in no module of the model."""
NO_BACKWARD = -1
"""The number of the running backward outside of any."""


class ModulePass(enum.Enum):
    """What a pass does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTED = "recomputed"


Watcher = Callable[[int, ModulePass, nn.Module, Any, Any], None]
"""Called with a path, the stage, a module, what its call was given, and what it returned."""


def _ignore(path: int, stage: ModulePass, module: nn.Module, inputs: Any, output: Any) -> None:
    pass


class Paths:
    """Numbers for the modules that run at a time, from the outermost to the innermost."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = [()]
        """The rows of the modules, by number."""
        self._known: dict[tuple[int, ...], int] = {(): OUTSIDE}

    def number(self, rows: tuple[int, ...]) -> int:
        """The same for the same modules."""
        if rows not in self._known:
            self._known[rows] = len(self.rows)
            self.rows.append(rows)
        return self._known[rows]


class ModuleCalls:
    """Follows the calls of a model's modules while it is open."""

    def __init__(
        self, modules: list[NamedModule], paths: Paths, *, on_enter: Watcher = _ignore, on_exit: Watcher = _ignore
    ) -> None:
        """``on_enter``, ``on_exit``: called at the begin and the end of each call of a module."""
        self._rows = {item.module: row for row, item in enumerate(modules)}
        self._parents = [item.parent for item in modules]
        self._paths = paths
        self._running = threading.local()  # on a GPU, backward has threads of its own
        self._thread = threading.get_ident()
        self._numbers, self._made_by = [0], [OUTSIDE]
        self._on_enter, self._on_exit = on_enter, on_exit
        self._handles: list[Any] = []

    def __enter__(self) -> ModuleCalls:
        self._handles = [
            register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._exit, always_call=True)
        ]  # fmt: skip
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def locate(self) -> tuple[int, ModulePass]:
        """The path and the stage of the operation that runs now."""
        backward = torch._C._current_graph_task_id()
        path, entered_in = self._stack[-1] if self._stack else (OUTSIDE, NO_BACKWARD)
        if backward == NO_BACKWARD:
            return path, ModulePass.FORWARD
        if self._stack and entered_in == backward:
            return path, ModulePass.RECOMPUTED
        node = torch._C._current_autograd_node()
        return (OUTSIDE if node is None else self.look_up_maker(node)), ModulePass.BACKWARD

    def look_up_maker(self, node: Any) -> int:
        """The path on which a node of the autograd graph was made."""
        return self._made_by[bisect_right(self._numbers, node._sequence_nr()) - 1]

    @property
    def _stack(self) -> list[tuple[int, int]]:
        """Paths, each with the backward in which it was entered."""
        stack: list[tuple[int, int]] | None = getattr(self._running, "stack", None)
        if stack is None:
            stack = self._running.stack = []
        return stack

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        row = self._rows.get(module)
        if row is None:
            return
        stack, backward = self._stack, torch._C._current_graph_task_id()
        path = self._paths.number(self._extend(self._paths.rows[stack[-1][0]] if stack else (), row))
        stack.append((path, backward))
        self._mark(path)
        self._on_enter(path, _name_stage(backward), module, inputs, None)

    def _exit(self, module: nn.Module, inputs: Any, output: Any) -> None:
        row = self._rows.get(module)
        if row is None or not any(self._paths.rows[path][-1] == row for path, _ in self._stack):
            return
        while True:
            path, backward = self._stack.pop()
            if self._paths.rows[path][-1] == row:
                break
        self._mark(self._stack[-1][0] if self._stack else OUTSIDE)
        self._on_exit(path, _name_stage(backward), module, inputs, output)

    def _extend(self, rows: tuple[int, ...], row: int) -> tuple[int, ...]:
        """The path of a module that is called on another path, with the holders between, such as lists of modules."""
        between = [row]
        while (parent := self._parents[between[-1]]) is not None and parent not in rows:
            between.append(parent)
        return (*rows, *(reversed(between) if parent is not None else [row]))

    def _mark(self, path: int) -> None:
        """Nodes that are made from now on belong to this path. Each thread counts its own nodes."""
        if threading.get_ident() == self._thread:
            self._numbers.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
            self._made_by.append(path)


def list_tensors(values: Any) -> Iterator[Tensor]:
    """The tensors in nested containers, data classes and mappings."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for part in dataclasses.fields(leaf):
                yield from list_tensors(getattr(leaf, part.name))
        elif isinstance(leaf, Mapping):
            yield from list_tensors(list(leaf.values()))


def padded_shape(tensor: Tensor) -> tuple[int, ...]:
    """Of nested sequences, which have no common one, the shape that they have when padded."""
    if tensor.is_nested and tensor.layout == torch.strided:
        return (tensor.size(0), *tensor._nested_tensor_size().amax(0).tolist())
    return tuple(tensor.shape)


def _name_stage(backward: int) -> ModulePass:
    return ModulePass.FORWARD if backward == NO_BACKWARD else ModulePass.RECOMPUTED
