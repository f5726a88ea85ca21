"""What a rank needs in memory to train a model: predicted from its parameters, and measured in a training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from distprof.facts.modules import RankMemory
from distprof.patching import is_fsdp2

MOMENTS = 2
"""AdamW keeps two numbers for each that it trains, in the format of the parameter."""


def predict_memory(
    parameters: Iterable[Tensor],
    buffers: Iterable[Tensor],
    *,
    num_shards: int,
    rank: int,
    mode: str,
    activation_bytes: int | None,
    communication: int | None = None,
) -> RankMemory:
    """What one rank holds of the tensors of a training step, by kind.

    Args:
        parameters: Each once, whole. Those that need no gradient get neither gradients nor moments.
        buffers: Likewise; every rank holds all.
        num_shards: Ranks that share one copy of the model. 1: every rank holds all of it.
        rank: Position among these.
        mode: Of `train.mode`.
        activation_bytes: What one micro-batch keeps for backward.
        communication: Bytes of the buffers of the communication.
    """
    held = {True: 0, False: 0}
    for each in parameters:
        held[each.requires_grad] += count_shard_elements(tuple(each.shape), num_shards, rank) * each.element_size()
    gradients, moments = predict_training(held[True], mode)
    return RankMemory(
        parameters=sum(held.values()), gradients=gradients, optimizer=moments,
        buffers=sum(each.nbytes for each in buffers), activations=activation_bytes, communication=communication,
    )  # fmt: skip


def predict_training(held_bytes: int, mode: str) -> tuple[int, int]:
    """Bytes of gradients, and of AdamW's moments.

    Args:
        held_bytes: Of parameters that are trained.
        mode: Of `train.mode`.
    """
    return 0 if mode == "forward" else held_bytes, MOMENTS * held_bytes if mode == "train" else 0


def list_units(model: nn.Module) -> list[nn.Module]:
    """The modules that FSDP2 usually shards and gathers by themselves; the rest of the model is one more unit.

    Those of the classes that a model of Transformers names for that, else the members of its lists of modules.
    """
    named = {*(getattr(model, "_no_split_modules", None) or ())}
    units: list[nn.Module] = []
    pending = [model]
    while pending:
        module = pending.pop()
        for child in module.children():
            is_unit = type(child).__name__ in named if named else isinstance(module, nn.ModuleList | nn.Sequential)
            if is_unit and next(child.parameters(), None) is not None:
                units.append(child)
            else:
                pending.append(child)
    return units


def predict_gathered(
    model: nn.Module, *, dtype: torch.dtype | None, reduce_dtype: torch.dtype | None, reshards: bool, mode: str
) -> int:
    """The most bytes that FSDP2 holds beyond a rank's own parts of parameters and gradients.

    All the time what belongs to no unit (``rest``), as the model's first call gathers it. In the middle of backward one
    unit that is computed, the buffer of its gathering, and the next unit's buffer, the unit's gradients, and the buffer
    in which they are reduced; at the end the same of the rest, whose gradients wait until then. Without resharding all
    units instead of three.

    Args:
        model: Whole, not distributed.
        dtype: In which parameters are gathered. None: their own.
        reduce_dtype: In which gradients are reduced. None: as they are gathered.
        reshards: Whether units are freed between forward and backward.
        mode: Of `train.mode`.
    """
    sizes = [_measure_gathered(each.parameters(), dtype, reduce_dtype) for each in list_units(model)]
    whole = _measure_gathered(model.parameters(), dtype, reduce_dtype)
    largest = max(sizes, default=(0, 0))
    rest = tuple(of_all - sum(each[at] for each in sizes) for at, of_all in enumerate(whole))
    units = 3 * largest[0] if reshards else whole[0] - rest[0]
    if mode == "forward":
        return 2 * rest[0] + units
    return 2 * rest[0] + largest[1] + max(units + largest[0], rest[1])


def _measure_gathered(
    parameters: Iterable[Tensor], dtype: torch.dtype | None, reduce_dtype: torch.dtype | None
) -> tuple[int, int]:
    """Bytes when gathered, and bytes of gradients when they are reduced."""
    gathered = reduced = 0
    for each in parameters:
        kept = dtype or each.dtype
        gathered += each.numel() * kept.itemsize
        reduced += each.numel() * (reduce_dtype or kept).itemsize if each.requires_grad else 0
    return gathered, reduced


def local_part(tensor: Any) -> Tensor:
    """The part of a sharded tensor that this process holds."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def count_shard_elements(shape: tuple[int, ...], num_shards: int, rank: int) -> int:
    """Elements that FSDP2 leaves on one rank: rows in equal chunks, of which the last ones may be short or empty.

    Args:
        shape: Of the whole parameter.
        num_shards: Ranks that share it.
        rank: Position among these.
    """
    if num_shards == 1 or not shape:
        return prod(shape)
    chunk = -(-shape[0] // num_shards)
    return max(0, min(chunk, shape[0] - rank * chunk)) * prod(shape[1:])


class MemoryWatch:
    """Looks at gradients when an optimizer of the model begins its step, in a ``with`` block around a training step.

    The optimizer need not be known: torch tells of all. Sizes are read, nothing is computed or waited for.
    """

    def __init__(self, model: nn.Module) -> None:
        """``model``: as it is trained, wrapped in DDP or FSDP2."""
        self._model = model
        self._optimizers: dict[int, Optimizer] = {}
        self._gradients: int | None = None
        self._handle: Any = None

    def __enter__(self) -> MemoryWatch:
        self._handle = register_optimizer_step_pre_hook(self._look)
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.remove()

    def measure(self, *, activations: int | None, gathered: int | None) -> RankMemory:
        """After the step. What no optimizer has reported is not known.

        Args:
            activations: Bytes that forward kept for backward.
            gathered: Bytes of parameters that FSDP2 had gathered when forward ended.
        """
        state = None
        if self._optimizers:
            values = [value for each in self._optimizers.values() for value in tree_leaves(dict(each.state))]
            state = _add_up(each for each in values if isinstance(each, Tensor) and each.ndim)  # counts of steps have 0
        return RankMemory(
            parameters=_add_up(self._model.parameters()), gradients=self._gradients, optimizer=state,
            buffers=_add_up(self._model.buffers()), activations=activations,
            communication=_count_communication(self._model, self._gradients, gathered),
        )  # fmt: skip

    def _look(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with contextlib.suppress(Exception):  # training goes on; what was not seen is not known
            own = {id(each) for each in self._model.parameters()}
            if own.isdisjoint(id(each) for group in optimizer.param_groups for each in group["params"]):
                return
            self._optimizers[id(optimizer)] = optimizer
            gradients = [each.grad for each in self._model.parameters() if each.grad is not None]
            if gradients:
                self._gradients = max(_add_up(gradients), self._gradients or 0)


def _add_up(tensors: Any) -> int:
    """Bytes of the parts that this process holds."""
    with torch.no_grad():
        return sum(local_part(each).nbytes for each in tensors)


def _count_communication(model: nn.Module, gradients: int | None, gathered: int | None) -> int | None:
    """Bytes beyond those of parameters and gradients. None: this way of distributing a model does not tell."""
    if isinstance(model, DistributedDataParallel):
        return _count_buckets(model, gradients)
    if any(map(is_fsdp2, model.modules())):
        return gathered
    return 0 if not dist.is_initialized() or dist.get_world_size() == 1 else None


def _count_buckets(model: DistributedDataParallel, gradients: int | None) -> int | None:
    logged = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    sizes = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
    if not sizes:
        return None
    buckets = sum(map(int, sizes.split(",")))
    if not model.gradient_as_bucket_view:
        return buckets
    return None if gradients is None else max(0, buckets - gradients)
