"""How much arithmetic a micro-step is: counted from the operations that are dispatched, once per shape."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from distprof.config.schema import TrainConfig
from distprof.facts.run import Work
from distprof.train.analytic_flops import analytic_flops
from distprof.train.model import Transformer


def count_work(train: TrainConfig) -> Work:
    """Counts one micro-step of one rank on the meta device: nothing is computed and no memory is taken.

    A multiply and an add are two FLOPs; matrix products and attention count, element-wise work does not. On the meta
    device attention is counted as well, which it is not on a CPU.

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
        with FlopCounterMode(display=False) as counter:
            loss = model(tokens, tokens)
            if train.mode != "forward":
                loss.backward()
    return int(counter.get_total_flops()), sum(parameter.numel() for parameter in model.parameters())
