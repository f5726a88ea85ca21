"""Synthetic PyTorch profiler traces, as each rank of a job would have written them, and their true contents.

One timeline is generated, with what every rank of the job does in the same order. A slow rank, if any, comes late to
every step, and the others wait for it in the step's first collective.
"""

from __future__ import annotations

import enum
import gzip
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from benchmarks.synthetic_trace_text import GENERATIONS, TraceText

EVENTS_PER_KERNEL = 7
"""Events in the file for one launch: three operators, a call, two arrows and the kernel."""
LAUNCH_NS = 6_000
HOST_STEP_NS = 1_500_000
BUCKET_KERNELS = 24
"""Backward kernels between two collectives."""
MESSAGE_ELEMENTS = 6_553_600
TRANSFER_NS = 900_000
COPY_NS = 180_000
COPY_BYTES = 1 << 20
SLOTS = 64
"""The number of different operators, after which their durations repeat."""


class TraceGeneration(enum.Enum):
    """The profiler generation that the file imitates."""

    OLD = "old"
    """2022: whole microseconds on the Unix clock, ``ncclKernel_*``, no details of collectives."""
    PRESENT = "present"
    """2024 and later: nanoseconds after ``baseTimeNanoseconds``, ``ncclDevKernel_*`` with message and group."""


class TraceTruth(Struct, kw_only=True):
    """The contents of a synthetic trace. Times are ns."""

    num_events: int = 0
    """All events in the file, of every kind."""
    num_steps: int = 0
    compute_kernels: int = 0
    compute_ns: int = 0
    """Sum of the kernels that are not collectives."""
    collectives: int = 0
    collectives_ns: int = 0
    copies: int = 0
    copies_ns: int = 0
    calls: int = 0
    operators: int = 0
    annotations: int = 0
    begin_ns: int = 0
    """Unix clock: begin of the first step."""
    end_ns: int = 0
    """Unix clock: end of the last step."""
    step_ns: list[int] = field(default_factory=list)
    """``[num_steps]``"""


def make_kineto(
    path: Path, *, rank: int = 0, world_size: int = 1, num_events: int = 20_000, num_steps: int = 4, seed: int = 0,
    generation: TraceGeneration = TraceGeneration.PRESENT, slow_rank: int | None = None, late_ns: int = 0,
    level: int = 1,
) -> TraceTruth:  # fmt: skip
    """Writes one rank's trace, gzipped if the name ends in ``.gz``; equal arguments give equal bytes.

    Args:
        path: The file.
        rank: The trace's rank.
        world_size: Ranks in the job.
        num_events: The approximate number of events, of all kinds.
        num_steps: Steps; the events are spread over them.
        seed: Seed of the durations, which all ranks of a job share.
        generation: The profiler generation to imitate.
        slow_rank: The rank that comes late to every step, while the others wait.
        late_ns: How late it is, host time.
        level: Compression level.
    """
    writer = _TraceWriter(rank=rank, seed=seed, generation=generation, slow_rank=slow_rank, late_ns=late_ns)
    kernels = max(num_events // num_steps // EVENTS_PER_KERNEL, 2 * BUCKET_KERNELS)
    for step in range(num_steps):
        writer.step(step, kernels)
    text = writer.text.close(rank=rank, world_size=world_size).encode()
    if path.suffix == ".gz":
        with open(path, "wb") as file, gzip.GzipFile("", "wb", level, file, mtime=0) as packed:
            packed.write(text)
    else:
        path.write_bytes(text)
    writer.truth.num_events = writer.text.num_events
    return writer.truth


class _TraceWriter:
    """Advances the host's, the compute stream's and the communication stream's time, step by step."""

    def __init__(
        self, *, rank: int, seed: int, generation: TraceGeneration, slow_rank: int | None, late_ns: int
    ) -> None:
        draw = np.random.default_rng(seed)
        self.grain_ns, begin_ns = GENERATIONS[generation.value]
        self.text = TraceText(rank=rank, generation=generation.value)
        self.truth = TraceTruth(begin_ns=begin_ns)
        self.kernel_ns = self._round(draw.uniform(20_000, 90_000, SLOTS))
        self.host_ns = self._round(draw.uniform(9_000, 30_000, SLOTS))
        self.own_late_ns = late_ns if rank == slow_rank else 0
        self.late_ns = late_ns if slow_rank is not None else 0
        self.now_ns = begin_ns
        self.slot = 0

    def _round(self, values: np.ndarray) -> list[int]:
        return [int(value) // self.grain_ns * self.grain_ns for value in values]

    def step(self, number: int, kernels: int) -> None:
        """Adds a step: a copy, forward, backward with concurrent collectives, and then the optimizer."""
        truth, begin_ns = self.truth, self.now_ns
        forward, backward, optimizer = kernels // 3, kernels - kernels // 3 - kernels // 8, kernels // 8
        self.now_ns += HOST_STEP_NS + self.own_late_ns
        self.device_ns = self.now_ns
        self._copy()
        self._launch_many(forward, "forward")
        self.link_ns = 0
        backward_begin_ns = self.now_ns
        while backward > 0:
            self._launch_many(min(backward, BUCKET_KERNELS), "backward")
            backward -= BUCKET_KERNELS
            self._reduce()
        self.text.annotate("## backward ##", backward_begin_ns, self.now_ns)
        self.device_ns = max(self.device_ns, self.link_ns)
        optimizer_begin_ns = self.now_ns
        self._launch_many(optimizer, "optimizer")
        self.text.annotate("Optimizer.step#AdamW.step", optimizer_begin_ns, self.now_ns)
        end_ns = max(self.device_ns, self.now_ns + LAUNCH_NS)
        self.text.call("cudaDeviceSynchronize", self.now_ns, end_ns)
        self.now_ns = end_ns
        self.text.annotate(f"ProfilerStep#{number}", begin_ns, self.now_ns)
        truth.calls += 1
        truth.annotations += 3
        truth.num_steps += 1
        truth.step_ns.append(self.now_ns - begin_ns)
        truth.end_ns = self.now_ns

    def _copy(self) -> None:
        begin_ns = max(self.device_ns, self.now_ns + LAUNCH_NS)
        self.text.copy(self.now_ns, begin_ns, COPY_NS, COPY_BYTES)
        self.device_ns = begin_ns + COPY_NS
        self.now_ns += LAUNCH_NS
        self.truth.copies += 1
        self.truth.copies_ns += COPY_NS
        self.truth.calls += 1

    def _launch_many(self, count: int, phase: str) -> None:
        """Adds this many kernels, one operator each, as the host launches them."""
        now_ns, device_ns, slot, total_ns = self.now_ns, self.device_ns, self.slot, 0
        kernel, kernel_ns, host_ns = self.text.kernel, self.kernel_ns, self.host_ns
        backward = phase == "backward"
        for _ in range(count):
            slot = (slot + 1) % SLOTS
            lasts_ns, host_lasts_ns = kernel_ns[slot], host_ns[slot]
            device_ns = max(device_ns, now_ns + LAUNCH_NS)
            kernel(slot, backward, now_ns, host_lasts_ns, device_ns, lasts_ns)
            device_ns += lasts_ns
            total_ns += lasts_ns
            now_ns += host_lasts_ns
        self.now_ns, self.device_ns, self.slot = now_ns, device_ns, slot
        self.truth.compute_kernels += count
        self.truth.compute_ns += total_ns
        self.truth.calls += count
        self.truth.operators += 3 * count

    def _reduce(self) -> None:
        """Adds a collective: it begins when this rank arrives, and ends one transfer after the last rank arrives."""
        behind_ns = self.late_ns - self.own_late_ns  # how much later than this rank the last one arrives
        ready_ns = max(self.device_ns, self.now_ns + LAUNCH_NS)
        begin_ns = max(ready_ns, self.link_ns)
        end_ns = max(ready_ns + behind_ns, self.link_ns) + TRANSFER_NS
        self.text.collective(self.now_ns, begin_ns, end_ns - begin_ns, MESSAGE_ELEMENTS)
        self.link_ns = end_ns
        self.now_ns += LAUNCH_NS
        self.truth.collectives += 1
        self.truth.collectives_ns += end_ns - begin_ns
        self.truth.calls += 1
        self.truth.annotations += 1
        self.truth.operators += 1
