"""The model: published sizes, causality, and that nothing depends on how it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from distprof.config.schema import ModelConfig
from distprof.train import model as module
from distprof.train.model import Rotation, Transformer, make_rotation, rotate

GPT2 = ModelConfig(vocab_size=50257, layers=12, width=768, heads=12, ffn_width=None, max_seq_len=1024, style="gpt2")
TOY = ModelConfig(vocab_size=61, layers=2, width=16, heads=2, ffn_width=None, max_seq_len=32, style="gpt2")
STYLES: Any = pytest.mark.parametrize("style", ["gpt2", "llama"])


@pytest.mark.parametrize(
    ("layers", "width", "heads", "parameters"),
    [
        (12, 768, 12, 124_439_808),
        (24, 1024, 16, 354_823_168),
        (36, 1280, 20, 774_030_080),
        (48, 1600, 25, 1_557_611_200),
    ],
)
def test_gpt2_has_its_published_sizes(layers: int, width: int, heads: int, parameters: int) -> None:
    with torch.device("meta"):
        model = Transformer(replace(GPT2, layers=layers, width=width, heads=heads))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_the_gated_model_has_three_matrices_and_a_head_of_its_own() -> None:
    config = replace(GPT2, vocab_size=10_000, layers=32, width=2560, heads=32, ffn_width=10_240, style="llama")
    with torch.device("meta"):
        model = Transformer(config)
    block = 4 * 2560**2 + 3 * 2560 * 10_240 + 2 * 2560
    assert sum(parameter.numel() for parameter in model.parameters()) == 32 * block + 2 * 10_000 * 2560 + 2560
    assert list(model.buffers()) == []


@STYLES
def test_a_token_sees_no_later_one(style: Any) -> None:
    torch.manual_seed(0)
    model = Transformer(replace(TOY, style=style))
    tokens = torch.randint(61, (1, 12))
    later = tokens.clone()
    later[0, 8:] = (later[0, 8:] + 1) % 61
    first, second = model(tokens), model(later)
    torch.testing.assert_close(first[0, :8], second[0, :8])
    assert not torch.allclose(first[0, 8:], second[0, 8:])


@STYLES
def test_a_fresh_model_knows_nothing_and_learns_a_batch(style: Any) -> None:
    torch.manual_seed(0)
    model = Transformer(replace(TOY, style=style))
    tokens, targets = torch.randint(61, (2, 4, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(61.0).log().item(), rel=0.05)
    assert losses[-1] < 0.5 * losses[0]


@STYLES
def test_recomputation_changes_nothing(style: Any) -> None:
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = Transformer(replace(TOY, style=style), activation_checkpointing=checkpointing)
        tokens = torch.arange(32).view(2, 16)
        model(tokens, tokens).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_a_model_made_on_meta_can_be_initialised_later() -> None:
    with torch.device("meta"):
        model = Transformer(TOY)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.init_weights()
    assert model.head.weight is model.token_embedding.weight
    torch.manual_seed(0)
    usual = Transformer(TOY)
    torch.manual_seed(0)
    usual.init_weights()
    for left, right in zip(model.parameters(), usual.parameters(), strict=True):
        torch.testing.assert_close(left, right)


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    rotation = make_rotation(10, 8, torch.device("cpu"))
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8).expand(2, 1, 1, 10, 8)
    turned_query, turned_key = rotate(query, rotation), rotate(key, rotation)
    torch.testing.assert_close(turned_query.norm(dim=-1), query.norm(dim=-1))
    scores = (turned_query @ turned_key.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(scores[5, 2], scores[9, 6])
    assert not torch.allclose(scores[5, 2], scores[5, 3])


@pytest.mark.sharding
def test_sharding_in_bf16_leaves_the_angles_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: set[torch.dtype] = set()

    def watch(values: Tensor, rotation: Rotation) -> Tensor:
        seen.update((values.dtype, rotation.cosine.dtype, rotation.sine.dtype))
        return rotate(values, rotation)

    monkeypatch.setattr(module, "rotate", watch)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model, tokens = Transformer(replace(TOY, style="llama")), torch.arange(32).view(2, 16)
        options: Any = {
            "mesh": init_device_mesh("cpu", (1,)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        }
        for block in model.blocks:
            fully_shard(block, **options)
        fully_shard(model, **options)
        model(tokens, tokens).backward()
    finally:
        dist.destroy_process_group()
    assert seen == {torch.bfloat16, torch.float32}  # the values in the precision of the run, the angles not


@STYLES
def test_compiled_blocks_compute_the_same(style: Any) -> None:
    torch.manual_seed(0)
    model = Transformer(replace(TOY, style=style))
    tokens = torch.arange(32).view(2, 16)
    usual = model(tokens, tokens)
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model(tokens, tokens), usual)
