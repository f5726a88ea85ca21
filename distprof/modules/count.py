"""FLOPs and activations of modules, counted from the operations that torch dispatches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from distprof.modules.calls import ModuleCalls, ModulePass
from distprof.modules.formulas import FORMULAS
from distprof.modules.uncounted import Uncounted


class _Place:
    """Stands in for torch's own module tracker: under which keys the counter counts an operation."""

    def __init__(self, calls: ModuleCalls) -> None:
        self._calls = calls

    @property
    def parents(self) -> set[Any]:
        """The total, and the path and the stage."""
        return {"Global", self._calls.locate()}

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


class _Executed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what is executed: it is opened before torch's counter, which takes operations apart first.

    Remembers, without keeping it alive, what operations of forward make, and which operations have no formula.
    """

    def __init__(self, calls: ModuleCalls, uncounted: Uncounted, *, remembers: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls, self._uncounted, self._remembers = calls, uncounted, remembers
        self.made: dict[StorageWeakRef, int] = {}
        """Path by storage."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        path, stage = self._calls.locate()
        self._uncounted.see(func, path)
        if self._remembers and stage is ModulePass.FORWARD:
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self._keep(tensor, path)
        return result

    def _keep(self, tensor: torch.Tensor, path: int) -> None:
        if (storage := _find_storage(tensor)) is not None:
            self.made.setdefault(StorageWeakRef(storage), path)  # type: ignore[no-untyped-call]


class Counter:
    """Counts one pass."""

    def __init__(self, model: nn.Module, calls: ModuleCalls, *, activations: bool) -> None:
        """Counts what ``calls`` locates in ``model``; ``activations``: also what stays alive after forward."""
        self._model = model
        self._flops = FlopCounterMode(display=False, custom_mapping=FORMULAS)
        self._flops.mod_tracker = _Place(calls)  # type: ignore[assignment]
        self.uncounted = Uncounted(self._flops.flop_registry)
        self._executed = _Executed(calls, self.uncounted, remembers=activations)
        self.alive_bytes: dict[int, int] = {}
        """By path: what was made there and is alive, as of the last `look`."""

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """While it is open, operations count."""
        self.uncounted.clear()
        with self._executed, self._flops:
            yield

    def look(self) -> None:
        """Adds up what forward has made and is alive now, parameters and buffers left out."""
        if not self._executed.made:
            return
        own = map(_find_storage, (*self._model.parameters(), *self._model.buffers()))
        held = {storage._cdata for storage in own if storage is not None}
        self.alive_bytes = {}
        for reference, path in self._executed.made.items():
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)  # None: freed
            if storage is not None and storage._cdata not in held:
                self.alive_bytes[path] = self.alive_bytes.get(path, 0) + storage.nbytes()

    def by_path(self) -> dict[tuple[int, ModulePass], int]:
        """FLOPs by path and stage."""
        counts: dict[Any, dict[Any, int]] = self._flops.flop_counts
        return {key: sum(found.values()) for key, found in counts.items() if key != "Global"}

    def by_operation(self) -> dict[str, int]:
        """All FLOPs by the operation's name."""
        counts: dict[Any, dict[Any, int]] = self._flops.flop_counts
        return {str(operation): int(flops) for operation, flops in counts["Global"].items()}


def _find_storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """None: a wrapper without memory of its own; operations see the tensors inside."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
