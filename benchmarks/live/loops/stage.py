"""What a loop of the bench ``live`` runs on: its steps, one rank's delay, and the times at which rank 0 was in step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.live.live_job import LOOPS, LiveJob
from benchmarks.live.loops.bucket_hook import make_hook
from benchmarks.live.loops.schedule import Turn, acts_in, plan_turns
from distprof.config.schema import ProfileConfig
from distprof.profiler.job.run_files import JobPlan
from distprof.profiler.rank.build_profiler import start_profiler
from distprof.profiler.rank.profiler import Profiler
from distprof.world import World

PROFILE = ProfileConfig(
    level="phases", nvtx="auto", nvtx_module_depth=3, window_s=1.0, shadow_every=20, max_overhead_ratio=0.03
)
"""As in docs/api.md: what a user writes."""


class Stage:
    """One job on one rank.

    A cycle lasts from one call of `synced` to the next. Whether the delay acts changes there, where all ranks have just
    waited for each other, and not where a step begins: a rank that is delayed after its last collective holds the
    others up in the next step only.
    """

    def __init__(self, world: World, job: LiveJob, folder: Path) -> None:
        """Plans the job; ``folder`` will be its run folder."""
        self.world, self._job, self._folder = world, job, folder
        self._turns = plan_turns(job)
        self._ends_ns = [time.perf_counter_ns()]
        self._delay_ns, self._strokes = 0.0, 0
        self._profiler: Profiler | None = None

    def start(self, *models: nn.Module, strategy: str) -> Profiler:
        """Starts the profiler, which watches the models. Collective."""
        self._hook_buckets(models, ("hook older than the profiler",))
        job = start_profiler(
            self.world,
            JobPlan(name=self._job.loop, strategy=strategy, precision="fp32", config={}, run_dir=str(self._folder)),
            PROFILE, print_line=lambda text: None,
        )  # fmt: skip
        for model in models:
            job.profiler.watch(model)
        self._hook_buckets(models, ("hook of the first bucket", "hook of the last bucket"))
        self._profiler = job.profiler
        return job.profiler

    def hook_layer(self, layer: nn.Module) -> None:
        """Lets delays act in hooks of this layer, in forward and in backward."""
        layer.register_forward_hook(lambda *arguments: self.pause("module hook"))
        layer.register_full_backward_hook(lambda *arguments: self.pause("gradient hook"))

    def turns(self) -> Iterator[Turn]:
        """The steps to make."""
        yield from self._turns

    def pause(self, place: str) -> None:
        """The delay, if it acts here and has not yet in this cycle; in a cycle of several steps, the share of one."""
        delay = self._job.delay
        if not self._strokes or delay is None or delay.place != place:
            return
        self._strokes -= 1
        delay_ns = self._delay_ns / LOOPS[self._job.loop].steps
        if not delay.spins:
            time.sleep(delay_ns / 1e9)
            return
        end_ns = time.perf_counter_ns() + delay_ns
        while time.perf_counter_ns() < end_ns:
            pass

    def synced(self) -> None:
        """The loop calls it once per turn: every rank has just waited for the others."""
        self._ends_ns.append(time.perf_counter_ns())
        done = len(self._ends_ns) - 1
        delay = self._job.delay
        if delay is None or delay.rank != self.world.rank or done == len(self._turns):
            return
        following = self._turns[done]
        if self._turns[done - 1].part == "calibration" != following.part:
            self._delay_ns = delay.every * self._job.size_ratio * statistics.median(self._cycles_ns("calibration"))
        self._strokes = LOOPS[self._job.loop].steps if acts_in(delay, following) else 0

    def finish(self) -> dict[str, Any]:
        """Closes the profiler. Collective.

        Returns:
            What this rank measured: the length of its delay, and its cycles by part of the job, each with whether it
            was delayed.
        """
        assert self._profiler is not None
        self._profiler.close()
        dist.barrier()
        halves = [
            [[turn.delayed, cycle_ns] for turn, cycle_ns in self._pair_up() if turn.part == f"pair {half}"]
            for half in (0, 1)
        ]
        return {"delay_ns": self._delay_ns, "judged_ns": self._cycles_ns("judged"), "halves": halves}

    def _pair_up(self) -> Iterator[tuple[Turn, int]]:
        ends_ns = self._ends_ns
        for turn, begin_ns, end_ns in zip(self._turns, ends_ns, ends_ns[1:], strict=False):
            yield turn, end_ns - begin_ns

    def _cycles_ns(self, part: str) -> list[int]:
        return [cycle_ns for turn, cycle_ns in self._pair_up() if turn.part == part]

    def _hook_buckets(self, models: tuple[nn.Module, ...], places: tuple[str, ...]) -> None:
        """Registers a communication hook of the user's if the delay acts in one of these."""
        delay = self._job.delay
        if delay is None or delay.place not in places:
            return
        place = delay.place
        hook = make_hook(place, only_last=place == "hook of the last bucket", pause=self.pause)
        for model in models:
            if isinstance(model, DistributedDataParallel):
                model.register_comm_hook(None, hook)
                return  # the first: one delay has one place
