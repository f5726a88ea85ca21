"""What the report says about a pipeline."""

from __future__ import annotations

from msgspec import Struct

from distprof.report.operations_report import PipelineCause


class PipelineRankReport(Struct, frozen=True, kw_only=True):
    """What one rank does in a step of a pipeline, means per step, ns."""

    rank: int
    """Global rank."""
    replica: int
    """Which copy of the pipeline it belongs to, counted from 0."""
    stage: int | None
    """Its place in the pipeline, counted from 0. None: it cannot be told."""
    chunks: int
    """Stages on this rank: more than one where the schedule is interleaved."""
    micro_batches: int | None
    """Of each of its stages in a step. None: their number changes from step to step."""
    forward_ns: float
    """Computing forwards of all micro-batches."""
    backward_ns: float
    """Computing backwards, without collectives inside them."""
    waiting_ns: float
    """Standing still: in sends and receives, and in collectives after the last backward other than the synchronisation
    of gradients. The sum of the next three."""
    warmup_ns: float
    """Before the first forward."""
    steady_ns: float
    """Between the first forward and the end of the last backward."""
    cooldown_ns: float
    """After the last backward."""
    late_sender_ns: float | None
    """The part of the waiting in which what the rank receives had not been sent yet, over the steps in which all of its
    sends and receives are matched. None: fewer than half of them are, or clocks are not close enough."""
    late_receiver_ns: float | None
    """The part of the waiting in which whoever the rank sends to did not receive yet. None: as above."""
    transfer_ns: float | None
    """The rest of the waiting in sends and receives: both ranks were ready. None: as above."""
    bubble_ratio: float | None
    """Waiting as a part of waiting, forwards and backwards. None: there is nothing of them."""
    steps_used: int
    """Steps behind these means."""


class PipelineReport(Struct, frozen=True, kw_only=True):
    """A pipeline: what its stages do for each micro-batch, and how long they stand still."""

    clock: str
    """On which everything was timed: "host", or "device" where tensors are exchanged on GPUs."""
    num_stages: int | None
    """Ranks of one copy of the pipeline. None: they differ."""
    replicas: int
    """Copies of the pipeline."""
    micro_batches: int | None
    """Per step, where it is the same number on all ranks and in all steps."""
    bubble_ratio: float | None
    """Mean over ranks of their waiting, as a part of waiting, forwards and backwards."""
    theory_ratio: float | None
    """The bubble that GPipe, 1F1B or interleaved 1F1B has if all stages take equally long and transfers no time: of p
    ranks with v stages each and m micro-batches, (p - 1) / (v m + p - 1). Source: Narayanan et al. (2021), Efficient
    Large-Scale Language Model Training on GPU Clusters. None: see the notes."""
    stages: tuple[PipelineRankReport, ...]
    """One per rank, in ascending order."""
    notes: tuple[str, ...]
    """What is not known, and why."""
    judged: bool
    """Whether causes were looked for; if not, the verdict's reason says why."""
    causes: tuple[PipelineCause, ...]
    """What makes its steps longer, the one that costs most first."""
