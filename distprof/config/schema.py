"""The configuration: records, decoded strictly from what Hydra composed.

No torch here. `decode` refuses unknown keys and wrong types by name with a `UsageError` before any process group
exists; `distprof.config.check` refuses combinations that cannot work.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from distprof.config.decode import decode

__all__ = ["Config", "decode"]


class ModelConfig(Struct, frozen=True, kw_only=True):
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
    """Longest sequence, which is the size of the position table in style gpt2."""
    style: Literal["gpt2", "llama"]
    """gpt2: LayerNorm, GELU, learned positions, tied head. llama: RMSNorm, gated SiLU, rotary positions."""


class TrainConfig(Struct, frozen=True, kw_only=True):
    mode: Literal["train", "forward_backward", "forward", "backward"]
    """How much of a step is run. backward: the step is the backward pass; its forward pass runs before it, untimed."""
    steps: int
    """Measured optimizer steps, after the warm-up."""
    warmup_steps: int
    """Steps that are recorded and marked, but left out of every statistic."""
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


class SingleConfig(Struct, frozen=True, kw_only=True):
    name: Literal["single"]
    """One process, no wrapper."""


class DdpConfig(Struct, frozen=True, kw_only=True):
    name: Literal["ddp"]
    """DistributedDataParallel."""
    bucket_mb: float
    """Size of a gradient bucket in MiB."""


class FsdpConfig(Struct, frozen=True, kw_only=True):
    name: Literal["fsdp"]
    """FSDP2, ``fully_shard`` by block."""
    reshard_after_forward: bool
    """Free the gathered parameters between forward and backward."""
    replicas: int
    """How many copies of the model there are, each sharded over its share of the ranks. 1: FSDP; more: HSDP."""


class AccelerateConfig(Struct, frozen=True, kw_only=True):
    name: Literal["accelerate"]
    """Accelerate's own prepare, backward, clip and step."""
    wrap: Literal["ddp", "fsdp"]
    """What Accelerate wraps the model in."""


StrategyConfig = SingleConfig | DdpConfig | FsdpConfig | AccelerateConfig


class ParallelConfig(Struct, frozen=True, kw_only=True):
    pp: int
    """Pipeline stages."""
    tp: int
    """Ranks that share every matrix of attention and feed-forward."""
    schedule: Literal["1f1b", "gpipe"]
    """The order of micro-batches in the pipeline."""
    micro_batches: int | None
    """Micro-batches of a step in the pipeline. None: ``train.grad_accum``, but at least ``pp``."""

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one replica of the model together; 1: the model is not cut."""
        return self.pp * self.tp

    def count_micro_batches(self, grad_accum: int) -> int:
        """Micro-batches of a step in the pipeline."""
        return max(grad_accum, self.pp) if self.micro_batches is None else self.micro_batches


class SyntheticDataConfig(Struct, frozen=True, kw_only=True):
    name: Literal["synthetic"]
    """Random tokens, made before the first step."""


class TextDataConfig(Struct, frozen=True, kw_only=True):
    name: Literal["text"]
    """Bytes of UTF-8 text through a DataLoader."""
    path: str | None
    """A file or a folder. None: the Python standard library's own sources."""
    glob: str
    """Which files in a folder to read."""
    max_bytes: int
    """Read at most this much text."""
    workers: int
    """DataLoader worker processes per rank."""


DataConfig = SyntheticDataConfig | TextDataConfig


class HardwareConfig(Struct, frozen=True, kw_only=True):
    peak: float | Literal["auto", "measure", "none"]
    """Peak FLOP/s of one device: a number, from the table (auto), measured at the start, or none."""


LoggerName = Literal["tensorboard", "otel", "wandb"]
"""A logger of live metrics: the name of its file in ``distprof/profiler/loggers/``."""
LOGGER_PACKAGES: dict[LoggerName, tuple[str, str]] = {
    "tensorboard": ("tensorboard", "'distprof[tensorboard]'"), "otel": ("opentelemetry", "'distprof[otel]'"),
    "wandb": ("wandb", "wandb"),
}  # fmt: skip
"""The package that it needs, and what to install for it."""


class ProfileConfig(Struct, frozen=True, kw_only=True):
    level: Literal["off", "phases", "kernels", "modules"]
    """What is recorded. kernels: phases, and a torch.profiler window of a few steps. modules: phases, and a few steps
    in which the work and time of every module are taken."""
    nvtx: bool | Literal["auto"]
    """NVTX ranges. auto: when a tool is attached."""
    nvtx_module_depth: int
    """Module ranges down to this depth while NVTX is on; 0: none."""
    window_s: float
    """Seconds between writing and gathering rows."""
    shadow_every: int
    """One in this many measured steps runs without recording, to measure its cost; 0: never."""
    max_overhead_ratio: float | None
    """Stop recording phases once recording certainly costs more than this share of a step. None: never stop."""
    collectives: int | Literal["auto"] = "auto"
    """On a GPU, single collectives are timed in every so many steps; 0: never. auto: as often as costs at most 0.3 % of
    a step, and not under ``CUDA_DEVICE_MAX_CONNECTIONS=1``, where an event may hold up what another stream does."""
    kernel_steps: int = 3
    """Steps that a kernel window keeps, also one that is asked for while the job runs; one more runs before them under
    the profiler and is dropped."""
    kernel_from: int | None = None
    """The step at which a kernel window begins. None: after the last measured step; in your own loop, the first step
    that is not warm-up and not before `distprof.record.gather.step_window.EARLIEST_STEP`."""
    module_steps: int = 5
    """Steps in which a module profile takes the time; two more run before them: one is counted, and one warms up."""
    module_from: int | None = None
    """The step at which a module profile begins; None as for ``kernel_from``."""

    record: str = "auto"
    """In which steps phases are recorded: ``auto``: all, unless that costs the host much; ``all``; or ``M of N``: the
    first M of every N steps."""
    keep_steps: int | None = 20_000
    """How many of its latest steps each rank keeps on disk at least; up to twice as many are there. None: all."""

    metrics_port: int | None = None
    """The port on which rank 0 serves live metrics as Prometheus text, at ``/metrics``; 0: any free one. None: none."""
    metrics_address: str = "127.0.0.1"
    """Where it listens; by default only programs of its own host can ask."""
    loggers: tuple[LoggerName, ...] = ()
    """Where else rank 0 sends live metrics, each on a thread of its own."""

    @property
    def window_steps(self) -> int:
        """Steps that the window of this level takes, with those that it runs before the ones it keeps; 0: none."""
        return {"kernels": self.kernel_steps + 1, "modules": self.module_steps + 2}.get(self.level, 0)


class NoLoggerConfig(Struct, frozen=True, kw_only=True):
    name: Literal["none"]
    """The run folder only."""


class WandbConfig(Struct, frozen=True, kw_only=True):
    name: Literal["wandb"]
    """Weights & Biases, from rank 0."""
    project: str
    """W&B project."""
    entity: str | None
    """W&B team or user. None: the login's default."""
    group: str | None
    """W&B shows runs of the same group together, such as those of a sweep. None: ``WANDB_RUN_GROUP``, if it is set."""
    mode: Literal["auto", "online", "offline"]
    """auto: online when logged in."""
    init_timeout_s: float
    """Give up going online after this long, and log offline."""


LoggerConfig = NoLoggerConfig | WandbConfig


class InjectConfig(Struct, frozen=True, kw_only=True):
    rank: int | None
    """The rank that is affected. None: no injection."""
    phase: Literal["data", "forward", "backward", "grad_norm", "optimizer"]
    """The phase that is affected."""
    delay_ms: float
    """Milliseconds of delay per step, for action delay."""
    from_step: int
    """The first affected step; kill and fail happen in it."""
    action: Literal["delay", "kill", "fail"]
    """Be late, die by SIGKILL, or raise."""
    module: str | None = None
    """The module in whose forward it happens, by its name in the model. None: at the begin of ``phase``."""
    where: Literal["host", "device"] = "host"
    """What is late: the host sleeps, or a kernel spins on the GPU, whose host would hide a sleep by running ahead."""


class SweepConfig(Struct, frozen=True, kw_only=True):
    ranks: int | None
    """Ranks of a job of a sweep; may be swept. None: one per GPU, or one on a machine without."""
    timeout_s: float | None
    """A job of a sweep that has not ended after this long is ended. None: never."""
    resume: str | None
    """The folder of a sweep to continue: only its jobs that have not completed run. None: a new sweep."""
    nsys: bool
    """Each job of a sweep runs under Nsight Systems; its capture lies beside its run folder. May be swept."""


class Config(Struct, frozen=True, kw_only=True):
    """The whole configuration of a training job."""

    name: str
    """Names the run folder and the W&B run."""
    runs_dir: str
    """Where run folders are created."""
    run_dir: str | None
    """One exact run folder instead."""
    seed: int
    """Seed of the weights; the data of rank R, or of replica R of a model that is cut, use seed + R."""
    device: Literal["auto", "cpu", "cuda"]
    """Where the model runs."""
    backend: Literal["auto", "nccl", "gloo"]
    """torch.distributed backend."""
    group_timeout_s: float
    """A rank that stays away from a collective for this long ends the job."""
    live: bool
    """Rank 0 shows the job on its standard error while it runs."""
    train: TrainConfig
    strategy: StrategyConfig
    parallel: ParallelConfig
    data: DataConfig
    hardware: HardwareConfig
    profile: ProfileConfig
    logger: LoggerConfig
    inject: InjectConfig
    sweep: SweepConfig
