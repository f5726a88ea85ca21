"""What recording takes in real steps of DDP and FSDP2: process time of two ranks over gloo, with and without it.

Everything is in it that the calls of `distprof.cli.bench.recording_cost` leave out: torch's way into the wrappers and
out of them, callbacks on gloo's threads, and caches that the step's own work has filled. The models are tiny, so that
recording is a large part of a step and can be seen.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distprof.facts.run import PHASE_CODE, FloatArray, Phase

RANKS = 2
BUCKETS, UNITS = 13, 14
"""Of gpt2_small: gradients in buckets of 25 MiB; 12 layers, the embeddings and the rest."""
WIDTH = 64
STEPS = 40
"""In a row with recording, and as many without: what slows down the machine for a while slows down both."""
TURNS = 25
QUANTILE = 0.1
"""Of the steps' times, which other processes disturb only upwards."""
NAMES = ("ddp", "fsdp")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperCost:
    """Process time of recording one step, mean over ranks, ns."""

    step_ns: float
    """The step itself, without recording."""
    training_ns: float
    """What recording adds to it, on the training thread and on those of gloo."""
    background_ns: float
    """What packing the step's row takes beside that, on the background thread."""


def measure_wrappers(turns: int = TURNS) -> dict[str, WrapperCost]:
    """Starts the ranks and measures; keys are `NAMES`. Takes about 20 s.

    Args:
        turns: How often steps are timed with and without recording.
    """
    import torch.multiprocessing as processes  # loads torch: only for those who measure

    with tempfile.TemporaryDirectory(prefix="distprof-cost-") as folder:
        processes.start_processes(_measure_rank, args=(folder, turns), nprocs=RANKS, start_method="spawn")  # type: ignore[attr-defined, no-untyped-call]
        found = np.mean([json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)], axis=0)
    return {
        name: WrapperCost(step_ns=float(step), training_ns=float(training), background_ns=float(background))
        for name, (step, training, background) in zip(NAMES, found, strict=True)
    }


def _measure_rank(rank: int, folder: str, turns: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    where = (Path(folder) / "store").as_uri()
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=RANKS)
    found = [_measure_model(make(), turns) for make in (_make_ddp, _make_fsdp)]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _make_ddp() -> Any:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BUCKETS)))
    return DistributedDataParallel(layers, bucket_cap_mb=0.9 * 4 * WIDTH * WIDTH / 2**20)  # one weight each


def _make_fsdp() -> Any:
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(UNITS)))
    for layer in list(layers)[:-1]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(layers, mesh=mesh)


def _measure_model(model: Any, turns: int) -> tuple[float, float, float]:
    """A step's process time, what recording adds, and what packing its row takes, ns."""
    import torch

    from distprof.record.recorder import Recorder
    from distprof.record.rows import pack_row

    recorder, batch = Recorder(), torch.ones(4, WIDTH)
    plain_ns, recorded_ns, packed_ns = list[int](), list[int](), list[int]()
    for turn in range(turns):
        plain_ns += _time_steps(lambda _: model(batch).sum().backward())
        undo = _watch(model, recorder)
        recorded_ns += _time_steps(lambda number: _record_step(recorder, model, batch, number), turn * STEPS)
        undo()
        for _ in range(STEPS):
            begin_ns = time.process_time_ns()
            for record in recorder.drain(most=1):
                pack_row(record, memory_bytes=None, memory_peak_bytes=None)
            packed_ns.append(time.process_time_ns() - begin_ns)
    step_ns, with_ns, pack_ns = (_find_quantile(times) for times in (plain_ns, recorded_ns, packed_ns))
    return step_ns, with_ns - step_ns, pack_ns


def _time_steps(run: Callable[[int], None], first: int = 0) -> list[int]:
    """Process time of each of `STEPS` steps but the first, ns."""
    times_ns = []
    gc.disable()
    for number in range(first, first + STEPS):
        begin_ns = time.process_time_ns()
        run(number)
        times_ns.append(time.process_time_ns() - begin_ns)
    gc.enable()
    return times_ns[1:]


def _record_step(recorder: Any, model: Any, batch: Any, number: int) -> None:
    recorder.begin_step(number, warmup=False)
    recorder.enter(PHASE_CODE[Phase.FORWARD])
    loss = model(batch).sum()
    recorder.exit()
    recorder.enter(PHASE_CODE[Phase.BACKWARD])
    loss.backward()
    recorder.exit()
    recorder.end_step()


def _watch(model: Any, recorder: Any) -> Callable[[], None]:
    """Puts everything around torch that a session does; returns a function that undoes it."""
    from torch.nn.parallel import DistributedDataParallel

    from distprof.record.collective_watch import CollectiveWatch
    from distprof.record.collectives import watch_collectives
    from distprof.record.ddp import watch_ddp
    from distprof.record.fsdp import watch_fsdp

    watch = CollectiveWatch(recorder)
    restore = watch_collectives(watch)
    if isinstance(model, DistributedDataParallel):
        watch_ddp(model, watch, lambda note: None)
    else:
        watch_fsdp(model, watch, stream_waits=False)

    def undo() -> None:
        restore()
        for step in reversed(watch.undo):
            step()

    return undo


def _find_quantile(times_ns: list[int]) -> float:
    values: FloatArray = np.array(times_ns, dtype=np.float64)
    return float(np.quantile(values, QUANTILE))
