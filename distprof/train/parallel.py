"""A model that is cut: into pipeline stages, and each matrix of its blocks over tensor-parallel ranks.

Ranks are numbered by replica, stage and tensor-parallel rank, in that order. Over the replicas, a stage is wrapped as a
whole model is: in DDP or FSDP2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from distprof.config.schema import Config, DdpConfig, FsdpConfig
from distprof.facts.run import Phase
from distprof.train.model import Transformer, make_rotation
from distprof.train.strategy import AUTOCAST_DTYPES, PlainStrategy, shard
from distprof.world import World

Mark = Callable[[Phase], contextlib.AbstractContextManager[Any]]
TENSOR_PLAN: dict[str, Callable[[], ParallelStyle]] = {
    "attention.query_key_value": ColwiseParallel, "attention.project": RowwiseParallel,
    "feed_forward.gate": ColwiseParallel, "feed_forward.expand": ColwiseParallel,
    "feed_forward.project": RowwiseParallel,
}  # fmt: skip
"""How each matrix of a block is cut; only llama has a gate."""


class ModelStage(nn.Module):
    """What one stage of a pipeline holds of a transformer. Its modules have the names that they have in the whole."""

    def __init__(self, whole: Transformer, index: int, number: int, *, activation_checkpointing: bool) -> None:
        """Takes the modules of stage ``index`` out of ``whole``."""
        super().__init__()
        first, last = index == 0, index == number - 1
        self._config, self._checkpointing = whole.config, activation_checkpointing
        self.token_embedding = whole.token_embedding if first else None
        self.position_embedding = whole.position_embedding if first else None
        begin, end = (whole.config.layers * edge // number for edge in (index, index + 1))
        self.blocks = nn.ModuleDict({str(layer): whole.blocks[layer] for layer in range(begin, end)})
        self.final_norm = whole.final_norm if last else None
        self.head = whole.head if last else None

    def forward(self, given: Tensor, targets: Tensor) -> Tensor:
        """The hidden states for the next stage, ``[batch, seq_len, width]``; of the last one the mean loss, ``[1]``.

        Args:
            given: The previous stage's hidden states; on the first stage tokens, int64 ``[batch, seq_len]``.
            targets: int64 ``[batch, seq_len]``.
        """
        hidden = given if self.token_embedding is None else self.token_embedding(given)
        if self.position_embedding is not None:
            hidden = hidden + self.position_embedding(torch.arange(given.shape[1], device=given.device))
        config, rotation = self._config, None
        if config.style == "llama":
            rotation = make_rotation(given.shape[1], config.width // config.heads, given.device)
        for block in self.blocks.values():
            if self._checkpointing:
                hidden = checkpoint(block, hidden, rotation, use_reentrant=False)
            else:
                hidden = block(hidden, rotation)
        if self.final_norm is None or self.head is None:
            return hidden
        logits = self.head(self.final_norm(hidden))
        # Not a view, of which FSDP2 warns.
        return torch.stack([functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())])


class TensorStrategy(PlainStrategy):
    """A model whose parameters are not all on the same ranks."""

    def __init__(self, model: nn.Module, config: Config, world: World) -> None:
        super().__init__(model, _make_optimizer(model, config), config, world.device)
        self.counts_tokens = world.rank % config.parallel.model_ranks == 0
        self._stage_ranks = world.size // config.parallel.pp
        self._twin: nn.Parameter | None = None
        """A parameter that an earlier stage holds too."""

    def clip(self, max_norm: float) -> Tensor:
        """Sums over the job what ranks hold, each element once. Collective."""
        square = torch.zeros((), device=next(self.model.parameters()).device)
        gradients = []
        for parameter in self.model.parameters():
            if parameter.grad is None:
                continue
            gradients.append(_take_local(parameter.grad))
            if parameter is not self._twin:
                square += gradients[-1].float().square().sum() / (self._stage_ranks / _count_parts(parameter))
        dist.all_reduce(square)
        norm = square.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
        for gradient in gradients:
            gradient.mul_(factor)
        return norm


class PipelineStrategy(TensorStrategy):
    """One stage of a pipeline."""

    def __init__(self, model: nn.Module, config: Config, world: World, mesh: DeviceMesh) -> None:
        super().__init__(model, config, world)
        parallel, train, number = config.parallel, config.train, config.parallel.pp
        self.micro_batches = parallel.count_micro_batches(train.grad_accum)
        index = mesh.get_local_rank("pp")
        self._is_first, self._is_last, self._mark = index == 0, index == number - 1, contextlib.nullcontext
        size = train.grad_accum * train.micro_batch // self.micro_batches
        dtype = AUTOCAST_DTYPES.get(train.precision) if isinstance(model, FSDPModule) else None
        hidden = torch.empty(size, train.seq_len, train.model.width, dtype=dtype, device="meta", requires_grad=True)
        tokens = torch.empty(size, train.seq_len, dtype=torch.int64, device="meta")
        self._stage = MarkedStage(
            model, index, number, world.device, input_args=(tokens if self._is_first else hidden,),
            output_args=(torch.empty(1, device="meta", requires_grad=True) if self._is_last else hidden,),
            group=mesh["pp"].get_group(),
        )  # fmt: skip
        schedule = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[parallel.schedule]
        # Each loss is divided, rather than all gradients at the end.
        self._schedule = schedule(
            self._stage, self.micro_batches, loss_fn=lambda loss, _: loss.sum() / self.micro_batches, scale_grads=False
        )
        self._tied = self._tie(config, world) if train.model.style == "gpt2" else None

    def _tie(self, config: Config, world: World) -> tuple[nn.Parameter, dist.ProcessGroup] | None:
        """The tied embedding and the group that holds it: its first and last stage. Every rank makes every group."""
        parallel, found = config.parallel, None
        for first in range(world.size):
            if first // parallel.tp % parallel.pp == 0:
                ranks = [first, first + (parallel.pp - 1) * parallel.tp]
                group = dist.new_group(ranks, group_desc="EMBEDDING_GROUP")  # as Megatron calls it
                found = group if world.rank in ranks else found
        if found is None:
            return None
        ends = ("token_embedding.weight", "head.weight")
        weight = next(each for name, each in self.model.named_parameters() if name.endswith(ends))
        self._twin = weight if self._is_last else None
        return weight, found

    def run_step(self, tokens: Tensor, targets: Tensor, mark: Mark) -> Tensor | None:
        """Runs the schedule, and then adds up the gradient of the tied embedding."""
        losses: list[Tensor] = []
        self._stage.mark = mark
        with self._autocast():
            given = (tokens,) if self._is_first else ()
            self._schedule.step(*given, target=targets, losses=losses if self._is_last else None, targets=targets)
        if self._tied is not None:
            weight, group = self._tied
            assert weight.grad is not None
            with mark(Phase.BACKWARD):
                dist.all_reduce(_take_local(weight.grad), group=group)
        return torch.stack(losses).sum().detach() if self._is_last else None


class MarkedStage(PipelineStage):
    """A stage whose computation is marked, and not its waits."""

    mark: Mark

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of one micro-batch."""
        with self.mark(Phase.FORWARD):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """The backward of one micro-batch."""
        with self.mark(Phase.BACKWARD):
            return super().backward_one_chunk(*args, **kwargs)


def build_parallel(config: Config, world: World, mesh: DeviceMesh) -> TensorStrategy:
    """Builds the model, cuts it, and wraps this rank's part over the replicas. Collective."""
    parallel, train, strategy = config.parallel, config.train, config.strategy
    names = mesh.mesh_dim_names or ()
    torch.manual_seed(config.seed)
    recomputes = train.activation_checkpointing
    with world.device:
        whole = Transformer(train.model, activation_checkpointing=recomputes)
    model: nn.Module = whole
    if parallel.pp > 1:
        model = ModelStage(whole, mesh.get_local_rank("pp"), parallel.pp, activation_checkpointing=recomputes)
    if parallel.tp > 1:
        _cut_matrices(model, mesh["tp"])
    if "dp" in names and isinstance(strategy, FsdpConfig):
        shard(model, strategy, train.precision, mesh["dp"])
    elif "dp" in names and isinstance(strategy, DdpConfig):
        model = DistributedDataParallel(
            model, device_ids=[world.device.index] if world.device.type == "cuda" else None,
            process_group=mesh["dp"].get_group(), bucket_cap_mb=strategy.bucket_mb, gradient_as_bucket_view=True,
        )  # fmt: skip
    return PipelineStrategy(model, config, world, mesh) if parallel.pp > 1 else TensorStrategy(model, config, world)


def _cut_matrices(model: nn.Module, mesh: DeviceMesh) -> None:
    """Gives each rank its heads, and its part of the feed-forward's inner width. Collective."""
    for block in model.blocks.children():  # type: ignore[union-attr]
        with torch.no_grad():
            # Query, key and value lie one after the other, and each rank needs all three of its heads.
            for parameter in block.attention.query_key_value.parameters():  # type: ignore[union-attr]
                parts = parameter.view(3, mesh.size(), -1, *parameter.shape[1:])
                parameter.copy_(parts.transpose(0, 1).reshape(parameter.shape))
        present = {name for name, _ in block.named_modules()}
        parallelize_module(block, mesh, {name: cut() for name, cut in TENSOR_PLAN.items() if name in present})


def _make_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """AdamW with a group of parameters per mesh, since one kernel cannot update those of several."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    listed = [{"params": held} for held in groups.values()]
    return torch.optim.AdamW(listed, lr=config.train.learning_rate, fused=config.train.fused_optimizer)


def _take_local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _count_parts(parameter: Tensor) -> int:
    """Ranks that a parameter is cut over."""
    if not isinstance(parameter, DTensor):
        return 1
    parts = 1
    for dimension, placement in enumerate(parameter.placements):
        parts *= 1 if placement.is_replicate() else parameter.device_mesh.size(dimension)
    return parts
