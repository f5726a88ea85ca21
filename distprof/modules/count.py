"""FLOPs and activations of modules, counted from the operations that torch dispatches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from distprof.modules.calls import ModuleCalls, ModulePass
from distprof.modules.memory import find_local

aten = torch.ops.aten


def _count_attention(query: Any, key: Any, value: Any, *rest: Any, out_shape: Any = None, **more: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _count_attention_backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
    return int(sdpa_backward_flop_count(grad, query, key, value))  # type: ignore[no-untyped-call]


CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: _count_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _count_attention_backward,
}
"""torch counts attention on every device but a CPU, where the same model would seem to do less."""


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


class _Outputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers, without keeping it alive, what operations of forward make."""

    def __init__(self, calls: ModuleCalls) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls
        self.made: dict[StorageWeakRef, int] = {}
        """Path by storage."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        path, stage = self._calls.locate()
        if stage is ModulePass.FORWARD:
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
        self._model, self._calls = model, calls
        self._flops = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
        self._flops.mod_tracker = _Place(calls)  # type: ignore[assignment]
        self._outputs = _Outputs(calls) if activations else None
        self.alive_bytes: dict[int, int] = {}
        """By path: what was made there and is alive, as of the last `look`."""
        self.gathered_bytes: int | None = None
        """Of parameters that had gathered their shards, as of the last `look`. None: there was none."""
        self._sharded: dict[str, int | None] = {}
        """Storages of the parameters before the pass, by name."""

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """While it is open, operations count."""
        with contextlib.ExitStack() as held:
            if self._outputs is not None:
                self._sharded = {name: each for name, (each, _) in self._list_held().items()}
                held.enter_context(self._outputs)
            held.enter_context(self._flops)
            yield

    def look(self) -> None:
        """Adds up what forward has made and is alive now, parameters and buffers left out."""
        if self._outputs is None:
            return
        parameters = self._list_held()
        gathered: dict[int | None, int] = {}
        for name, (storage, size) in parameters.items():
            if storage != self._sharded.get(name, storage):
                gathered[storage] = gathered.get(storage, 0) + size
        for each in _list_gathering(self._model):
            gathered.setdefault(_identify(each), each.untyped_storage().nbytes())
        self.gathered_bytes = sum(gathered.values())
        held = gathered.keys() | {storage for storage, _ in parameters.values()} | {*self._sharded.values()}
        held |= {_identify(each) for each in self._model.buffers()}
        self.alive_bytes = {}
        for reference, path in self._outputs.made.items():
            alive = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)  # None: freed
            if alive is not None and alive._cdata not in held:
                self.alive_bytes[path] = self.alive_bytes.get(path, 0) + alive.nbytes()

    def _list_held(self) -> dict[str, tuple[int | None, int]]:
        """The storage and the bytes of each parameter's local part, by name."""
        with torch.no_grad():
            local = {name: find_local(each) for name, each in self._model.named_parameters()}
        return {name: (_identify(each), each.nbytes) for name, each in local.items()}

    def by_path(self) -> dict[tuple[int, ModulePass], int]:
        """FLOPs by path and stage."""
        counts: dict[Any, dict[Any, int]] = self._flops.flop_counts
        return {key: sum(found.values()) for key, found in counts.items() if key != "Global"}

    def by_operation(self) -> dict[str, int]:
        """All FLOPs by the operation's name."""
        counts: dict[Any, dict[Any, int]] = self._flops.flop_counts
        return {str(operation): int(flops) for operation, flops in counts["Global"].items()}


def _list_gathering(model: nn.Module) -> Iterator[torch.Tensor]:
    """What FSDP2 has gathered last and keeps until it gathers again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            shared = getattr(module._get_fsdp_state(), "_comm_ctx", None)  # not public: without it, there is none
            result = getattr(getattr(shared, "all_gather_state", None), "all_gather_result", None)
            if isinstance(output := getattr(result, "all_gather_output", None), torch.Tensor):
                yield output


def _identify(tensor: torch.Tensor) -> int | None:
    storage = _find_storage(tensor)
    return None if storage is None else int(storage._cdata)


def _find_storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """None: a wrapper without memory of its own; operations see the tensors inside."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
