"""FLOPs: counted from what is dispatched, against the formula, and both against a count by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from distprof.config.schema import ModelConfig, TrainConfig
from distprof.train.estimate import analytic_flops, count_work
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
