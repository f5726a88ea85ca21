"""The formula: a published size by hand, and what must hold for any model. Counted FLOPs: tests/train."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from distprof.config.schema import ModelConfig
from distprof.train.estimate import analytic_flops


def make_model(**changes: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "vocab_size": 50257, "layers": 12, "width": 768, "heads": 12, "ffn_width": None, "max_seq_len": 1024,
        "style": "gpt2",
    }  # fmt: skip
    return ModelConfig(**{**values, **changes})


MODELS = some.builds(
    make_model,
    layers=some.integers(1, 50),
    width=some.sampled_from([64, 768, 2560]),
    ffn_width=some.sampled_from([None, 96, 10_240]),
    style=some.sampled_from(["gpt2", "llama"]),
)


@pytest.mark.parametrize(
    ("model", "seq_len", "flops"),
    [
        # per block 7,077,888 weights, head 38,597,376; squares 12 x 2 x 64^2 x 768; all times 2
        (make_model(), 64, 2 * (12 * 7_077_888 * 64 + 38_597_376 * 64 + 75_497_472)),
        # gated: 4 x 2560^2 + 3 x 2560 x 10240 = 104,857,600 weights in each of 2 blocks, head 25,600,000
        (
            make_model(style="llama", layers=2, width=2560, ffn_width=10_240, vocab_size=10_000),
            1,
            2 * (2 * 104_857_600 + 25_600_000 + 2 * 2 * 2560),
        ),
    ],
    ids=["gpt2_small", "gated"],
)
def test_by_hand(model: ModelConfig, seq_len: int, flops: int) -> None:
    assert analytic_flops(model, batch=1, seq_len=seq_len, mode="forward") == flops


@given(MODELS, some.integers(1, 8), some.integers(1, 1024))
def test_sequences_add_up_and_backward_is_twice_forward(model: ModelConfig, batch: int, seq_len: int) -> None:
    one = analytic_flops(model, batch=1, seq_len=seq_len, mode="forward")
    assert analytic_flops(model, batch=batch, seq_len=seq_len, mode="forward") == batch * one
    for mode in ("forward_backward", "train"):
        assert analytic_flops(model, batch=batch, seq_len=seq_len, mode=mode) == 3 * batch * one


@given(MODELS, some.integers(1, 512))
def test_only_attention_grows_with_the_square(model: ModelConfig, seq_len: int) -> None:
    short, long = (analytic_flops(model, batch=1, seq_len=size, mode="forward") for size in (seq_len, 2 * seq_len))
    assert long - 2 * short == 2 * (4 * model.layers * model.width * seq_len**2)
