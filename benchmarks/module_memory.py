"""Activations as `profile_model` predicts them without memory, beside what torch's profiler saw the CPU allocate."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from distprof.modules.profile import choose_loss, profile_model
from distprof.modules.unallocated import Building, Unallocated

Made = tuple[nn.Module, Any]
BATCH, LENGTH = 2, 256
WIDTHS: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 4096,
}  # fmt: skip
PRE, POST = "before forward", "after forward"


class Reader(nn.Module):
    """Two layers of an LSTM over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(4096, 256), nn.LSTM(256, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 4096)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token."""
        scores: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return scores


def print_table() -> None:
    """Prints the Markdown table."""
    print("| model | attention | precision | checkpointing | predicted | the CPU's allocator | |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: |")
    for name, attention, checkpointing, autocast in _list_cases():
        with Building():
            model, inputs = _make(name, attention, checkpointing)
        row = profile_model(model, inputs, autocast=autocast, unallocated=Unallocated()).rows[0]
        predicted, measured = row.activation_bytes or 0, _measure(*_make(name, attention, checkpointing), autocast)
        cells = (
            name, attention, "fp32" if autocast is None else "bf16", "yes" if checkpointing else "no",
            f"{predicted:,}", f"{measured:,}", f"{100 * (predicted / measured - 1):+.1f} %",
        )  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


def _list_cases() -> Iterator[tuple[str, str, bool, torch.dtype | None]]:
    for name in ("Llama", "Qwen3", "Mixtral", "GPT2", "ViT", "Whisper", "LSTM"):
        for attention in ("sdpa",) if name == "LSTM" else ("sdpa", "eager"):
            for checkpointing in (False,) if name == "LSTM" else (False, True):
                for autocast in (None, torch.bfloat16):
                    yield name, attention, checkpointing, autocast


def _measure(model: nn.Module, inputs: Any, autocast: torch.dtype | None) -> int:
    """Bytes that the allocator gave out in forward and has not got back when only the loss is held."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        with record_function(PRE):
            pass
        with contextlib.nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast):
            output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
            loss = choose_loss(output)
        del output
        with record_function(POST):
            pass
    assert loss.requires_grad
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: int(event.start_ns()))
    start, end = (next(each.start_ns() for each in events if each.name() == name) for name in (PRE, POST))
    return sum(each.nbytes() for each in events if each.name() == "[memory]" and start < each.start_ns() < end)


def _make(name: str, attention: str, checkpointing: bool) -> Made:
    """As it is trained: without a cache."""
    tokens = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    if name == "LSTM":
        return Reader(), [tokens]
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    head, sizes, give = _CONFIGURATIONS[name]
    config = getattr(transformers, f"{name}Config")(**sizes)
    config.use_cache, config._attn_implementation = False, attention
    model: nn.Module = getattr(transformers, f"{name}{head}")(config).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    return model, give(tokens)


def _give_tokens(tokens: Tensor) -> dict[str, Tensor]:
    return {"input_ids": tokens, "labels": tokens.clone()}


def _give_images(tokens: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, 128, 128), "labels": tokens[:, 0]}


def _give_sound(tokens: Tensor) -> dict[str, Tensor]:
    return {"input_features": torch.randn(BATCH, 80, 2 * LENGTH), "labels": tokens[:, :64]}


_CONFIGURATIONS: dict[str, tuple[str, dict[str, Any], Callable[[Tensor], dict[str, Tensor]]]] = {
    "Llama": ("ForCausalLM", WIDTHS, _give_tokens),
    "Qwen3": ("ForCausalLM", {**WIDTHS, "head_dim": 32}, _give_tokens),
    "Mixtral": ("ForCausalLM", {**WIDTHS, "num_local_experts": 4}, _give_tokens),
    "GPT2": ("LMHeadModel", {
        "n_embd": 256, "n_layer": 4, "n_head": 8, "vocab_size": 4096, "bos_token_id": 0, "eos_token_id": 0,
    }, _give_tokens),
    "ViT": ("ForImageClassification", {
        "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
        "image_size": 128, "patch_size": 8,
    }, _give_images),
    "Whisper": ("ForConditionalGeneration", {
        "d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 8,
        "decoder_attention_heads": 8, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "vocab_size": 4096,
        "max_source_positions": LENGTH, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }, _give_sound),
}  # fmt: skip
