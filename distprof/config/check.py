"""Refuses combinations of settings that cannot work, before any process group exists. No torch here."""

from __future__ import annotations

import importlib.util
import math
import re

from distprof.config.schema import (
    LOGGER_PACKAGES,
    AccelerateConfig,
    Config,
    DdpConfig,
    ProfileConfig,
    TextDataConfig,
    WandbConfig,
)
from distprof.errors import UsageError


def check(config: Config, *, world_size: int, device_type: str) -> None:
    """Refuses combinations that cannot work.

    Args:
        config: The decoded configuration.
        world_size: Number of ranks in the job.
        device_type: "cpu" or "cuda", as resolved on this machine.

    Raises:
        UsageError: With the keys involved and what to change.
    """
    _require(bool(config.name.strip()), "name: empty; give the run a name")
    _require(0 < config.group_timeout_s < math.inf, f"group_timeout_s={config.group_timeout_s}: above 0 and finite")
    _check_train(config)
    check_profile(config.profile)
    _check_windows(config)
    _check_strategy(config, world_size, device_type)
    _check_parallel(config, world_size)
    _check_data(config)
    peak, logger = config.hardware.peak, config.logger
    _require(config.backend != "nccl" or device_type == "cuda", "backend=nccl needs a GPU: use backend=gloo here")
    _require(
        isinstance(peak, str) or 0 < peak < math.inf,
        f"hardware.peak={peak}: must be FLOP/s above 0, or auto, measure or none",
    )
    if isinstance(logger, WandbConfig):
        _require(
            "wandb" not in config.profile.loggers,
            "profile.loggers=wandb logger=wandb: both log the same to W&B: leave one out",
        )
        limit_s = logger.init_timeout_s
        _require(0 < limit_s < math.inf, f"logger.init_timeout_s={limit_s}: must be above 0 and finite")
    _check_sweep(config, world_size)
    _check_inject(config, world_size, device_type)


def _check_train(config: Config) -> None:
    train, model = config.train, config.train.model
    positive = {
        "train.steps": train.steps, "train.seq_len": train.seq_len, "train.micro_batch": train.micro_batch,
        "train.grad_accum": train.grad_accum, "train.learning_rate": train.learning_rate,
        "train.model.layers": model.layers, "train.model.width": model.width, "train.model.heads": model.heads,
        "train.model.vocab_size": model.vocab_size,
    }  # fmt: skip
    for key, number in positive.items():
        _require(0 < number < math.inf, f"{key}={number}: must be above 0 and finite")
    _require(
        model.ffn_width is None or model.ffn_width > 0, f"train.model.ffn_width={model.ffn_width}: above 0, or null"
    )
    _require(train.warmup_steps >= 0, f"train.warmup_steps={train.warmup_steps}: must be 0 or more")
    _require(train.clip_norm is None or train.clip_norm > 0, f"train.clip_norm={train.clip_norm}: above 0, or null")
    _require(model.width % model.heads == 0, f"train.model.heads={model.heads} must divide width={model.width}")
    _require(model.style == "gpt2" or (model.width // model.heads) % 2 == 0, "rotary positions need an even head size")
    _require(
        train.seq_len <= model.max_seq_len,
        f"train.seq_len={train.seq_len} exceeds train.model.max_seq_len={model.max_seq_len}: shorten it",
    )
    _require(
        train.mode != "backward" or train.grad_accum == 1,
        f"train.mode=backward train.grad_accum={train.grad_accum}: forward runs before the step: use grad_accum=1",
    )


def _check_windows(config: Config) -> None:
    warmup_steps, last = config.train.warmup_steps, config.train.warmup_steps + config.train.steps
    for window in ("kernel", "module"):
        first = getattr(config.profile, f"{window}_from")
        _require(
            first is None or warmup_steps <= first <= last,
            f"profile.{window}_from={first}: must be {warmup_steps}, after the warm-up, to {last}, after the last step",
        )


def _check_strategy(config: Config, world_size: int, device_type: str) -> None:
    strategy, precision = config.strategy, config.train.precision
    _require(
        not isinstance(strategy, DdpConfig) or 0 < strategy.bucket_mb < math.inf,
        f"strategy.bucket_mb={getattr(strategy, 'bucket_mb', None)}: must be above 0 and finite",
    )
    replicas = getattr(strategy, "replicas", 1)
    _require(
        replicas >= 1 and world_size % replicas == 0,
        f"strategy.replicas={replicas} must divide the {world_size} ranks of the job",
    )
    _require(
        strategy.name != "single" or world_size == 1,
        f"strategy=single is one process, but this job has {world_size} ranks: use strategy=ddp or strategy=fsdp",
    )
    _require(
        not (isinstance(strategy, AccelerateConfig) and strategy.wrap == "fsdp" and device_type == "cpu"),
        "strategy=accelerate strategy.wrap=fsdp: on a CPU, Accelerate silently falls back from FSDP to DDP; "
        "use strategy=fsdp, or an accelerator",
    )
    _require(precision != "tf32" or device_type == "cuda", "train.precision=tf32 needs a GPU: use fp32 or bf16 here")
    _require(
        not (precision == "fp16" and strategy.name == "fsdp" and device_type == "cpu"),
        "train.precision=fp16 strategy=fsdp: loss scaling of sharded gradients needs a GPU; use bf16",
    )


def _check_parallel(config: Config, world_size: int) -> None:
    parallel, train, strategy = config.parallel, config.train, config.strategy
    pp, tp, model = parallel.pp, parallel.tp, config.train.model
    for key, number in {"pp": pp, "tp": tp, "micro_batches": parallel.micro_batches}.items():
        _require(number is None or number >= 1, f"parallel.{key}={number}: must be 1 or more")
    _require(parallel.micro_batches is None or pp > 1, "parallel.micro_batches without a pipeline: add parallel.pp=2")
    if parallel.model_ranks == 1:
        return
    named = f"parallel.pp={pp} parallel.tp={tp}"
    _require(
        strategy.name in ("ddp", "fsdp") and getattr(strategy, "replicas", 1) == 1,
        f"{named}: works with strategy=ddp, or strategy=fsdp with strategy.replicas=1",
    )
    _require(
        world_size % parallel.model_ranks == 0, f"{named}: pp x tp must divide the {world_size} rank(s) of the job"
    )
    _require(pp <= model.layers, f"parallel.pp={pp}: train.model.layers={model.layers} is fewer than one per stage")
    inner = model.ffn_width or 4 * model.width
    _require(
        model.heads % tp == 0 and inner % tp == 0,
        f"parallel.tp={tp} must divide train.model.heads={model.heads} and the feed-forward's width, {inner}",
    )
    if tp > 1 and strategy.name == "ddp" and world_size > parallel.model_ranks:
        raise UsageError(
            f"{named} with {world_size // parallel.model_ranks} replicas: DistributedDataParallel cannot hold "
            "parameters that tensor parallelism has cut: use strategy=fsdp"
        )
    _require(
        train.precision != "fp16", f"{named} train.precision=fp16: gradients of a cut model are not scaled; use bf16"
    )
    _require(not train.compile, f"{named}: a model that is cut is not compiled: use train.compile=false")
    _require(
        config.profile.level != "modules",
        f"{named} profile.level=modules: the modules of a model that is cut are not counted: use profile=phases",
    )
    if pp > 1:
        _check_pipeline(config)


def _check_pipeline(config: Config) -> None:
    parallel, train = config.parallel, config.train
    number, sequences = parallel.count_micro_batches(train.grad_accum), train.grad_accum * train.micro_batch
    _require(
        train.mode in ("train", "forward_backward"),
        f"parallel.pp={parallel.pp} train.mode={train.mode}: a pipeline runs forward and backward together",
    )
    _require(
        config.inject.module is None,
        f"parallel.pp={parallel.pp} inject.module={config.inject.module}: only one stage has it; use inject.phase",
    )
    _require(
        number >= parallel.pp and sequences % number == 0,
        f"parallel.pp={parallel.pp}: a step has {sequences} sequence(s), train.grad_accum x train.micro_batch; they "
        f"must be cut into {number} equal micro-batches, at least one per stage: change train.grad_accum or "
        "parallel.micro_batches",
    )


def _check_data(config: Config) -> None:
    data, vocab_size = config.data, config.train.model.vocab_size
    if isinstance(data, TextDataConfig):
        _require(data.workers >= 0, f"data.workers={data.workers}: must be 0 or more")
        _require(data.max_bytes > 0, f"data.max_bytes={data.max_bytes}: must be above 0")
        _require(vocab_size >= 256, f"data=text has 256 tokens, but train.model.vocab_size={vocab_size}")


def check_profile(profile: ProfileConfig, where: str = "profile.") -> None:
    """Refuses settings of a profile that cannot work in any job.

    Args:
        profile: The settings.
        where: What stands before a key in messages.

    Raises:
        UsageError: With the key, and what it may be.
    """
    depth, every = profile.nvtx_module_depth, profile.collectives
    _require(0 < profile.window_s < math.inf, f"{where}window_s={profile.window_s}: must be above 0 and finite")
    _require(depth >= 0, f"{where}nvtx_module_depth={depth}: must be 0 or more")
    _require(every == "auto" or every >= 0, f"{where}collectives={every}: must be auto, or a number of steps from 0 on")
    turn, limit = profile.shadow_every, profile.max_overhead_ratio
    _require(turn == 0 or turn > 1, f"{where}shadow_every={turn}: must be 2 or more, or 0 for never")
    _require(limit is None or 0 < limit < math.inf, f"{where}max_overhead_ratio={limit}: above 0 and finite, or null")
    _require(
        profile.record in ("auto", "all") or read_schedule(profile.record) is not None,
        f"{where}record={profile.record!r}: must be auto, all, or like 100 of 1000, from 1 on; "
        f"{where}level=off records none",
    )
    keep = profile.keep_steps
    _require(keep is None or keep >= 100, f"{where}keep_steps={keep}: must be 100 or more, or null for all")
    port = profile.metrics_port
    _require(port is None or 0 <= port < 1 << 16, f"{where}metrics_port={port}: must be 0 to 65535, or null for none")
    for name in profile.loggers:
        package, wanted = LOGGER_PACKAGES[name]
        _require(
            importlib.util.find_spec(package) is not None,
            f"{where}loggers={name}: needs the package {package}: pip install {wanted}",
        )
    for window in ("kernel", "module"):
        kept, first = getattr(profile, f"{window}_steps"), getattr(profile, f"{window}_from")
        _require(kept >= 1, f"{where}{window}_steps={kept}: must be 1 or more")
        _require(first is None or first >= 0, f"{where}{window}_from={first}: must be 0 or more, or null")


def read_schedule(text: str) -> tuple[int, int] | None:
    """The numbers in ``M of N``: the first M of every N steps. None: it is something else, such as ``all``."""
    found = re.fullmatch(r"([0-9]{1,9}) of ([0-9]{1,9})", text)
    numbers = None if found is None else (int(found[1]), int(found[2]))
    return numbers if numbers is not None and 1 <= numbers[0] <= numbers[1] else None


def _check_sweep(config: Config, world_size: int) -> None:
    ranks, timeout_s = config.sweep.ranks, config.sweep.timeout_s
    _require(
        ranks is None or ranks == world_size,
        f"sweep.ranks={ranks}: this job has {world_size} rank(s); torchrun starts them, and --multirun runs sweeps",
    )
    _require(
        timeout_s is None or 0 < timeout_s < math.inf,
        f"sweep.timeout_s={timeout_s}: must be above 0 and finite, or null",
    )
    profile = config.profile
    _require(
        not config.sweep.nsys or (profile.level not in ("off", "kernels") and profile.nvtx is not False),
        f"sweep.nsys=true with profile.level={profile.level} profile.nvtx={str(profile.nvtx).lower()}: nsys needs the "
        "ranges of phases, and torch.profiler and nsys cannot both trace CUDA: use profile=phases",
    )


def _check_inject(config: Config, world_size: int, device_type: str) -> None:
    inject, train = config.inject, config.train
    if inject.rank is None:
        wanted = inject.delay_ms != 0 or inject.action != "delay" or inject.module is not None
        wanted |= inject.where != "host"
        _require(
            not wanted,
            "inject.delay_ms, inject.action, inject.module or inject.where without a rank: add inject.rank=R",
        )
        return
    _require(0 <= inject.rank < world_size, f"inject.rank={inject.rank}: this job has ranks 0 to {world_size - 1}")
    _require(0 <= inject.delay_ms < math.inf, f"inject.delay_ms={inject.delay_ms}: must be 0 or more and finite")
    _require(
        inject.where == "host" or inject.action == "delay",
        f"inject.where=device inject.action={inject.action}: only a delay happens on a device: leave one out",
    )
    _require(
        inject.where == "host" or device_type == "cuda", "inject.where=device needs a GPU: use inject.where=host here"
    )
    total = train.warmup_steps + train.steps
    _require(0 <= inject.from_step < total, f"inject.from_step={inject.from_step}: this job has steps 0 to {total - 1}")
    _require(
        inject.module is None or inject.phase in ("data", "forward"),
        f"inject.module={inject.module}: happens in the module's forward: leave out inject.phase={inject.phase}",
    )
    _require(
        inject.module is None or not train.compile,
        f"inject.module={inject.module}: a compiled block has no modules to stop in: use train.compile=false",
    )
    runs = {
        "data": train.mode != "backward",
        "forward": train.mode != "backward",
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
