"""How the model is distributed over the ranks, and how each strategy runs a step."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from distprof.config.schema import AccelerateConfig, Config, DdpConfig, FsdpConfig
from distprof.errors import UsageError
from distprof.facts.run import Phase
from distprof.train.model import Transformer
from distprof.world import World

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Strategy(Protocol):
    """The parts of a step that depend on how the model is distributed."""

    model: nn.Module
    """The wrapped model."""
    counts_tokens: bool
    """Whether this rank counts the tokens of its batches: one rank of each replica does."""

    def micro_step(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Surrounds one micro-step; gradients are synchronised only in the ``last`` one."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss of one micro-batch."""

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of one micro-batch."""

    def clip(self, max_norm: float) -> Tensor:
        """Clips the gradient norm and returns the norm before clipping. Collective under FSDP."""

    def optimize(self) -> None:
        """Steps the optimizer and clears the gradients."""


@runtime_checkable
class Pipelined(Strategy, Protocol):
    """A strategy whose forwards and backwards of all micro-batches are one call."""

    micro_batches: int
    """Of a step."""

    def run_step(
        self, tokens: Tensor, targets: Tensor, mark: Callable[[Phase], contextlib.AbstractContextManager[Any]]
    ) -> Tensor | None:
        """The mean loss of a step's batch, with gradients added; None: this rank does not compute it. Collective.

        Args:
            tokens: int64 ``[sequences, seq_len]``.
            targets: int64 ``[sequences, seq_len]``.
            mark: Surrounds the forward and the backward of each micro-batch.
        """


class PlainStrategy:
    """One process, DDP or FSDP2, in plain PyTorch."""

    counts_tokens = True

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, config: Config, device: torch.device
    ) -> None:
        self.model, self._optimizer, self._accumulation = model, optimizer, config.train.grad_accum
        # FSDP2 casts by itself, module by module; autocast would cast twice.
        dtype = None if isinstance(model, FSDPModule) else AUTOCAST_DTYPES.get(config.train.precision)
        self._autocast: Callable[[], Any] = (
            contextlib.nullcontext if dtype is None else lambda: torch.autocast(device.type, dtype=dtype)
        )
        self._scaler = torch.amp.GradScaler(device.type, enabled=config.train.precision == "fp16")

    def micro_step(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        """DDP skips synchronisation inside ``no_sync``; FSDP2 has a switch."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
            return contextlib.nullcontext()
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return contextlib.nullcontext()

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """In the precision of the run."""
        with self._autocast():
            loss: Tensor = self.model(tokens, targets)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Divides by the number of micro-steps, so that gradients add up to their mean; scales under fp16."""
        self._scaler.scale(loss / self._accumulation if self._accumulation > 1 else loss).backward()  # type: ignore[no-untyped-call]

    def clip(self, max_norm: float) -> Tensor:
        """Under FSDP2 the norm is a sharded tensor, which is reduced here."""
        self._scaler.unscale_(self._optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def optimize(self) -> None:
        """Under fp16 the scaler skips a step with infinite gradients."""
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)


class AccelerateStrategy:
    """The same loop, through Accelerate's prepare, backward, clip_grad_norm_ and step."""

    counts_tokens = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, accelerator: Any) -> None:
        self.model, self._optimizer, self._accelerator = model, optimizer, accelerator
        self._accumulation = accelerator.gradient_accumulation_steps

    def micro_step(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Accelerate's own switch for synchronisation."""
        self._accelerator.sync_gradients = last
        return contextlib.nullcontext() if last else self._accelerator.no_sync(self.model)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The prepared model casts by itself."""
        loss: Tensor = self.model(tokens, targets)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Accelerate divides by the micro-steps and scales under fp16."""
        self._accelerator.backward(loss)

    def clip(self, max_norm: float) -> Tensor:
        """Uses Accelerate's clipping for the wrapper it made."""
        norm = self._accelerator.clip_grad_norm_(self.model.parameters(), max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def optimize(self) -> None:
        """Accelerate's optimizer skips the step while gradients accumulate or after they overflowed."""
        self._optimizer.step()
        self._optimizer.zero_grad()


def make_mesh(config: Config, world: World) -> DeviceMesh | None:
    """The ranks by what they share of the model. None: DDP, Accelerate or a single rank needs none. Collective."""
    parallel, strategy, kind = config.parallel, config.strategy, world.device.type
    sizes = {"dp": world.size // parallel.model_ranks, "pp": parallel.pp, "tp": parallel.tp}
    if parallel.model_ranks == 1:
        if not isinstance(strategy, FsdpConfig):
            return None
        sizes = {"replicate": strategy.replicas, "shard": world.size // strategy.replicas}
    names = tuple(name for name, size in sizes.items() if size > 1 or name == "shard")
    return init_device_mesh(kind, tuple(sizes[name] for name in names), mesh_dim_names=names)


def build_strategy(config: Config, world: World, mesh: DeviceMesh | None) -> Strategy:
    """Builds the model and wraps it, with the mesh that `make_mesh` makes. Collective.

    Raises:
        UsageError: Accelerate used another wrapper than the one asked for.
    """
    train = config.train
    torch.manual_seed(config.seed)
    if train.precision == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    with world.device:
        model: nn.Module = Transformer(train.model, activation_checkpointing=train.activation_checkpointing)
    if train.compile:
        for block in model.blocks:  # type: ignore[union-attr]
            block.compile()
    strategy = config.strategy
    if isinstance(strategy, AccelerateConfig):
        return _prepare(config, strategy, model, world)
    if isinstance(strategy, DdpConfig):
        ids = [world.device.index] if world.device.type == "cuda" else None
        model = DistributedDataParallel(
            model, device_ids=ids, bucket_cap_mb=strategy.bucket_mb, gradient_as_bucket_view=True
        )
    elif isinstance(strategy, FsdpConfig):
        assert mesh is not None
        shard(model, strategy, train.precision, mesh)
    return PlainStrategy(model, _make_optimizer(model, config), config, world.device)


def require_torch(config: Config, device: torch.device) -> None:
    """Refuses FSDP2 and pipelines if this version of torch does not support them here.

    Raises:
        UsageError: FSDP2 on a CPU, or a pipeline, with torch 2.6.
    """
    if config.parallel.pp > 1:
        from torch.distributed.pipelining import Schedule1F1B  # takes long to import, and few need it

        if "scale_grads" not in inspect.signature(Schedule1F1B).parameters:
            raise UsageError(
                f"parallel.pp={config.parallel.pp}: pipelines need torch 2.7, and this is {torch.__version__}"
            )
    if config.strategy.name == "fsdp" and device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        raise UsageError(
            f"strategy=fsdp does not work on a CPU with torch {torch.__version__}: use a newer torch, or strategy=ddp"
        )


def shard(model: nn.Module, strategy: FsdpConfig, precision: str, mesh: DeviceMesh) -> None:
    """Shards a model by FSDP2, block by block. Collective.

    Args:
        model: With ``blocks``.
        strategy: When parameters are gathered.
        precision: Of the run.
        mesh: The ranks to shard over; of two dimensions, the first holds replicas.
    """
    dtype = AUTOCAST_DTYPES.get(precision)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    options: dict[str, Any] = {
        "mesh": mesh, "mp_policy": policy, "reshard_after_forward": strategy.reshard_after_forward
    }  # fmt: skip
    for block in model.blocks.children():  # type: ignore[union-attr]
        fully_shard(block, **options)
    fully_shard(model, **options)


def _make_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    fused = config.train.fused_optimizer
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(parameters, lr=config.train.learning_rate, fused=fused)


def _prepare(config: Config, strategy: AccelerateConfig, model: nn.Module, world: World) -> Strategy:
    # Imported here: it takes two seconds.
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

    precision = config.train.precision if config.train.precision in AUTOCAST_DTYPES else "no"
    plugin = None
    if strategy.wrap == "fsdp":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
        )
    accelerator = Accelerator(
        mixed_precision=precision, gradient_accumulation_steps=config.train.grad_accum, fsdp_plugin=plugin,
        cpu=world.device.type == "cpu",
    )  # fmt: skip
    wrapped, optimizer = accelerator.prepare(model, _make_optimizer(model, config))
    _require_wrapper(wrapped, strategy.wrap, world.size)
    return AccelerateStrategy(wrapped, optimizer, accelerator)


def _require_wrapper(model: nn.Module, wanted: str, world_size: int) -> None:
    got = "no wrapper"
    if isinstance(model, FSDPModule | DistributedDataParallel):
        got = "fsdp" if isinstance(model, FSDPModule) else "ddp"
    if got != wanted and world_size > 1:
        raise UsageError(f"strategy.wrap={wanted}: Accelerate chose {got} on this machine; use strategy={wanted}")


def wait_for_everyone() -> None:
    """Waits for all ranks before the first step. Collective, over the CPU."""
    dist.all_reduce(torch.zeros(1))
