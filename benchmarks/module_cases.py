"""Small models whose work is known by hand, one for each thing that counters of FLOPs get wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.nn import functional

from distprof.config.schema import ModelConfig
from distprof.train.model import Transformer

BATCH, LENGTH, WIDTH, WIDER = 2, 8, 32, 64
TOKENS = BATCH * LENGTH


class ModuleCase(Struct, frozen=True, kw_only=True):
    """A model, its input, and what it does by hand."""

    name: str
    make: Callable[[], nn.Module]
    give: Callable[[], list[Tensor]]
    derivation: str
    """How the multiply-adds of forward come about."""
    multiply_adds: int
    backward: int | None
    """Multiply-adds of backward, towards what needs a gradient. None: the model is run without gradients."""
    parameters: int


class FunctionalProduct(nn.Module):
    """A product outside of any submodule."""

    def __init__(self, equation: str | None = None) -> None:
        super().__init__()
        self.equation, self.weight = equation, nn.Parameter(torch.zeros(WIDER, WIDTH))

    def forward(self, states: Tensor) -> Tensor:
        """With ``torch.einsum``, or without an equation as a linear layer."""
        if self.equation is None:
            return functional.linear(states, self.weight)
        mixed: Tensor = torch.einsum(self.equation, states, self.weight)
        return mixed


class CalledTwice(nn.Module):
    """One layer called two times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, states: Tensor) -> Tensor:
        """The layer of the layer."""
        again: Tensor = self.layer(self.layer(states))
        return again


class AttentionAlone(nn.Module):
    """Fused attention alone, after a layer without which there would be no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Of a single head."""
        mixed = self.layer(states)[:, None]
        return functional.scaled_dot_product_attention(mixed, mixed, mixed)


def make_gpt2() -> nn.Module:
    """GPT-2 small, as published: the head is the embedding."""
    config = ModelConfig(
        vocab_size=50257, layers=12, width=768, heads=12, ffn_width=None, max_seq_len=1024, style="gpt2"
    )
    return Transformer(config)


def make_encoder() -> nn.Module:
    """In evaluation torch runs the whole layer as one operation."""
    return nn.TransformerEncoderLayer(WIDTH, 4, WIDER, batch_first=True).eval()


def give_states() -> list[Tensor]:
    """``[BATCH, LENGTH, WIDTH]``"""
    return [torch.zeros(BATCH, LENGTH, WIDTH)]


def list_cases() -> list[ModuleCase]:
    """All of them, from the simplest on."""
    square, wide, scores = WIDTH * WIDTH, WIDTH * WIDER, BATCH * LENGTH * LENGTH * WIDTH
    per_layer, head, gpt2 = 12 * 768**2, 768 * 50257, 64
    return [
        ModuleCase(
            name="linear layer on a sequence", make=lambda: nn.Linear(WIDTH, WIDER), give=give_states,
            derivation="16 tokens x 32 x 64", multiply_adds=TOKENS * wide, backward=TOKENS * wide,
            parameters=wide + WIDER,
        ),
        ModuleCase(
            name="two linear layers", give=give_states,
            make=lambda: nn.Sequential(nn.Linear(WIDTH, WIDER), nn.ReLU(), nn.Linear(WIDER, WIDTH)),
            derivation="16 tokens x 2 x 32 x 64; the first layer's backward needs no gradient of its input",
            multiply_adds=2 * TOKENS * wide, backward=3 * TOKENS * wide, parameters=2 * wide + WIDER + WIDTH,
        ),
        ModuleCase(
            name="functional linear", make=FunctionalProduct, give=give_states, derivation="16 tokens x 32 x 64",
            multiply_adds=TOKENS * wide, backward=TOKENS * wide, parameters=wide,
        ),
        ModuleCase(
            name="einsum", make=lambda: FunctionalProduct("btd,ed->bte"), give=give_states,
            derivation="16 tokens x 32 x 64", multiply_adds=TOKENS * wide, backward=TOKENS * wide, parameters=wide,
        ),
        ModuleCase(
            name="one layer called twice", make=CalledTwice, give=give_states, derivation="2 x 16 tokens x 32 x 32",
            multiply_adds=2 * TOKENS * square, backward=3 * TOKENS * square, parameters=square + WIDTH,
        ),
        ModuleCase(
            name="fused attention", make=AttentionAlone, give=give_states,
            derivation="16 tokens x 32 x 32, and scores and mixing 2 x (2 x 8 x 8 x 32)",
            multiply_adds=TOKENS * square + 2 * scores, backward=None, parameters=square,
        ),
        ModuleCase(
            name="grouped convolution", make=lambda: nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False),
            give=lambda: [torch.zeros(BATCH, 8, 8, 8)], derivation="2 x 64 places x 8 x 8 / 2 x 9",
            multiply_adds=2 * 64 * 8 * 4 * 9, backward=2 * 64 * 8 * 4 * 9, parameters=8 * 4 * 9,
        ),
        ModuleCase(
            name="transposed convolution", make=lambda: nn.ConvTranspose2d(8, 4, 3, stride=2, bias=False),
            give=lambda: [torch.zeros(BATCH, 8, 6, 6)], derivation="2 x 36 places of the input x 8 x 4 x 9",
            multiply_adds=2 * 36 * 8 * 4 * 9, backward=2 * 36 * 8 * 4 * 9, parameters=8 * 4 * 9,
        ),
        ModuleCase(
            name="encoder layer in evaluation", make=make_encoder, give=give_states,
            derivation="16 tokens x (4 x 32 x 32 + 2 x 32 x 64), and 2 x (2 x 8 x 8 x 32)",
            multiply_adds=TOKENS * (4 * square + 2 * wide) + 2 * scores, backward=None,
            parameters=4 * (square + WIDTH) + 2 * wide + WIDER + WIDTH + 4 * WIDTH,
        ),
        ModuleCase(
            name="LSTM", make=lambda: nn.LSTM(WIDTH, WIDER, batch_first=True), give=give_states,
            derivation="16 tokens x 4 x 64 x (32 + 64)", multiply_adds=TOKENS * 4 * WIDER * (WIDTH + WIDER),
            backward=None, parameters=4 * WIDER * (WIDTH + WIDER + 2),
        ),
        ModuleCase(
            name="GPT-2 small over 64 tokens", make=make_gpt2,
            give=lambda: [torch.zeros((1, gpt2), dtype=torch.int64)],
            derivation="64 x (12 x 12 x 768 x 768 + 768 x 50,257) + 12 x 2 x 64 x 64 x 768",
            multiply_adds=gpt2 * (12 * per_layer + head) + 12 * 2 * gpt2 * gpt2 * 768, backward=None,
            parameters=124_439_808,
        ),
    ]  # fmt: skip
