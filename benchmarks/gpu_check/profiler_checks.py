"""What the profiler records in a process with one rank over NCCL, through its public interface."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu_check.check_result import CheckResult
from benchmarks.gpu_check.gpu import CheckedGpu
from distprof.config.schema import ProfileConfig
from distprof.facts.run import Run
from distprof.profiler.job.run_files import JobPlan
from distprof.profiler.rank.build_profiler import start_profiler
from distprof.profiler.rank.profiler import Profiler
from distprof.record.collectives.flight_recorder import read_ring
from distprof.record.stalls.stall_watch import read_timeout_s
from distprof.storage.run_folder import read_run
from distprof.world import World, join, leave, read_identity

STEPS, WARMUP = 40, 5
TIMEOUT_S = 120.0
STEP_MS, HOOK_MS = 5.0, 2.0
Level = str


def check_profiler(gpu: CheckedGpu, *, dry: bool) -> Iterator[CheckResult]:
    """The checks of this file. Joins a process group of one rank, and leaves it."""
    world = join(read_identity({}), device=gpu.name, backend="gloo" if dry else "nccl", timeout_s=TIMEOUT_S)
    try:
        timeout_s = read_timeout_s()
        yield CheckResult(name="the group's time-out, s", value=timeout_s, low=TIMEOUT_S, high=TIMEOUT_S)
        for level in ("off", "phases"):
            yield from _check_level(gpu, world, level)
        yield from _check_ring(gpu, world)
        yield _check_exposed(gpu, world)
        yield _check_waiting(gpu, world)
    finally:
        leave()


def _check_level(gpu: CheckedGpu, world: World, level: Level) -> Iterator[CheckResult]:
    gpu.spin(STEP_MS)
    loss, waits = torch.ones((), device=world.device), []

    def train(profiler: Profiler) -> None:
        for step in range(STEPS):
            try:
                with gpu.forbid_synchronising(), profiler.step(warmup=step < WARMUP), profiler.phase("forward"):
                    gpu.spin(STEP_MS)
                    profiler.keep_scalars(loss=loss, grad_norm=loss)
            except RuntimeError as error:
                waits.append(str(error).splitlines()[0])

    run = _record(world, level, train)
    note = waits[0] if waits else ""
    yield CheckResult(name=f"level {level}: steps that wait for the device", value=len(waits), low=0, high=0, note=note)
    if level == "off":
        return
    device_ns = run.column("step_device_ns")[0]
    yield CheckResult(
        name="steps with device times, of all", value=float(np.isfinite(device_ns).mean()), low=1.0, high=1.0
    )
    for name, column in (("step", "step_device_ns"), ("forward", "forward_device_ns")):
        value = _find_middle_ms(run, column)
        yield CheckResult(
            name=f"a {name} that spins for {STEP_MS:g} ms, device, ms", value=value, low=STEP_MS * 0.97,
            high=STEP_MS * 1.05,
        )  # fmt: skip


def _check_ring(gpu: CheckedGpu, world: World) -> Iterator[CheckResult]:
    numbers = torch.ones(1024, device=world.device)
    for _ in range(8):
        dist.all_reduce(numbers)
    gpu.synchronise()
    entries = (read_ring() or {"entries": []})["entries"]
    seen = sum("nccl:all_reduce" in str(entry.get("profiling_name")) for entry in entries)
    yield CheckResult(name="all-reduces over NCCL in the Flight Recorder", value=float(seen), low=8)


def _check_exposed(gpu: CheckedGpu, world: World) -> CheckResult:
    """A hook that spins on a stream of its own is a collective that compute waits for."""
    model = _make_model(world)
    gpu.spin(HOOK_MS)

    devices: list[int | str | torch.device] = [] if world.device.type == "cpu" else [world.device]

    def hook(bucket: Any) -> Any:
        with gpu.beside():
            gpu.spin(HOOK_MS)
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
            future.set_result(bucket.buffer())
        return future

    inputs = torch.randn(8, 256, device=world.device)

    def train(profiler: Profiler) -> None:
        profiler.watch(model)  # before the hook: one that is registered earlier is not looked into
        model.register_comm_hook(None, lambda state, bucket: hook(bucket))  # torch refuses annotations that are text
        for step in range(STEPS):
            _train_step(profiler, model, inputs, warmup=step < WARMUP)

    run = _record(world, "phases", train)
    value = _find_middle_ms(run, "all_reduce_device_ns")
    name = f"DDP: exposed all_reduce of {HOOK_MS:g} ms, device, ms"
    return CheckResult(name=name, value=value, low=HOOK_MS * 0.95, high=HOOK_MS * 1.1)


def _check_waiting(gpu: CheckedGpu, world: World) -> CheckResult:
    """Whether timing buckets makes a step of DDP wait for the device where it does not at level off."""
    waits = {level: _count_waits(gpu, world, level) for level in ("off", "phases")}
    return CheckResult(
        name="DDP: steps that wait for the device because they are recorded", value=waits["phases"] - waits["off"],
        low=0, high=0,
    )  # fmt: skip


def _count_waits(gpu: CheckedGpu, world: World, level: Level) -> int:
    model, inputs, waits = _make_model(world), torch.randn(8, 256, device=world.device), list[str]()

    def train(profiler: Profiler) -> None:
        profiler.watch(model)
        for step in range(STEPS):
            with contextlib.ExitStack() as stack:
                if step >= WARMUP:  # DDP builds its buckets in the first
                    stack.enter_context(gpu.forbid_synchronising())
                try:
                    _train_step(profiler, model, inputs, warmup=step < WARMUP)
                except RuntimeError as error:
                    waits.append(str(error))

    _record(world, level, train)
    return len(waits)


def _make_model(world: World) -> DistributedDataParallel:
    return DistributedDataParallel(
        nn.Sequential(*[nn.Linear(256, 256) for _ in range(3)]).to(world.device),
        device_ids=None if world.device.type == "cpu" else [world.device.index],
    )


def _train_step(profiler: Profiler, model: nn.Module, inputs: torch.Tensor, *, warmup: bool) -> None:
    with profiler.step(warmup=warmup):
        with profiler.phase("forward"):
            loss = model(inputs).sum()
        with profiler.phase("backward"):
            loss.backward()


def _record(world: World, level: Level, train: Callable[[Profiler], None]) -> Run:
    profile = ProfileConfig(
        level=level, nvtx=False, nvtx_module_depth=0, window_s=0.1, shadow_every=0, max_overhead_ratio=None  # type: ignore[arg-type]
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="distprof-gpu-") as parent:
        job = start_profiler(
            world, JobPlan(name="check", strategy="none", precision="fp32", config={}, runs_dir=parent), profile,
            print_line=lambda text: None,
        )  # fmt: skip
        train(job.profiler)
        job.profiler.close()
        return read_run(Path(job.folder))


def _find_middle_ms(run: Run, column: str) -> float:
    """The median of the measured steps; NaN, which no range holds: not measured."""
    values: Any = run.column(column)[0, WARMUP:]
    return math.nan if not np.isfinite(values).any() else float(np.nanmedian(values)) / 1e6
