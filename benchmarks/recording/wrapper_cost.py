"""What recording takes in real steps of DDP and FSDP2: processor time of one process, with and without it.

Everything is in it that the calls of `benchmarks.recording.recording_cost` leave out: torch's way into the wrappers and
out of them, callbacks on gloo's threads, and caches that the step's own work has filled. What moves data is not: what
the kernel takes for that differs from step to step by more than recording does. DDP reduces over gloo with itself
alone, on gloo's threads; FSDP2 issues nothing on one rank, so it gets a group of torch's that has two, in which
everything is over at once. The models are tiny, so that recording is a large part of a step.

Blocks of few steps take turns, in random order: what slows down the machine slows down both of a pair, or spoils a pair
that does not count.
"""

from __future__ import annotations

import gc
import json
import math
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from benchmarks.recording.paired import AddedTime, compare_pairs
from distprof.facts.plain import make_plain
from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.step.collective_log import FIRST_STEPS

BUCKETS, UNITS = 13, 14
"""Of gpt2_small: gradients in buckets of 25 MiB; 12 layers, the embeddings and the rest."""
WIDTH = 64
UNTIMED = 2
"""Steps at the begin of a block."""
TIMED = {"ddp": 32, "fsdp": 8}
"""Steps after those. The ends of 13 buckets are seen in every 32nd step: in one of each block."""
TURNS = 200
UNCOUNTED_RATIO = 0.25
"""As many pairs more come before those that count: for the first second or so, steps take longer on some machines."""
NAMES = tuple(TIMED)


class WrapperCost(Struct, frozen=True, kw_only=True):
    """Processor time of recording one step, ns."""

    step_ns: float
    """The step itself, without recording: the median."""
    added: AddedTime
    """What recording adds to it, in all threads."""
    training: AddedTime
    """What of that is on the training thread. The rest is on torch's."""
    skipped: AddedTime
    """What a step takes of which nothing is recorded, in all threads."""
    stride: int
    """One burst of so many is recorded in a job of such steps."""
    background_ns: float
    """What packing the step's row takes beside that, on the background thread: the median."""

    @property
    def mean(self) -> AddedTime:
        """What a step of such a job takes on average; its interval is that of the two parts, added."""
        added, skipped = make_plain(self.added), make_plain(self.skipped)
        return AddedTime(**{end: (added[end] + (self.stride - 1) * skipped[end]) / self.stride for end in added})


class _Block(NamedTuple):
    """Mean of the steps of a block, ns."""

    process_ns: float
    thread_ns: float


def measure_wrappers(turns: int = TURNS) -> dict[str, WrapperCost]:
    """Starts a process and measures in it; keys are `NAMES`.

    Args:
        turns: Pairs of blocks.
    """
    import torch.multiprocessing as processes  # loads torch: only for those who measure

    with tempfile.TemporaryDirectory(prefix="distprof-cost-") as folder:
        path = Path(folder) / "found.json"
        processes.start_processes(_measure, args=(str(path), turns), nprocs=1, start_method="spawn")  # type: ignore[attr-defined, no-untyped-call]
        found = json.loads(path.read_text())
    return {name: WrapperCost(**{key: _read(value) for key, value in cost.items()}) for name, cost in found.items()}


def _read(value: Any) -> Any:
    return AddedTime(**value) if isinstance(value, dict) else value


def _measure(_: int, path: str, turns: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # nothing is received of the second rank's parameters: they are what was in memory
    found = {}
    for name, make in (("ddp", make_ddp), ("fsdp", make_fsdp)):
        found[name] = make_plain(measure_model(make(), turns, timed=TIMED[name]))
        dist.destroy_process_group()
    Path(path).write_text(json.dumps(found))


def make_ddp() -> Any:
    """A model with `BUCKETS` buckets, and its process group."""
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BUCKETS)))
    return DistributedDataParallel(layers, bucket_cap_mb=0.9 * 4 * WIDTH * WIDTH / 2**20)  # one weight each


def make_fsdp() -> Any:
    """A model with `UNITS` units, and its process group, of which the other rank does not exist."""
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(UNITS)))
    for layer in list(layers)[:-1]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(layers, mesh=mesh)


def measure_model(model: Any, turns: int, *, timed: int) -> WrapperCost:
    """Measures a model that is not watched.

    Args:
        model: From `make_ddp` or `make_fsdp`.
        turns: Pairs of blocks that count.
        timed: Steps of a block that are timed.
    """
    import torch

    from distprof.profiler.rank.pace import estimate_cost_ns, find_needed, limit_stride
    from distprof.record.step.recorder import Recorder
    from distprof.record.step.step_row import pack_row

    recorder, batch, draws, number = Recorder(), torch.ones(4, WIDTH), random.Random(0), FIRST_STEPS
    run = make_recorded(recorder, model)
    blocks: dict[str, list[_Block]] = {"plain": [], "recorded": [], "skipped": []}
    packed_ns, costs_ns = list[float](), list[float]()
    for _ in range(turns + math.ceil(UNCOUNTED_RATIO * turns)):
        for condition in draws.sample([*blocks], len(blocks)):
            if condition == "plain":
                blocks[condition].append(_time_block(lambda _: model(batch).sum().backward(), 0, timed))
                continue
            undo = watch(model, recorder)
            skips = condition == "skipped"
            blocks[condition].append(_time_block(partial(run, shadow=skips), number, timed))
            undo()
            number += UNTIMED + timed
            begin_ns = time.thread_time_ns()
            records = recorder.drain()
            for record in records:
                pack_row(record, memory_bytes=None, memory_peak_bytes=None)
            if not skips:
                packed_ns.append((time.thread_time_ns() - begin_ns) / (UNTIMED + timed))
                costs_ns += map(estimate_cost_ns, records)
    without, recorded, skipped = (found[-turns:] for found in blocks.values())
    step_ns = float(np.median([block.process_ns for block in without]))
    needed = find_needed(float(np.median(costs_ns)), step_ns)

    def compare(found: list[_Block], clock: int) -> AddedTime:
        return compare_pairs([block[clock] for block in without], [block[clock] for block in found])

    return WrapperCost(
        step_ns=step_ns, added=compare(recorded, 0), training=compare(recorded, 1), skipped=compare(skipped, 0),
        stride=limit_stride(needed), background_ns=float(np.median(packed_ns)),
    )  # fmt: skip


def _time_block(run: Callable[[int], None], first: int, timed: int) -> _Block:
    gc.collect(0)
    gc.disable()
    for number in range(first, first + UNTIMED):
        run(number)
    begin_ns, begin_thread_ns = time.process_time_ns(), time.thread_time_ns()
    for number in range(first + UNTIMED, first + UNTIMED + timed):
        run(number)
    end_thread_ns, end_ns = time.thread_time_ns(), time.process_time_ns()
    gc.enable()
    return _Block((end_ns - begin_ns) / timed, (end_thread_ns - begin_thread_ns) / timed)


def make_recorded(recorder: Any, model: Any) -> Callable[..., None]:
    """What makes a step, given its number and whether it is a shadow step, and records it as a training loop does."""
    import torch

    from distprof.record.step.timeline import PhaseContext

    forward, backward = (
        PhaseContext(recorder, recorder.timeline, PHASE_CODE[phase]) for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    batch = torch.ones(4, WIDTH)

    def run(number: int, *, shadow: bool = False) -> None:
        recorder.begin_step(number, warmup=False, shadow=shadow)
        with forward:
            loss = model(batch).sum()
        with backward:
            loss.backward()
        recorder.end_step()

    return run


def watch(model: Any, recorder: Any) -> Callable[[], None]:
    """Puts everything around torch that a session does; returns a function that undoes it."""
    from torch.nn.parallel import DistributedDataParallel

    from distprof.record.collectives.collective_watch import CollectiveWatch
    from distprof.record.collectives.collectives import watch_collectives
    from distprof.record.collectives.ddp import watch_ddp
    from distprof.record.collectives.fsdp import watch_fsdp

    collective_watch = CollectiveWatch(recorder)
    restore = watch_collectives(collective_watch)
    if isinstance(model, DistributedDataParallel):
        watch_ddp(model, collective_watch, lambda note: None)
    else:
        watch_fsdp(model, collective_watch, stream_waits=False)

    def undo() -> None:
        restore()
        for step in reversed(collective_watch.undo):
            step()

    return undo
