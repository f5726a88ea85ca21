"""The configuration: frozen dataclasses, decoded strictly from what Hydra composed.

No torch here. `decode` refuses unknown keys and wrong types by name; `check` refuses combinations that cannot work.
Both raise `UsageError`, before any process group exists.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from distprof.decode import decode
from distprof.errors import UsageError

__all__ = ["Config", "check", "decode"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    vocab_size: int
    """Number of tokens the model knows."""
    layers: int
    """Number of transformer blocks."""
    width: int
    """Size of the residual stream."""
    heads: int
    """Attention heads; divides width."""
    ffn_width: int | None
    """Inner size of the feed-forward block. None: 4 x width."""
    max_seq_len: int
    """Longest sequence: the size of the position table of style gpt2."""
    style: Literal["gpt2", "llama"]
    """gpt2: LayerNorm, GELU, learned positions, tied head. llama: RMSNorm, gated SiLU, rotary positions."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    mode: Literal["train", "forward_backward", "forward"]
    """How much of a step is run."""
    steps: int
    """Measured optimizer steps, after the warm-up."""
    warmup_steps: int
    """Steps recorded and marked, and left out of every statistic."""
    seq_len: int
    """Tokens per sequence."""
    micro_batch: int
    """Sequences per rank and micro-step."""
    grad_accum: int
    """Micro-steps per optimizer step."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"]
    """Number format of the matrix products."""
    activation_checkpointing: bool
    """Recompute every block's forward in backward."""
    compile: bool
    """torch.compile on every block."""
    clip_norm: float | None
    """Largest gradient norm. None: no clipping, no grad_norm phase."""
    learning_rate: float
    """AdamW's learning rate."""
    fused_optimizer: bool
    """AdamW as one kernel over all parameters."""
    model: ModelConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SingleConfig:
    name: Literal["single"]
    """One process, no wrapper."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DdpConfig:
    name: Literal["ddp"]
    """DistributedDataParallel."""
    bucket_mb: float
    """Size of a gradient bucket in MiB."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FsdpConfig:
    name: Literal["fsdp"]
    """FSDP2, ``fully_shard`` by block."""
    reshard_after_forward: bool
    """Free the gathered parameters between forward and backward."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateConfig:
    name: Literal["accelerate"]
    """Accelerate's own prepare, backward, clip and step."""
    wrap: Literal["ddp", "fsdp"]
    """What Accelerate is asked to wrap the model in."""


StrategyConfig = SingleConfig | DdpConfig | FsdpConfig | AccelerateConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticDataConfig:
    name: Literal["synthetic"]
    """Random tokens, made before the first step."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextDataConfig:
    name: Literal["text"]
    """Bytes of UTF-8 text through a DataLoader."""
    path: str | None
    """A file or a folder. None: the Python standard library's own sources."""
    glob: str
    """Which files of a folder."""
    max_bytes: int
    """Read at most this much text."""
    workers: int
    """DataLoader worker processes per rank."""


DataConfig = SyntheticDataConfig | TextDataConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HardwareConfig:
    peak: float | Literal["auto", "measure", "none"]
    """Peak FLOP/s of one device: a number, from the table (auto), measured on the spot, or none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    level: Literal["off", "phases"]
    """What is recorded."""
    nvtx: bool | Literal["auto"]
    """NVTX ranges. auto: when a tool listens."""
    nvtx_module_depth: int
    """Module ranges down to this depth while NVTX is on; 0: none."""
    window_s: float
    """Seconds between two writes and gatherings of rows."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoLoggerConfig:
    name: Literal["none"]
    """The run folder only."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WandbConfig:
    name: Literal["wandb"]
    """Weights & Biases, from rank 0."""
    project: str
    """W&B project."""
    entity: str | None
    """W&B team or user. None: the login's default."""
    mode: Literal["auto", "online", "offline"]
    """auto: online when logged in."""
    init_timeout_s: float
    """Give up going online after this long, and log offline."""


LoggerConfig = NoLoggerConfig | WandbConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InjectConfig:
    rank: int | None
    """The rank that suffers. None: no injection."""
    phase: Literal["data", "forward", "backward", "grad_norm", "optimizer"]
    """The phase it suffers in."""
    delay_ms: float
    """Milliseconds of sleep per step, with action delay."""
    from_step: int
    """The first step it happens in; kill and fail happen in this one."""
    action: Literal["delay", "kill", "fail"]
    """Sleep, die by SIGKILL, or raise."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    name: str
    """Names the run folder and the W&B run."""
    runs_dir: str
    """Where run folders are made."""
    run_dir: str | None
    """One exact run folder instead."""
    seed: int
    """Seed of the weights; the data of rank R use seed + R."""
    device: Literal["auto", "cpu", "cuda"]
    """Where the model lives."""
    backend: Literal["auto", "nccl", "gloo"]
    """torch.distributed backend."""
    group_timeout_s: float
    """A rank that stays away this long from a collective ends the job."""
    train: TrainConfig
    strategy: StrategyConfig
    data: DataConfig
    hardware: HardwareConfig
    profile: ProfileConfig
    logger: LoggerConfig
    inject: InjectConfig


def check(config: Config, *, world_size: int, device_type: str) -> None:
    """Refuses combinations that cannot work.

    Args:
        config: The decoded configuration.
        world_size: Number of ranks of the job.
        device_type: "cpu" or "cuda", as resolved on this machine.

    Raises:
        UsageError: With the keys involved and what to change.
    """
    train, model, strategy = config.train, config.train.model, config.strategy
    positive = {
        "train.steps": train.steps, "train.seq_len": train.seq_len, "train.micro_batch": train.micro_batch,
        "train.grad_accum": train.grad_accum, "group_timeout_s": config.group_timeout_s,
        "train.model.layers": model.layers, "train.model.width": model.width, "train.model.heads": model.heads,
        "train.model.vocab_size": model.vocab_size, "profile.window_s": config.profile.window_s,
        "train.learning_rate": train.learning_rate,
    }  # fmt: skip
    for key, number in positive.items():
        _require(0 < number < math.inf, f"{key}={number}: must be above 0, and finite")
    _require(
        model.ffn_width is None or model.ffn_width > 0, f"train.model.ffn_width={model.ffn_width}: above 0, or null"
    )
    _require(bool(config.name.strip()), "name: empty; give the run a name")
    depth = config.profile.nvtx_module_depth
    _require(depth >= 0, f"profile.nvtx_module_depth={depth}: must be 0 or more")
    _require(
        not isinstance(strategy, DdpConfig) or 0 < strategy.bucket_mb < math.inf,
        f"strategy.bucket_mb={getattr(strategy, 'bucket_mb', None)}: must be above 0, and finite",
    )
    _require(train.warmup_steps >= 0, f"train.warmup_steps={train.warmup_steps}: must be 0 or more")
    _require(train.clip_norm is None or train.clip_norm > 0, f"train.clip_norm={train.clip_norm}: above 0, or null")
    _require(model.width % model.heads == 0, f"train.model.heads={model.heads} must divide width={model.width}")
    _require(model.style == "gpt2" or (model.width // model.heads) % 2 == 0, "rotary positions need an even head size")
    _require(
        train.seq_len <= model.max_seq_len,
        f"train.seq_len={train.seq_len} is past train.model.max_seq_len={model.max_seq_len}: shorten it",
    )
    _require(
        strategy.name != "single" or world_size == 1,
        f"strategy=single is one process, and this job has {world_size} ranks: use strategy=ddp or strategy=fsdp",
    )
    _require(
        not (isinstance(strategy, AccelerateConfig) and strategy.wrap == "fsdp" and device_type == "cpu"),
        "strategy=accelerate strategy.wrap=fsdp: on a CPU Accelerate makes DDP of it without a word; "
        "use strategy=fsdp, or an accelerator",
    )
    _require(
        train.precision != "tf32" or device_type == "cuda", "train.precision=tf32 needs a GPU: use fp32 or bf16 here"
    )
    _require(
        not (train.precision == "fp16" and strategy.name == "fsdp" and device_type == "cpu"),
        "train.precision=fp16 strategy=fsdp: loss scaling of sharded gradients needs a GPU; use bf16",
    )
    _require(config.backend != "nccl" or device_type == "cuda", "backend=nccl needs a GPU: use backend=gloo here")
    _require(
        isinstance(config.hardware.peak, str) or 0 < config.hardware.peak < math.inf,
        f"hardware.peak={config.hardware.peak}: FLOP/s above 0, or auto, measure, none",
    )
    if isinstance(config.logger, WandbConfig):
        timeout_s = config.logger.init_timeout_s
        _require(0 < timeout_s < math.inf, f"logger.init_timeout_s={timeout_s}: must be above 0, and finite")
    if isinstance(config.data, TextDataConfig):
        _require(config.data.workers >= 0, f"data.workers={config.data.workers}: must be 0 or more")
        _require(config.data.max_bytes > 0, f"data.max_bytes={config.data.max_bytes}: must be above 0")
        _require(model.vocab_size >= 256, f"data=text has 256 tokens; train.model.vocab_size={model.vocab_size}")
    _check_inject(config, world_size)


def _check_inject(config: Config, world_size: int) -> None:
    inject, train = config.inject, config.train
    if inject.rank is None:
        wanted = inject.delay_ms != 0 or inject.action != "delay"
        _require(not wanted, "inject.delay_ms or inject.action without a rank: add inject.rank=R")
        return
    _require(0 <= inject.rank < world_size, f"inject.rank={inject.rank}: this job has ranks 0 to {world_size - 1}")
    _require(0 <= inject.delay_ms < math.inf, f"inject.delay_ms={inject.delay_ms}: must be 0 or more, and finite")
    total = train.warmup_steps + train.steps
    _require(0 <= inject.from_step < total, f"inject.from_step={inject.from_step}: this job has steps 0 to {total - 1}")
    runs = {
        "backward": train.mode != "forward",
        "grad_norm": train.mode == "train" and train.clip_norm is not None,
        "optimizer": train.mode == "train",
    }
    _require(
        runs.get(inject.phase, True),
        f"inject.phase={inject.phase}: train.mode={train.mode} train.clip_norm={train.clip_norm} has no such phase",
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
