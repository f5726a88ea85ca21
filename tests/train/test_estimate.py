"""What a job will compute and hold: FLOPs as dispatched against the formula and counts by hand, and what cannot fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from distprof.config.schema import ModelConfig, TrainConfig
from distprof.errors import UsageError
from distprof.train.estimate import analytic_flops, count_work, require_memory
from tests.train.test_model import GPT2, TOY

CS336 = replace(GPT2, vocab_size=10_000, layers=32, width=2560, heads=32, ffn_width=10_240, style="llama")


def make_train(model: ModelConfig, **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "mode": "train", "steps": 1, "warmup_steps": 0, "seq_len": 128, "micro_batch": 1, "grad_accum": 1,
        "precision": "fp32", "activation_checkpointing": False, "compile": False, "clip_norm": 1.0,
        "learning_rate": 1e-3, "fused_optimizer": True, "model": model,
    }  # fmt: skip
    return TrainConfig(**{**values, **changes})


@pytest.mark.parametrize(
    "model",
    [
        GPT2,
        replace(GPT2, layers=3, width=1024, heads=16),
        replace(GPT2, layers=4, width=1280, heads=20),
        replace(GPT2, layers=5, width=1600, heads=25),
        replace(CS336, layers=3),
    ],
    ids=["small", "medium", "large", "xl", "cs336"],
)
def test_counted_and_analytic_agree(model: ModelConfig) -> None:
    """The published widths; one of them in its whole depth, because every block adds the same."""
    work = count_work(make_train(model))
    assert work.analytic_flops_per_micro_step is not None
    assert abs(work.model_flops_per_micro_step / work.analytic_flops_per_micro_step - 1) < 0.01
    assert work.hardware_flops_per_micro_step == work.model_flops_per_micro_step


def test_the_published_multiply_adds_of_gpt2_over_64_tokens() -> None:
    flops = count_work(make_train(GPT2, seq_len=64, mode="forward")).model_flops_per_micro_step
    blocks = 12 * (4 * 768**2 + 2 * 768 * 3072) * 64
    head = 768 * 50_257 * 64
    attention = 12 * 2 * 64 * 64 * 768
    assert flops == 2 * (blocks + head + attention)
    assert flops / 2 == pytest.approx(7.98e9, rel=0.005)


@pytest.mark.parametrize(("style", "matrices"), [("gpt2", 2), ("llama", 3)])
def test_a_toy_by_hand(style: Any, matrices: int) -> None:
    model = replace(TOY, style=style)  # 2 layers of width 16, inner 64, 61 tokens
    forward = 2 * 3 * 8 * (2 * (4 * 16 * 16 + matrices * 16 * 64) + 16 * 61) + 3 * 2 * 4 * 8 * 8 * 16
    for mode, factor in (("forward", 1), ("backward", 2), ("forward_backward", 3), ("train", 3)):
        assert analytic_flops(model, batch=3, seq_len=8, mode=mode) == factor * forward
        counted = count_work(make_train(model, seq_len=8, micro_batch=3, mode=mode))
        assert counted.model_flops_per_micro_step == factor * forward


def test_recomputation_is_work_of_the_hardware_and_not_of_the_model() -> None:
    plain, recomputing = (count_work(make_train(TOY, seq_len=16, activation_checkpointing=on)) for on in (False, True))
    assert recomputing.model_flops_per_micro_step == plain.model_flops_per_micro_step
    forward = count_work(make_train(TOY, seq_len=16, mode="forward")).model_flops_per_micro_step
    extra = recomputing.hardware_flops_per_micro_step - plain.hardware_flops_per_micro_step
    assert 0 < extra < forward  # the blocks again, without the head and what no gradient needs


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
def test_the_formula_by_hand(model: ModelConfig, seq_len: int, flops: int) -> None:
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


def make_config(mode: str, strategy: str) -> Any:
    return SimpleNamespace(
        train=SimpleNamespace(mode=mode),
        strategy=SimpleNamespace(name=strategy),
        parallel=SimpleNamespace(model_ranks=1),
    )


@pytest.mark.parametrize(
    ("mode", "strategy", "needed_bytes"),
    [
        ("train", "ddp", 4 * 100 * 4 * 4),  # weights, gradients, two moments: four copies on four ranks
        ("train", "accelerate", 4 * 100 * 4 * 4),
        ("train", "fsdp", 4 * 100 * (4 + 3)),
        ("forward_backward", "ddp", 4 * 100 * 4 * 2),
        ("forward", "fsdp", 4 * 100 * 4),
    ],
)
def test_the_limit_is_where_the_sum_says(mode: str, strategy: str, needed_bytes: int) -> None:
    require_memory(make_config(mode, strategy), 100, num_ranks=4, total_bytes=needed_bytes)
    with pytest.raises(UsageError, match="100 parameters on 4 rank"):
        require_memory(make_config(mode, strategy), 100, num_ranks=4, total_bytes=needed_bytes - 1)


def test_this_machine_holds_a_small_model() -> None:
    require_memory(make_config("train", "ddp"), 1_000_000, num_ranks=2)
