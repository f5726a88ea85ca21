"""How long each operation of a made-up pipeline takes, drawn before anything is played: a job without a fault has the
same noise as the job with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import FloatArray
from distprof.facts.operations import Kind

if TYPE_CHECKING:
    from benchmarks.simulate.pipeline_job import PipelineJob

FORWARD_NS, BACKWARD_NS, JOINT_NS, OPTIMIZER_NS = 20e6, 40e6, 5e6, 4e6
SPIKE_FACTOR = 3.0
MEMORY_RATIO = 0.9
"""How much of a worker's speed lasts until the next step."""
LAUNCH_NS = 0.2e6
"""Mean time from the end of what an operation waits for to its start; the simple rules have none."""
PASSES = (Kind.FORWARD, Kind.BACKWARD)


class OperationRow(NamedTuple):
    """A row of the table."""

    replica: int
    stage: int
    step: int
    kind: Kind
    start_ns: float
    duration_ns: float
    number: int
    micro_batch: int


class Durations(Struct, frozen=True, kw_only=True):
    """Without any waiting. The passes are the forward and the backward."""

    compute_ns: FloatArray
    """``[num_steps, num_replicas, num_stages, num_passes, num_micro_batches]``, as the next two."""
    transfer_ns: FloatArray
    """By the lower stage of the link."""
    launch_ns: FloatArray
    joint_ns: FloatArray
    """Of the gradients and of their norm, ``[num_steps, 2]``."""
    optimizer_ns: FloatArray
    """``[num_steps, num_replicas, num_stages]``"""


def draw_durations(job: PipelineJob) -> Durations:
    """Those of a job."""
    speed, noise, lengths, ends, launches = (np.random.default_rng([job.seed, index]) for index in range(5))
    shape = (job.steps, job.replicas, job.stages, len(PASSES), job.micro_batches)
    usual_ns = np.array([FORWARD_NS, BACKWARD_NS])[:, None]
    length = np.exp(job.length_ratio * lengths.standard_normal((job.steps, job.replicas, 1, 1, job.micro_batches)))
    if job.equal_lengths:
        length = length.mean(axis=(1, 4), keepdims=True)
    transfers_ns = job.transfer_ns * _draw_factors(job, noise, shape)
    compute_ns = usual_ns * _draw_factors(job, noise, shape) * length
    compute_ns *= np.exp(_draw_speeds(job, speed))[..., None, None]
    _apply_faults(job, compute_ns, transfers_ns)
    return Durations(
        compute_ns=compute_ns, transfer_ns=transfers_ns, launch_ns=LAUNCH_NS * launches.exponential(size=shape),
        joint_ns=JOINT_NS * _draw_factors(job, ends, (job.steps, 2)),
        optimizer_ns=OPTIMIZER_NS * _draw_factors(job, ends, shape[:3]),
    )  # fmt: skip


def _draw_factors(job: PipelineJob, draws: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    factors = np.exp(job.noise_ratio * draws.standard_normal(shape))
    return np.where(draws.random(shape) < job.spike_ratio, SPIKE_FACTOR * factors, factors)


def _draw_speeds(job: PipelineJob, draws: np.random.Generator) -> FloatArray:
    """Logarithms, ``[num_steps, num_replicas, num_stages]``."""
    speeds = np.zeros((job.steps, job.replicas, job.stages))
    before = np.zeros(speeds.shape[1:])
    for step in range(job.steps):
        fresh = np.sqrt(1 - MEMORY_RATIO**2) * job.drift_ratio * draws.standard_normal(before.shape)
        before = speeds[step] = MEMORY_RATIO * before + fresh
    return speeds


def _apply_faults(job: PipelineJob, compute_ns: FloatArray, transfer_ns: FloatArray) -> None:
    for (replica, stage), factor in job.slow.items():
        for kind in job.slow_kinds:
            compute_ns[:, replica, stage, PASSES.index(kind)] *= factor
    for stage, factor in job.uneven.items():
        compute_ns[:, :, stage] *= factor
    for (step, replica), factor in job.long_steps.items():
        compute_ns[step, replica] *= factor
    for link, factor in job.slow_links.items():
        transfer_ns[:, slice(None) if job.slow_links_of is None else job.slow_links_of, link] *= factor
