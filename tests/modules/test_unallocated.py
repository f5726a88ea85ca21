"""What a model would compute and keep, without computing or allocating it: as it is when it runs on this CPU."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from distprof.modules.memory import list_units, predict_gathered
from distprof.modules.profile import profile_model
from distprof.modules.unallocated import VALUES_NEEDED, Building, Unallocated
from tests.modules.architectures import ARCHITECTURES

Made = tuple[nn.Module, Any]


class Reader(nn.Module):
    """An LSTM over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(50, 32), nn.LSTM(32, 64, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.embedding(tokens))[0]
        return states


class Pictures(nn.Module):
    """torchvision's way: convolutions, batch norms, in-place activations, pooling, dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, groups=4), nn.GELU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, 10))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.features(images).flatten(1)), labels)


class Questioner(nn.Module):
    """Looks at tokens, at a mask and at a buffer, as models of Transformers do, and at no parameter's value."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.register_buffer("positions", torch.arange(64))
        self.register_buffer("table", torch.randn(2**20), persistent=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        assert mask.all() and int(tokens.max()) == 1 and self.positions[: tokens.shape[1]].diff().eq(1).all()
        causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        states = self.embedding(tokens).unsqueeze(1) * self.table[:16]
        return functional.scaled_dot_product_attention(states, states, states, causal if not causal.all() else None)


class Choice(nn.Module):
    """Each token goes to two of four experts, in a loop over those that were chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, states: Tensor) -> Tensor:
        scores, chosen = self.router(states).topk(2)
        result = torch.zeros_like(states)
        for number in chosen.unique().tolist():
            rows, place = torch.where(chosen == number)
            result.index_add_(0, rows, self.experts[number](states[rows]) * scores[rows, place, None])
        return result


def measure_kept(model: nn.Module, inputs: Any, autocast: torch.dtype | None) -> int:
    """Bytes that autograd saves of a real run, without parameters, buffers and inputs: by torch's own hooks."""
    held = (*model.parameters(), *model.buffers(), *tree_leaves(inputs))
    left_out = {each.untyped_storage()._cdata for each in held if isinstance(each, Tensor)}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in left_out:
            saved[storage._cdata] = storage
        return tensor

    cast = contextlib.nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), cast:
        result = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    assert result is not None
    return sum(each.nbytes() for each in saved.values())


def compare(make: Callable[[], Made], *, autocast: torch.dtype | None = None, error_ratio: float = 0.01) -> None:
    """That a model without memory is found to compute and to keep what it does and keeps when it runs."""
    run = Unallocated()
    with Building():
        model, inputs = make()
    before = [(name, each, each.device) for name, each in (*model.named_parameters(), *model.named_buffers())]
    found = profile_model(model, inputs, unallocated=run, autocast=autocast)
    after = [(name, each, each.device) for name, each in (*model.named_parameters(), *model.named_buffers())]
    assert all(one[1] is other[1] for one, other in zip(before, after, strict=True)) and found.device == "meta"
    model, inputs = make()
    real = profile_model(model, inputs, passes=0, autocast=autocast)
    kept = measure_kept(model, inputs, autocast)
    assert found.rows[0].activation_bytes == pytest.approx(kept, rel=error_ratio) and kept > 0
    assert found.rows[0].activation_bytes == pytest.approx(real.rows[0].activation_bytes, rel=0.01)
    assert found.returned_bytes == real.returned_bytes
    assert found.working_bytes == pytest.approx(real.working_bytes, rel=0.01)
    assert found.rows[0].total_flops == real.rows[0].total_flops


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", [*ARCHITECTURES, "lstm", "pictures"])
def test_of_plain_torch(name: str, autocast: torch.dtype | None) -> None:
    own: dict[str, Callable[[], Made]] = {
        "lstm": lambda: (Reader(), [torch.ones(4, 32, dtype=torch.int64)]),
        "pictures": lambda: (Pictures(), [torch.randn(2, 3, 16, 16), torch.ones(2, dtype=torch.int64)]),
    }
    if name == "lstm" and autocast is not None and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor cannot run an LSTM in bf16")
    compare(own.get(name) or (lambda: (ARCHITECTURES[name][0](), ARCHITECTURES[name][1]())), autocast=autocast)


SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 64,
}  # fmt: skip
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("ForCausalLM", SMALL),
    "Qwen3": ("ForCausalLM", {**SMALL, "head_dim": 16}),
    "Mixtral": ("ForCausalLM", {**SMALL, "num_local_experts": 4}),
    "GPT2": ("LMHeadModel", {
        "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 97, "n_positions": 64, "bos_token_id": 0,
        "eos_token_id": 0,
    }),
    "ViT": ("ForImageClassification", {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 32, "patch_size": 8,
    }),
    "Whisper": ("ForConditionalGeneration", {
        "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 97,
        "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 32, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    }),
    "ResNet": ("ForImageClassification", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2]}),
}  # fmt: skip


def make_of_transformers(name: str, *, checkpointing: bool, attention: str) -> Made:
    """As it is trained: without a cache."""
    transformers = pytest.importorskip("transformers")
    head, sizes = CONFIGURATIONS[name]
    config = getattr(transformers, f"{name}Config")(**sizes)
    config.use_cache = False
    if name != "ResNet":
        config._attn_implementation = attention
    model = getattr(transformers, f"{name}{head}")(config).train()
    if checkpointing and model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    tokens = torch.ones(2, 32, dtype=torch.int64)
    if head == "ForImageClassification":
        return model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.ones(2, dtype=torch.int64)}
    if name == "Whisper":
        return model, {"input_features": torch.randn(2, 16, 64), "labels": tokens[:, :16]}
    return model, {"input_ids": tokens, "labels": tokens.clone()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpointing", "attention", "autocast"),
    [(False, "sdpa", None), (True, "sdpa", None), (False, "eager", torch.bfloat16), (False, "sdpa", torch.bfloat16)],
    ids=["sdpa", "checkpointing", "eager-bf16", "sdpa-bf16"],
)
@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_of_transformers(name: str, checkpointing: bool, attention: str, autocast: torch.dtype | None) -> None:
    """With checkpointing, hooks miss what checkpoints hold themselves, such as masks: an instrument of 15 % there."""
    compare(
        lambda: make_of_transformers(name, checkpointing=checkpointing, attention=attention), autocast=autocast,
        error_ratio=0.15 if checkpointing else 0.01,
    )  # fmt: skip


def test_small_values_are_real_and_large_ones_are_not_there() -> None:
    compare(lambda: (Questioner(), {"tokens": torch.ones(2, 8, dtype=torch.int64), "mask": torch.ones(2, 8)}))


def test_experts_get_equal_parts() -> None:
    run = Unallocated()
    with Building():
        model, states = Choice(), torch.randn(6, 16)
    report = profile_model(model, states, unallocated=run)
    router, line = 2 * 6 * 16 * 4, 2 * 16 * 16
    assert report.rows[0].total_flops.forward == router + 2 * 6 * line
    assert [row.total_flops.forward for row in report.rows if row.name[:8] == "experts."] == [3 * line] * 4
    assert report.notes == ("what is chosen by value (top-k, maximum), such as experts, is taken as spread evenly",)


class Adding(nn.Linear):
    """Adds what it computes to small numbers that it makes, several times."""

    def forward(self, states: Tensor) -> Tensor:
        result, rows = torch.zeros_like(states), torch.arange(states.shape[0])
        for _ in range(3):
            result.add_(super().forward(states)).index_add_(0, rows, super().forward(states))
        return result


def test_a_small_tensor_may_be_written_into() -> None:
    """In a torch that corrupts its heap by that, the memory that is freed at the end is another's."""
    compare(lambda: (Adding(16, 16), [torch.randn(6, 16)]))
    gc.collect()


class Branching(nn.Linear):
    """Asks for the value of what it computes."""

    def forward(self, states: Tensor) -> Tensor:
        result = super().forward(states)
        return result if result.sum() > 0 else -result


def test_a_value_that_is_not_computed_is_refused_and_the_model_left_as_it_was() -> None:
    with torch.device("meta"):
        model, states = Branching(4, 4), torch.randn(2, 4)
    weight = model.weight
    with pytest.raises(VALUES_NEEDED):
        profile_model(model, states)
    assert model.weight is weight and weight.is_meta and weight.grad is None


def test_a_model_of_140_gib_takes_no_memory() -> None:
    """Llama's widths at 70 B parameters, two layers of the eighty, 8,192 tokens: 2.1 GiB in bf16, and its loss."""
    resource = pytest.importorskip("resource")
    transformers = pytest.importorskip("transformers")
    with Building():
        config = transformers.LlamaConfig(
            hidden_size=8192, intermediate_size=28672, num_hidden_layers=2, num_attention_heads=64,
            num_key_value_heads=8, vocab_size=128256, use_cache=False,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
        tokens = torch.ones(1, 8192, dtype=torch.int64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = profile_model(model, {"input_ids": tokens, "labels": tokens}, unallocated=Unallocated())
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 2**19 or sys.platform == "darwin"
    layer = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
    rest = 2 * 128256 * 8192 + 8192
    assert report.rows[0].parameters == 2 * layer + rest
    kept = report.rows[0].activation_bytes
    assert kept is not None and kept > 4 * 8192 * 128256  # the loss alone keeps as much
    assert [type(each).__name__ for each in list_units(model)] == ["LlamaDecoderLayer"] * 2
    gathered = predict_gathered(
        model, dtype=torch.bfloat16, reduce_dtype=torch.float32, reshards=True, mode="train"
    )  # fmt: skip
    assert gathered == 2 * 2 * rest + 4 * layer + max(2 * 4 * layer, 4 * rest)
