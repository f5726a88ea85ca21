"""What a rank needs in memory to train a model: from its parameters and how they are distributed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

MOMENTS = 2
"""AdamW keeps two numbers for each that it trains, in the format of the parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes on one rank, by kind. None: not known."""

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int | None
    """Of one micro-batch, at the end of forward."""

    @property
    def total(self) -> int:
        """Of what is known."""
        return self.parameters + self.gradients + self.optimizer + self.buffers + (self.activations or 0)


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
        mode: "forward", "forward_backward" or "train".
        activation_bytes: What one micro-batch keeps for backward.
    """
    held = sum(find_shard(tuple(each.shape), num_shards, rank) * each.element_size() for each in parameters)
    return RankMemory(
        parameters=held, gradients=0 if mode == "forward" else held, optimizer=MOMENTS * held if mode == "train" else 0,
        buffers=sum(each.nbytes for each in buffers), activations=activation_bytes,
    )  # fmt: skip


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
