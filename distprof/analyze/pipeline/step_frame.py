"""Which steps of a recorded pipeline are replayed, and when each rank begins and ends what it does in them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.analyze.clocks.clocks import map_clocks
from distprof.analyze.cycles.pipeline_operations import PipelineOperations
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.operations import NUMBERS, Kind
from distprof.facts.run import COLUMN, Clock

MOST_OPERATIONS = 1_000_000
"""Of more than so many, some steps are replayed, evenly spread over the run."""


class StepFrame(Struct, frozen=True, kw_only=True):
    """The steps in which all ranks of all replicas did equally many passes; a worker is a stage of a replica."""

    steps: IntArray
    """Their numbers, ascending."""
    follows: BoolArray
    """Whether the step before each is the one before it here, ``[num_steps]``."""
    rank: IntArray
    """Of each worker, ``[num_workers]``: by replica, and then by stage; so are the next three."""
    replica: IntArray
    stage: IntArray
    position: IntArray
    """In ``Run.ranks``."""
    begin_ns: FloatArray
    """When it ended the step before or, if that was not recorded, began this one, on rank 0's clock, ``[num_steps,
    num_workers]``."""
    end_ns: FloatArray
    """When it ended this one, same shape."""
    at: IntArray
    """Positions of the steps on axis 1 of ``Run.rows``."""
    chosen: BoolArray
    """Which operations are of these steps, ``[num_operations]``."""
    slot: IntArray
    """Step and worker of each operation as one number."""

    @property
    def num_workers(self) -> int:
        """Stages of all replicas."""
        return len(self.rank)


def frame_steps(measured_steps: MeasuredSteps, operations: PipelineOperations) -> StepFrame | str:
    """The steps to replay, or why there are none."""
    ranks, first = np.unique(operations.rank, return_index=True)
    replica, stage = operations.dp[first], operations.pp[first]
    if operations.clock is not Clock.HOST:
        return "of exchanges on GPUs only some steps are timed"
    if operations.failures:
        return "sends and receives are not matched"
    if len(ranks) < int(measured_steps.present.sum()) or measured_steps.num_missing:
        return "some ranks have no micro-batches"
    num_replicas, num_stages = int(replica.max()) + 1, int(stage.max()) + 1
    places = replica * num_stages + stage
    if (stage < 0).any() or len(ranks) != num_replicas * num_stages or len(np.unique(places)) < len(ranks):
        return "the place of each rank in the pipeline cannot be told"
    if np.isnan(operations.missed_ns[operations.partner >= 0]).any():
        return "the clocks of the hosts are not known closely enough"
    order = np.argsort(places)
    ranks, replica, stage = ranks[order], replica[order], stage[order]
    worker = np.argsort(order)[np.searchsorted(np.unique(operations.rank), operations.rank)]
    position = np.searchsorted(np.array(measured_steps.numbers), ranks)
    steps, at = _choose_steps(measured_steps, operations, worker, len(ranks), position)
    if not len(steps):
        return "no step is whole on all ranks"
    begin_ns, end_ns, follows = _time_steps(measured_steps, position, at)
    index = np.minimum(np.searchsorted(steps, operations.step), len(steps) - 1)
    return StepFrame(
        steps=steps, follows=follows & (np.diff(steps, prepend=steps[0] - 2) == 1), rank=ranks, replica=replica,
        stage=stage, position=position, begin_ns=begin_ns, end_ns=end_ns, at=at,
        chosen=steps[index] == operations.step, slot=index * len(ranks) + worker,
    )  # fmt: skip


def _choose_steps(
    measured_steps: MeasuredSteps,
    operations: PipelineOperations,
    worker: IntArray,
    num_workers: int,
    position: IntArray,
) -> tuple[IntArray, IntArray]:
    """Steps with the usual number of forwards and backwards on every worker, and where their rows are."""
    steps, index = np.unique(operations.step, return_inverse=True)
    index = index.reshape(-1)
    usual = np.ones(len(steps), dtype=bool)
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        rows = operations.kind == NUMBERS[kind]
        slot = index[rows] * num_workers + worker[rows]
        count = np.bincount(slot, minlength=len(steps) * num_workers).reshape(len(steps), num_workers)
        usual &= (count == np.median(count, axis=0)).all(axis=1) & (count > 0).all(axis=1)
    numbers = measured_steps.run.rows[int(position[0]), :, COLUMN["step"]]
    at = {int(number): place for place, number in enumerate(numbers.tolist()) if np.isfinite(number)}
    usual &= np.array([int(number) in at for number in steps.tolist()])
    chosen = steps[usual]
    if len(operations.step) > MOST_OPERATIONS and len(chosen):
        number = max(MOST_OPERATIONS * len(chosen) // len(operations.step), 1)
        chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, number).astype(np.int64))]
    return chosen, np.array([at[int(number)] for number in chosen.tolist()], dtype=np.int64)


def _time_steps(
    measured_steps: MeasuredSteps, position: IntArray, at: IntArray
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Begin and end of the steps, and whether the one before each was recorded on all ranks."""
    run, clocks = measured_steps.run, map_clocks(measured_steps.run)
    begin_ns, end_ns = (np.empty((len(at), len(position))) for _ in range(2))
    follows = np.ones(len(at), dtype=bool)
    for worker, place in enumerate(position.tolist()):
        rows = run.rows[place]
        starts_ns = rows[:, COLUMN["begin_host_ns"]]
        stops_ns = starts_ns + rows[:, COLUMN["step_host_ns"]]
        before = np.maximum(at - 1, 0)
        after = rows[before, COLUMN["step"]] == rows[at, COLUMN["step"]] - 1
        after &= np.isfinite(stops_ns[before]) & (at > 0)
        own_ns = np.where(after, stops_ns[before], starts_ns[at])
        begin_ns[:, worker] = _shift(clocks.to_reference(place, own_ns), own_ns)
        end_ns[:, worker] = _shift(clocks.to_reference(place, stops_ns[at]), stops_ns[at])
        follows &= after
    return begin_ns, end_ns, follows


def _shift(shifted_ns: FloatArray, own_ns: FloatArray) -> FloatArray:
    return np.where(np.isnan(shifted_ns), own_ns, shifted_ns)
