"""What the tensors of a training step take on this rank, by kind."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from distprof.facts.modules import RankMemory
from distprof.modules.memory import find_local
from distprof.patching import is_fsdp2


class MemoryWatch:
    """Looks at gradients when an optimizer of the model begins its step, in a ``with`` block around a training step.

    The optimizer need not be known: torch tells of all. Sizes are read, nothing is computed or waited for.
    """

    def __init__(self, model: nn.Module) -> None:
        """Of the model as it is trained: wrapped in DDP or FSDP2."""
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
        """After the step. What no optimizer told of is not known.

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
        return sum(find_local(each).nbytes for each in tensors)


def _count_communication(model: nn.Module, gradients: int | None, gathered: int | None) -> int | None:
    """Bytes beyond those of parameters and gradients. None: this way of distributing a model does not tell."""
    if isinstance(model, DistributedDataParallel):
        return _count_buckets(model, gradients)
    if any(map(is_fsdp2, model.modules())):
        return gathered
    return 0 if not dist.is_initialized() or dist.get_world_size() == 1 else None


def _count_buckets(model: DistributedDataParallel, gradients: int | None) -> int | None:
    told = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    sizes = str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "")
    if not sizes:
        return None
    buckets = sum(map(int, sizes.split(",")))
    if not model.gradient_as_bucket_view:
        return buckets
    return None if gradients is None else max(0, buckets - gradients)
