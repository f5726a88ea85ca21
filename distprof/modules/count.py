"""FLOPs, activations and peak memory of modules, counted from the operations that torch dispatches."""

from __future__ import annotations

import collections
import contextlib
import functools
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from distprof.modules.calls import ModuleCalls, ModulePass
from distprof.modules.formulas import FORMULAS
from distprof.modules.memory import local_part
from distprof.modules.names import NamedModule
from distprof.patching import is_fsdp2

MOST_NOTES, MOST_MODULES = 8, 3

OWN_LIBRARIES = frozenset(
    (
        "aten", "prim", "prims", "quantized", "_quantized", "quantized_decomposed", "quantization", "mkldnn",
        "mkldnn_prepacked", "onednn", "mkl", "sparse", "inductor", "inductor_prims", "symm_mem", "c10d",
        "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "fsdp", "profiler", "streams",
        "rngprims", "debugprims", "debug_mode_ops", "export", "static_runtime", "_native",
    )
)  # fmt: skip
"""torch's own, whose operations say by their names what they do. Of any other nothing is known."""

PRODUCT = re.compile(
    r"[a-z0-9]*(mm|gemm|matmul)|matmul\w*|(add)?mv|v?dot|q?linear|q?conv(olution)?(\d?d)?|rnn|lstm|gru|attention|attn|mha"
    r"|transformer|trilinear|euclidean|[cp]dist|fft|linalg|cholesky|solve|spsolve|inverse|lu|qr|geqrf|ormqr|svd|eigh?"
)
"""A word of the name of an operation that multiplies matrices, convolves, compares all pairs, or decomposes."""

NOT_PRODUCT = re.compile(r"thnn|(pre|un)?pack|reorder|convert|flatten|check|cross|norm|powsum|slice")
"""A word of the name of one that only prepares, looks, or does the rest: ``thnn`` comes after the products."""


class Uncounted:
    """How often such operations ran, and where."""

    def __init__(self, counted: Mapping[Any, Any]) -> None:
        """``counted``: operations with a formula."""
        self._counted = counted
        self._ran: dict[str, collections.Counter[int]] = {}
        """By operation: runs by path."""

    def clear(self) -> None:
        """Forgets what ran."""
        self._ran.clear()

    def see(self, operation: Any, path: int) -> None:
        """An operation has run on a path."""
        name = _name_uncounted(operation)
        if name and getattr(operation, "_overloadpacket", operation) not in self._counted:
            self._ran.setdefault(name, collections.Counter())[path] += 1

    def describe(self, modules: Sequence[NamedModule], paths: Sequence[tuple[int, ...]]) -> list[str]:
        """A note for each operation, the most frequent first."""
        ordered = sorted(self._ran.items(), key=lambda item: (-item[1].total(), item[0]))
        notes = []
        for name, ran in ordered[:MOST_NOTES]:
            times = "once" if ran.total() == 1 else f"{ran.total():,} times"
            places: collections.Counter[str] = collections.Counter()
            for path, number in ran.items():
                places[_name_place(modules, paths[path])] += number
            first = [place for place, _ in places.most_common(MOST_MODULES)]
            more = f" and {len(places) - len(first)} more" if len(places) > len(first) else ""
            notes.append(f"not counted, because there is no formula: {name}, {times}, in {', '.join(first)}{more}")
        if len(ordered) > MOST_NOTES:
            notes.append(f"not counted either: {len(ordered) - MOST_NOTES} more operations")
        return notes


@functools.cache
def _name_uncounted(operation: Any) -> str:
    """The name of an operation that multiplies or may do so; "" of any other."""
    packet = getattr(operation, "_overloadpacket", operation)
    library, _, name = getattr(packet, "_qualified_op_name", f"higher_order::{packet}").partition("::")
    if library in OWN_LIBRARIES:
        words = name.strip("_").split("_")
        if not any(map(PRODUCT.fullmatch, words)) or any(map(NOT_PRODUCT.fullmatch, words)):
            return ""
    return f"{library}.{name}"


def _name_place(modules: Sequence[NamedModule], rows: tuple[int, ...]) -> str:
    if not rows:
        return "no module"
    return modules[rows[-1]].name or "the model itself"


class AlivePeak:
    """Bytes of the tensors that were made and are not freed, without gradients of parameters."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        """The most since the start, or since `restart`."""
        self._alive: dict[int, int] = {}
        self._alive_bytes = 0

    def add(self, storage: torch.UntypedStorage) -> None:
        """A tensor has been made in this memory."""
        key = storage._cdata
        if key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        self._alive_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self._alive_bytes)
        weakref.finalize(storage, self._take_off, key).atexit = False

    def restart(self) -> int:
        """The bytes now, from which the peak begins anew."""
        self.peak_bytes = self._alive_bytes
        return self._alive_bytes

    @contextlib.contextmanager
    def without_gradients(self, model: nn.Module) -> Iterator[None]:
        """Inside, a gradient of a parameter counts no more from the moment that it is one."""

        def leave_out(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self._take_off(parameter.grad.untyped_storage()._cdata)

        wanted = [each for each in model.parameters() if each.requires_grad]
        handles = [each.register_post_accumulate_grad_hook(leave_out) for each in wanted]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _take_off(self, key: int) -> None:
        self._alive_bytes -= self._alive.pop(key, 0)


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

    def __init__(self, calls: ModuleCalls, uncounted: Uncounted, *, remembers: bool, peak: AlivePeak | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls, self._uncounted, self._remembers, self._peak = calls, uncounted, remembers, peak
        self.made: dict[StorageWeakRef, int] = {}
        """Path by storage."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage._cdata for storage in _list_storages((args, kwargs))} if self._remembers else set()
        result = func(*args, **(kwargs or {}))
        path, stage = self._calls.locate()
        self._uncounted.see(func, path)
        if self._remembers:
            for storage in _list_storages(result):
                if storage._cdata not in given:  # else it is a part of what was given, or that itself
                    self._keep(storage, path, stage)
        return result

    def _keep(self, storage: torch.UntypedStorage, path: int, stage: ModulePass) -> None:
        if stage is ModulePass.FORWARD:
            self.made.setdefault(StorageWeakRef(storage), path)  # type: ignore[no-untyped-call]
        if self._peak is not None:
            self._peak.add(storage)


class Counter:
    """Counts one pass."""

    def __init__(
        self, model: nn.Module, calls: ModuleCalls, *, activations: bool, peak: AlivePeak | None = None
    ) -> None:
        """Counts what ``calls`` locates in ``model``; ``activations``: also what stays alive after forward."""
        self._model = model
        self._flops = FlopCounterMode(display=False, custom_mapping=FORMULAS)
        self._flops.mod_tracker = _Place(calls)  # type: ignore[assignment]
        self.uncounted = Uncounted(self._flops.flop_registry)
        self._executed = _Executed(calls, self.uncounted, remembers=activations, peak=peak)
        self.alive_bytes: dict[int, int] = {}
        """By path: what was made there and is alive, as of the last `look`."""
        self.gathered_bytes: int | None = None
        """Of parameters that had gathered their shards, as of the last `look`. None: there was none."""
        self._sharded: dict[str, int | None] = {}
        """Storages of the parameters before the pass, by name."""

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """While it is open, operations count."""
        self._sharded = {name: each for name, (each, _) in self._list_held().items()}
        self.uncounted.clear()
        with self._executed, self._flops:
            yield

    def look(self) -> None:
        """Adds up what forward has made and is alive now, parameters and buffers left out."""
        if not self._executed.made:
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
        for reference, path in self._executed.made.items():
            alive = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)  # None: freed
            if alive is not None and alive._cdata not in held:
                self.alive_bytes[path] = self.alive_bytes.get(path, 0) + alive.nbytes()

    def _list_held(self) -> dict[str, tuple[int | None, int]]:
        """The storage and the bytes of each parameter's local part, by name."""
        with torch.no_grad():
            local = {name: local_part(each) for name, each in self._model.named_parameters()}
        return {name: (_identify(each), each.nbytes) for name, each in local.items()}

    def by_path(self) -> dict[tuple[int, ModulePass], int]:
        """FLOPs by path and stage."""
        counts: dict[Any, dict[Any, int]] = self._flops.flop_counts
        return {key: sum(found.values()) for key, found in counts.items() if key != "Global"}

    def by_operation(self) -> dict[str, int]:
        """All FLOPs by the operation's name."""
        counts: dict[Any, dict[Any, int]] = self._flops.flop_counts
        return {str(operation): int(flops) for operation, flops in counts["Global"].items()}


def _list_gathering(model: nn.Module) -> Iterator[Tensor]:
    """What FSDP2 has gathered last and keeps until it gathers again."""
    for module in model.modules():
        if is_fsdp2(module):
            state: Any = module._get_fsdp_state()  # type: ignore[operator]
            shared = getattr(state, "_comm_ctx", None)  # not public: without it, there is none
            result = getattr(getattr(shared, "all_gather_state", None), "all_gather_result", None)
            if isinstance(output := getattr(result, "all_gather_output", None), Tensor):
                yield output


def _list_storages(values: Any) -> Iterator[torch.UntypedStorage]:
    for each in tree_leaves(values):
        if isinstance(each, Tensor) and (storage := _read_storage(each)) is not None:
            yield storage


def _identify(tensor: Tensor) -> int | None:
    storage = _read_storage(tensor)
    return None if storage is None else int(storage._cdata)


def _read_storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """None: a wrapper without memory of its own; operations see the tensors inside."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
