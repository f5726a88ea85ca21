"""What a job will compute and hold according to its configuration, on the meta device: nothing runs or is allocated."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from distprof.config.schema import AccelerateConfig, Config, FsdpConfig, ModelConfig, TrainConfig
from distprof.errors import UsageError
from distprof.facts.modules import RankMemory
from distprof.facts.run import Work
from distprof.modules.formulas import FORMULAS
from distprof.modules.memory import predict_memory, predict_training
from distprof.modules.profile import profile_model
from distprof.train.model import Transformer

FLOAT_BYTES = 4


def count_work(train: TrainConfig) -> Work:
    """Counts the FLOPs of one micro-step of one rank.

    A multiply and an add are two FLOPs. Matrix products and attention count, element-wise work does not. The formulas
    are those of the module profile.

    Args:
        train: The model, the sizes of a micro-batch, the mode, and whether activations are recomputed.
    """
    recomputes = train.activation_checkpointing and train.mode != "forward"
    model_flops, parameters = _count(train, checkpointing=False)
    return Work(
        parameters=parameters,
        model_flops_per_micro_step=model_flops,
        hardware_flops_per_micro_step=_count(train, checkpointing=True)[0] if recomputes else model_flops,
        analytic_flops_per_micro_step=analytic_flops(
            train.model, batch=train.micro_batch, seq_len=train.seq_len, mode=train.mode
        ),
    )


def _count(train: TrainConfig, *, checkpointing: bool) -> tuple[int, int]:
    """FLOPs of a micro-step, and the number of parameters."""
    with torch.device("meta"), torch.set_grad_enabled(train.mode != "forward"):
        model = Transformer(train.model, activation_checkpointing=checkpointing)
        tokens = torch.zeros(train.micro_batch, train.seq_len, dtype=torch.int64)
        with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
            loss = model(tokens, tokens)
            before = int(counter.get_total_flops()) if train.mode == "backward" else 0
            if train.mode != "forward":
                loss.backward()
    return int(counter.get_total_flops()) - before, sum(parameter.numel() for parameter in model.parameters())


def analytic_flops(model: ModelConfig, *, batch: int, seq_len: int, mode: str) -> int:
    """FLOPs of one micro-step of one rank; a multiply and an add are two.

    Forward, per token: 2 x the weights of every matrix (attention 4 w^2; feed-forward 2 or, gated, 3 times w x f; head
    w x v), and 4 x seq_len x w per layer for the scores and the weighted values, over the whole square that kernels are
    credited with, not its causal half. Backward is twice forward. Norms, activations and look-ups do not count.
    This is the count of Narayanan et al. (arXiv:2104.04473, appendix) written out per matrix.

    Args:
        model: The sizes.
        batch: Sequences per micro-step.
        seq_len: Tokens per sequence.
        mode: "forward" or "backward", else both.
    """
    width, inner = model.width, model.ffn_width or 4 * model.width
    matrices = 4 * width * width + (3 if model.style == "llama" else 2) * width * inner
    per_token = 2 * (model.layers * matrices + width * model.vocab_size) + 4 * model.layers * seq_len * width
    return batch * seq_len * per_token * {"forward": 1, "backward": 2}.get(mode, 3)


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
    holders = 1 if config.strategy.name == "fsdp" else max(1, num_ranks // config.parallel.model_ranks)
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
    """What one rank of a job will hold.

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
