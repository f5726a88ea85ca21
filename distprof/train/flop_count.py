"""FLOPs of a micro-step: counted from the operations that torch dispatches, and by formula as a check."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from distprof.config.schema import ModelConfig, TrainConfig
from distprof.facts.run import Work
from distprof.modules.formulas import FORMULAS
from distprof.train.model import Transformer


def count_work(train: TrainConfig) -> Work:
    """Counts one micro-step of one rank on the meta device, without computing or allocating anything.

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
