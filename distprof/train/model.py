"""One transformer in two styles: GPT-2 as published, and Llama's (gated feed-forward, rotary positions, RMSNorm)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from distprof.config.schema import ModelConfig

ROTARY_BASE = 10_000.0


class Transformer(nn.Module):
    """Decoder-only language model. It includes the loss, so that a wrapper sees one forward per micro-step."""

    def __init__(self, config: ModelConfig, *, activation_checkpointing: bool = False) -> None:
        """Builds and initialises the model on the default device; ``meta`` takes no memory."""
        super().__init__()
        self.config, self._checkpointing = config, activation_checkpointing
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.max_seq_len, config.width) if config.style == "gpt2" else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = make_norm(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.init_weights()

    def init_weights(self) -> None:
        """GPT-2's initialisation: normal with 0.02, and less for projections into the residual stream, by depth."""
        if self.config.style == "gpt2":
            self.head.weight = self.token_embedding.weight  # again: ``to_empty`` gives each module its own tensor
        residual = 0.02 / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=residual if name.endswith("project.weight") else 0.02)
            else:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Mean cross-entropy, float32 scalar; without targets the logits, ``[batch, seq_len, vocab_size]``.

        Args:
            tokens: int64 ``[batch, seq_len]``.
            targets: int64 ``[batch, seq_len]``.
        """
        hidden = self.token_embedding(tokens)
        rotation = None
        if self.position_embedding is not None:
            hidden = hidden + self.position_embedding(torch.arange(tokens.shape[1], device=tokens.device))
        else:
            # Computed rather than a buffer, so that there is nothing for a wrapper to shard or broadcast.
            rotation = make_rotation(tokens.shape[1], self.config.width // self.config.heads, tokens.device)
        for block in self.blocks:
            if self._checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(block, hidden, rotation, use_reentrant=False)
            else:
                hidden = block(hidden, rotation)
        logits: Tensor = self.head(self.final_norm(hidden))
        if targets is None:
            return logits
        loss: Tensor = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        return loss


class Rotation:
    """Rotary angles as float32 ``[seq_len, head_width / 2]`` each.

    Neither a tuple nor a dataclass: FSDP2 looks for tensors inside those and casts them to the run's precision.
    """

    def __init__(self, cosine: Tensor, sine: Tensor) -> None:
        self.cosine, self.sine = cosine, sine


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = make_norm(config), Attention(config)
        self.feed_forward_norm = make_norm(config)
        self.feed_forward = GatedFeedForward(config) if config.style == "llama" else FeedForward(config)

    def forward(self, hidden: Tensor, rotation: Rotation | None) -> Tensor:
        """``[batch, seq_len, width]`` to the same."""
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation)
        result: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return result


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = config.style == "gpt2"
        self.head_width = config.width // config.heads
        self.query_key_value = nn.Linear(config.width, 3 * config.width, bias=bias)
        self.project = nn.Linear(config.width, config.width, bias=bias)

    def forward(self, hidden: Tensor, rotation: Rotation | None) -> Tensor:
        """``[batch, seq_len, width]`` to the same."""
        batch, seq_len, _ = hidden.shape
        # Under tensor parallelism this rank has a part of the heads.
        parts = self.query_key_value(hidden).view(batch, seq_len, 3, -1, self.head_width)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, seq_len, -1))
        return projected


class FeedForward(nn.Module):
    """GPT-2's feed-forward: one inner layer with GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner = config.ffn_width or 4 * config.width
        self.expand, self.project = nn.Linear(config.width, inner), nn.Linear(inner, config.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[batch, seq_len, width]`` to the same."""
        result: Tensor = self.project(functional.gelu(self.expand(hidden), approximate="tanh"))
        return result


class GatedFeedForward(nn.Module):
    """SwiGLU: the inner layer is gated by a second one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner = config.ffn_width or 4 * config.width
        self.gate, self.expand = (nn.Linear(config.width, inner, bias=False) for _ in range(2))
        self.project = nn.Linear(inner, config.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[batch, seq_len, width]`` to the same."""
        result: Tensor = self.project(functional.silu(self.gate(hidden)) * self.expand(hidden))
        return result


def make_norm(config: ModelConfig) -> nn.Module:
    """LayerNorm for style gpt2, RMSNorm for style llama."""
    return nn.LayerNorm(config.width) if config.style == "gpt2" else nn.RMSNorm(config.width, eps=1e-5)


def make_rotation(seq_len: int, head_width: int, device: torch.device) -> Rotation:
    """Cosine and sine of the rotary angles (arXiv:2104.09864)."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, head_width, 2, device=device) / head_width)
    angles = torch.outer(torch.arange(seq_len, device=device), frequencies)
    return Rotation(angles.cos(), angles.sin())


def rotate(values: Tensor, rotation: Rotation) -> Tensor:
    """Rotates each pair of features by its position's angle, ``[batch, heads, seq_len, head_width]`` to the same."""
    left, right = values.float().chunk(2, dim=-1)
    cosine, sine = rotation.cosine, rotation.sine
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1).to(values.dtype)
