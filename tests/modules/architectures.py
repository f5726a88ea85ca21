"""Small models of six architectures, to be profiled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from distprof.config.schema import ModelConfig
from distprof.train.model import Transformer


def make_transformer(style: str) -> nn.Module:
    config = ModelConfig(
        vocab_size=97, layers=2, width=32, heads=4, ffn_width=None, max_seq_len=64, style=style,  # type: ignore[arg-type]
    )  # fmt: skip
    return Transformer(config)


class Encoder(nn.Module):
    """BERT's way: torch's own encoder layers, and a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(97, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pooler = nn.Linear(32, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        pooled: Tensor = self.pooler(self.encoder(self.embedding(tokens))[:, 0])
        return pooled


class Translator(nn.Module):
    """T5's way: an encoder and a decoder that attends to it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(97, 32)
        self.both = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        mixed: Tensor = self.both(self.embedding(tokens), self.embedding(targets))
        return mixed @ self.embedding.weight.T  # functional: belongs to the model itself


class Residual(nn.Module):
    """ResNet's way."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False) for _ in range(2))
        self.head = nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        state = functional.relu(self.norms[0](self.stem(images)))
        for norm, convolution in zip(self.norms[1:], self.convolutions, strict=True):
            state = functional.relu(state + norm(convolution(state)))
        scores: Tensor = self.head(state.mean((2, 3)))
        return scores


class Mixture(nn.Module):
    """A mixture of experts; all tokens go to the expert of their position, so that it also runs without values."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        weights = self.router(tokens).softmax(-1)
        parts = [
            expert(chunk) * weight[..., number : number + 1]
            for number, (expert, chunk, weight) in enumerate(
                zip(self.experts, tokens.chunk(4), weights.chunk(4), strict=True)
            )
        ]
        return torch.cat(parts)


TOKENS = (2, 8)
ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[Tensor]]]] = {
    "gpt2": (lambda: make_transformer("gpt2"), lambda: [torch.ones(TOKENS, dtype=torch.int64)] * 2),
    "llama": (lambda: make_transformer("llama"), lambda: [torch.ones(TOKENS, dtype=torch.int64)] * 2),
    "bert": (Encoder, lambda: [torch.ones(TOKENS, dtype=torch.int64)]),
    "t5": (Translator, lambda: [torch.ones(TOKENS, dtype=torch.int64)] * 2),
    "resnet": (Residual, lambda: [torch.randn(2, 3, 8, 8)]),
    "mixture": (Mixture, lambda: [torch.randn(8, 5, 16)]),
}
