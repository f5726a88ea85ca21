"""The training loop: a step written as its phases, top to bottom."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from distprof.config.schema import TrainConfig
from distprof.facts.run import Phase
from distprof.profiler.session.session import Session
from distprof.train.data import Batch
from distprof.train.strategy import Pipelined, Strategy


def train(
    config: TrainConfig,
    *,
    strategy: Strategy,
    batches: Iterator[Batch],
    profiler: Session,
    inject: Callable[[Phase, int], None],
    device: torch.device,
    window_steps: int = 0,
) -> None:
    """Runs the warm-up, the measured steps and those of the profiler's window. Collective.

    Args:
        config: Sizes and mode.
        strategy: The wrapped model, and how to run a step with it.
        batches: One batch per micro-step, on the CPU.
        profiler: Records every phase.
        inject: Called at the start of every phase, once per step.
        device: Where the model is.
        window_steps: Additional steps for the profiler's window.
    """
    torch.set_grad_enabled(config.mode != "forward")
    pipelined = strategy if isinstance(strategy, Pipelined) else None
    for step in range(config.warmup_steps + config.steps + window_steps):
        if pipelined is not None:
            _run_pipeline(config, pipelined, batches, profiler, inject, device, step)
            continue
        if config.mode == "backward":
            _run_backward(config, strategy, batches, profiler, inject, device, step)
            continue
        with profiler.step(warmup=step < config.warmup_steps):
            total: Tensor | None = None
            for micro_step in range(config.grad_accum):
                enter = inject if micro_step == 0 else _do_nothing
                with strategy.micro_step(last=micro_step == config.grad_accum - 1):
                    with profiler.phase(Phase.DATA):
                        enter(Phase.DATA, step)
                        tokens, targets = (item.to(device, non_blocking=True) for item in next(batches))
                    with profiler.phase(Phase.FORWARD):
                        enter(Phase.FORWARD, step)
                        loss = strategy.forward(tokens, targets)
                    if config.mode != "forward":
                        with profiler.phase(Phase.BACKWARD):
                            enter(Phase.BACKWARD, step)
                            strategy.backward(loss)
                total = loss.detach() if total is None else total + loss.detach()
                profiler.add_work(tokens=tokens.numel() * strategy.counts_tokens)
            if config.mode == "train":
                _update(config, strategy, profiler, inject, step)
            elif config.mode == "forward_backward":
                strategy.model.zero_grad(set_to_none=True)
            assert total is not None
            profiler.keep_scalars(loss=total / config.grad_accum)


def _run_backward(
    config: TrainConfig,
    strategy: Strategy,
    batches: Iterator[Batch],
    profiler: Session,
    inject: Callable[[Phase, int], None],
    device: torch.device,
    step: int,
) -> None:
    """A step that is the backward pass alone; data and forward come before it, and count as time between steps."""
    with strategy.micro_step(last=True):
        tokens, targets = (item.to(device, non_blocking=True) for item in next(batches))
        loss = strategy.forward(tokens, targets)
        with profiler.step(warmup=step < config.warmup_steps):
            with profiler.phase(Phase.BACKWARD):
                inject(Phase.BACKWARD, step)
                strategy.backward(loss)
            profiler.add_work(tokens=tokens.numel() * strategy.counts_tokens)
            profiler.keep_scalars(loss=loss.detach())
    strategy.model.zero_grad(set_to_none=True)


def _run_pipeline(
    config: TrainConfig,
    strategy: Pipelined,
    batches: Iterator[Batch],
    profiler: Session,
    inject: Callable[[Phase, int], None],
    device: torch.device,
    step: int,
) -> None:
    """A step of one stage. Its waits for other stages and its sends are in no phase, so they count as other."""
    awaited = {Phase.FORWARD, Phase.BACKWARD}

    @contextlib.contextmanager
    def mark(phase: Phase) -> Iterator[None]:
        with profiler.phase(phase):
            if phase in awaited:  # injections happen once per step
                awaited.remove(phase)
                inject(phase, step)
            yield

    with profiler.step(warmup=step < config.warmup_steps):
        with profiler.phase(Phase.DATA):
            inject(Phase.DATA, step)
            pairs = [next(batches) for _ in range(config.grad_accum)]
            tokens, targets = (torch.cat(items).to(device, non_blocking=True) for items in zip(*pairs, strict=True))
        loss = strategy.run_step(tokens, targets, mark)
        profiler.add_work(tokens=tokens.numel() * strategy.counts_tokens, micro_steps=strategy.micro_batches)
        if config.mode == "train":
            _update(config, strategy, profiler, inject, step)
        else:
            strategy.model.zero_grad(set_to_none=True)
        if loss is not None:
            profiler.keep_scalars(loss=loss)


def _update(
    config: TrainConfig, strategy: Strategy, profiler: Session, inject: Callable[[Phase, int], None], step: int
) -> None:
    if config.clip_norm is not None:
        with profiler.phase(Phase.GRAD_NORM):
            inject(Phase.GRAD_NORM, step)
            profiler.keep_scalars(grad_norm=strategy.clip(config.clip_norm))
    with profiler.phase(Phase.OPTIMIZER):
        inject(Phase.OPTIMIZER, step)
        strategy.optimize()


def _do_nothing(phase: Phase, step: int) -> None:
    """Injections happen once per step, in its first micro-step."""
