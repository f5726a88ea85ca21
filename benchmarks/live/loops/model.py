"""The model that the loops train: much arithmetic per parameter, so that steps compute rather than communicate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 256


class TokenModel(nn.Module):
    """Predicts a token from the one before, through residual blocks."""

    def __init__(self, *, width: int, depth: int) -> None:
        """Makes ``depth`` blocks of a hidden size of four times ``width``."""
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of ``tokens``, ``[sequences, length]``."""
        state = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            state = block(state)
        return nn.functional.cross_entropy(self.head(state).flatten(0, 1), tokens[:, 1:].flatten())


class ResidualBlock(nn.Module):
    """A feed-forward block."""

    def __init__(self, width: int) -> None:
        """Makes its two layers."""
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, state: Tensor) -> Tensor:
        """Adds what the block computes."""
        added: Tensor = state + self.narrow(nn.functional.gelu(self.wide(self.norm(state))))
        return added


def draw_tokens(generator: torch.Generator, sequences: int, length: int) -> Tensor:
    """A batch of random tokens."""
    return torch.randint(VOCABULARY, (sequences, length), generator=generator)
