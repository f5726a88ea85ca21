"""A torch that differs from this one in what distprof wraps, and trains as this one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

_all_reduce, _grad = dist.all_reduce, torch.autograd.grad
GLOO: Any = distributed_c10d.ProcessGroupGloo  # type: ignore[attr-defined]


def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, timeout: Any = None, group: Any = None, **more: Any) -> Any:
    """One argument more, before those that are read."""
    return _all_reduce(tensor, op, group, **more)


def grad(outputs: Any, weights: Any, inputs: Any, **more: Any) -> Any:
    """As `all_reduce`."""
    return _grad(outputs, inputs, weights, **more)


class _OneMore(type(GLOO)):  # type: ignore[misc]
    """A constructor that torch gives one argument more than this one does, as 2.14 gives one more than 2.13."""

    def __call__(cls, *args: Any, **given: Any) -> Any:
        return super().__call__(*args, one_more=False, **given)


class Gloo(GLOO, metaclass=_OneMore):  # type: ignore[misc]
    def __init__(self, *args: Any, one_more: bool = False, **given: Any) -> None:
        super().__init__(*args, **given)


@contextlib.contextmanager
def differ() -> Iterator[None]:
    """Has torch differ for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for place in (dist, distributed_c10d):
            patch.setattr(place, "all_reduce", all_reduce)
        patch.setattr(torch.autograd, "grad", grad)
        patch.setattr(distributed_c10d, "ProcessGroupGloo", Gloo)
        patch.delattr(functional, "wait_tensor")
        patch.delattr(FullyShardedDataParallel, "clip_grad_norm_")
        patch.delattr(DistributedDataParallel, "_check_comm_hook")
        yield
