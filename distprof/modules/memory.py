"""What a rank needs in memory to train a model: from its parameters and how they are distributed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from distprof.facts.modules import RankMemory

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
) -> RankMemory:
    """What one rank holds between forward and backward, and after; buffers of the communication are left out.

    Args:
        parameters: Each once, whole.
        buffers: Likewise; every rank holds all.
        num_shards: Ranks that share one copy of the model. 1: every rank holds all of it.
        rank: Position among these.
        mode: Of `train.mode`.
        activation_bytes: What one micro-batch keeps for backward.
    """
    held = sum(find_shard(tuple(each.shape), num_shards, rank) * each.element_size() for each in parameters)
    gradients, moments = predict_training(held, mode)
    return RankMemory(
        parameters=held, gradients=gradients, optimizer=moments, buffers=sum(each.nbytes for each in buffers),
        activations=activation_bytes,
    )  # fmt: skip


def predict_training(held_bytes: int, mode: str) -> tuple[int, int]:
    """Bytes of gradients, and of AdamW's moments.

    Args:
        held_bytes: Of parameters.
        mode: Of `train.mode`.
    """
    return 0 if mode == "forward" else held_bytes, MOMENTS * held_bytes if mode == "train" else 0


def find_local(tensor: Any) -> Tensor:
    """The part of a sharded tensor that this process holds."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def find_shard(shape: tuple[int, ...], num_shards: int, rank: int) -> int:
    """Elements that FSDP2 leaves on one rank: rows in equal chunks, of which the last ones may be short or empty.

    Args:
        shape: Of the whole parameter.
        num_shards: Ranks that share it.
        rank: Position among these.
    """
    if num_shards == 1 or not shape:
        return _multiply(shape)
    chunk = -(-shape[0] // num_shards)
    return max(0, min(chunk, shape[0] - rank * chunk)) * _multiply(shape[1:])


def _multiply(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
