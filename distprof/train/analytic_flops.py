"""FLOPs of the model by formula: what the counted ones are checked against."""

from __future__ import annotations

from distprof.config.schema import ModelConfig


def analytic_flops(model: ModelConfig, *, batch: int, seq_len: int, mode: str) -> int:
    """FLOPs of one micro-step of one rank; a multiply and an add are two.

    Forward, per token: 2 x the weights of every matrix (attention 4 w^2; feed-forward 2 or, gated, 3 times w x f; head
    w x v), and 4 x seq_len x w per layer for the scores and the weighted values, over the whole square as the kernels
    are credited with, not its causal half. Backward is twice forward. Norms, activations and look-ups do not count.
    This is the count of Narayanan et al. (arXiv:2104.04473, appendix) written out per matrix.

    Args:
        model: The sizes.
        batch: Sequences per micro-step.
        seq_len: Tokens per sequence.
        mode: "forward", else forward and backward.
    """
    width, inner = model.width, model.ffn_width or 4 * model.width
    matrices = 4 * width * width + (3 if model.style == "llama" else 2) * width * inner
    per_token = 2 * (model.layers * matrices + width * model.vocab_size) + 4 * model.layers * seq_len * width
    return batch * seq_len * per_token * (1 if mode == "forward" else 3)
