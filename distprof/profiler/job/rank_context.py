"""What the parts of one rank's profiler share, from the beginning and once the ranks of the job have met."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from msgspec import Struct

from distprof.config.schema import ProfileConfig
from distprof.facts.run import Clock
from distprof.profiler.job.run_files import Streams
from distprof.world import World


class RankContext(Struct, frozen=True, kw_only=True):
    """One rank of a job, and how it records."""

    world: World
    profile: ProfileConfig
    timeout_s: float
    """How long the end of the job waits for the slowest rank."""
    print_line: Callable[[str], None]
    """Says a line to the user."""
    warn: Callable[[str], None]
    """The same, once for each text and with the rank."""

    @property
    def phases(self) -> bool:
        """Whether phases are recorded, not step times only."""
        return self.profile.level != "off"

    @property
    def on_device(self) -> bool:
        """Whether the rank trains on a GPU."""
        return self.world.device.type == "cuda"

    @property
    def clock(self) -> Clock:
        """The clock on which steps are compared: the device's on a GPU, whose host runs ahead of it."""
        return Clock.DEVICE if self.on_device else Clock.HOST

    @property
    def every(self) -> int | None:
        """In every how many steps single collectives are timed on the device; 0: never. None: as their cost allows."""
        given = self.profile.collectives
        if given != "auto":
            return given
        return 0 if self.few_connections else None

    @property
    def few_connections(self) -> bool:
        """Whether all streams of a GPU share one queue, in which an event may hold up what another stream does."""
        return os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"

    @property
    def limit_ratio(self) -> float | None:
        """The largest cost of recording that is allowed, as a share of the step. None: any cost."""
        return self.profile.max_overhead_ratio if self.phases else None


class OpenRankContext(RankContext, frozen=True, kw_only=True):
    """A rank of a job whose files are open."""

    folder: Path
    streams: Streams
    group: dist.ProcessGroup | None
    """A gloo group for distprof alone. None: the job has one rank."""
    meet: Callable[[], None]
    """Waits for the other ranks, while ``group`` may be in use. Collective; only for a level with a window of its own,
    or under a tool that captures."""


class WarnOnce:
    """Says each warning once, from any thread."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line, self._said, self._lock = print_line, set[str](), threading.Lock()

    def __call__(self, text: str) -> None:
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        self._print_line(text)
