"""What a job needs in memory, by its configuration; refuses one that cannot fit."""

from __future__ import annotations

import os

import torch
from torch import nn

from distprof.config.schema import AccelerateConfig, Config, FsdpConfig
from distprof.errors import UsageError
from distprof.facts.modules import RankMemory
from distprof.modules.memory import predict_memory, predict_training
from distprof.modules.profile import profile_model
from distprof.train.model import Transformer

FLOAT_BYTES = 4


def require_memory(config: Config, parameters: int, *, num_ranks: int, total_bytes: int | None = None) -> None:
    """Compares the least memory that weights, gradients and AdamW's two moments need with what the host has.

    Args:
        config: The mode and the strategy.
        parameters: Of the whole model.
        num_ranks: Ranks that share the host's memory.
        total_bytes: The host's memory. None: asks the operating system.

    Raises:
        UsageError: The model cannot fit.
    """
    whole_bytes = FLOAT_BYTES * parameters
    holders = 1 if config.strategy.name == "fsdp" else num_ranks
    # Every rank builds the whole model, even under FSDP, which shards it afterwards.
    needed_bytes = num_ranks * whole_bytes + holders * sum(predict_training(whole_bytes, config.train.mode))
    if total_bytes is None:
        total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed_bytes > total_bytes:
        raise UsageError(
            f"{parameters:,} parameters on {num_ranks} rank(s) need at least {needed_bytes / 2**30:.0f} GiB, and this "
            f"host has {total_bytes / 2**30:.0f} GiB: use a smaller train=..., fewer ranks, or strategy=fsdp"
        )


def count_shards(config: Config, num_ranks: int) -> int:
    """Ranks that share one copy of the model."""
    strategy = config.strategy
    if isinstance(strategy, FsdpConfig):
        return num_ranks // strategy.replicas
    return num_ranks if isinstance(strategy, AccelerateConfig) and strategy.wrap == "fsdp" else 1


def predict_rank(
    config: Config,
    model: nn.Module,
    *,
    num_ranks: int,
    rank: int,
    activation_bytes: int | None,
    communication: int | None = None,
) -> RankMemory:
    """What one rank of a job holds.

    Args:
        config: How it trains, and how the model is distributed.
        model: The whole model, not distributed.
        num_ranks: Of the job.
        rank: One of them.
        activation_bytes: What a micro-batch keeps for backward. None: not known.
        communication: Bytes of the buffers of the communication. None: not known.
    """
    shards = count_shards(config, num_ranks)
    return predict_memory(
        model.parameters(), model.buffers(), num_shards=shards, rank=rank % shards, mode=config.train.mode,
        activation_bytes=activation_bytes, communication=communication,
    )  # fmt: skip


def predict_job(config: Config, *, num_ranks: int, rank: int) -> RankMemory:
    """What one rank of a job will hold, from its configuration alone; nothing is computed or allocated.

    Activations are predicted for fp32 and tf32 only: which operations autocast runs in which format depends on the
    device.
    """
    train, kept = config.train, None
    with torch.device("meta"):
        model = Transformer(train.model, activation_checkpointing=train.activation_checkpointing)
        tokens = [torch.zeros(train.micro_batch, train.seq_len, dtype=torch.int64) for _ in range(2)]
    if train.mode != "forward" and train.precision in ("fp32", "tf32"):
        kept = profile_model(model, tokens, passes=0).rows[0].activation_bytes
    return predict_rank(config, model, num_ranks=num_ranks, rank=rank, activation_bytes=kept)
