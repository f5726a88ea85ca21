"""How long each worker computed, and the ideal job in which every operation takes as long as its kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.pipeline.graph import OperationGraph
from distprof.analyze.pipeline.replay import Replay
from distprof.facts.operations import MEAN_KINDS, NUMBERS, Kind
from distprof.facts.run import FloatArray, IntArray
from distprof.facts.trace import BoolArray

PASSES = (Kind.FORWARD, Kind.BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A job that is judged: its graph, the order of its replay, and what that says of the job as it is."""

    graph: OperationGraph
    replay: Replay
    step_ns: FloatArray
    """Steps replayed with recorded durations, ``[num_steps]``."""

    def list_costs(self, work_ns: FloatArray) -> FloatArray:
        """By how much each step would be shorter with other durations, ``[num_steps]``."""
        shorter: FloatArray = self.step_ns - self.replay.compute_steps(work_ns)
        return shorter

    @property
    def shape(self) -> tuple[int, int, int]:
        """Steps, replicas, stages."""
        found = self.graph.operations
        return len(self.graph.steps), found.num_replicas, found.num_stages

    @property
    def worker(self) -> IntArray:
        """A number for each operation's step, replica and stage, in the order of `shape`."""
        _, replicas, stages = self.shape
        found = self.graph.operations
        numbers: IntArray = (self.graph.step * replicas + found.replica) * stages + found.stage
        return numbers

    def select(self, *kinds: Kind) -> BoolArray:
        """Operations of these kinds."""
        return np.isin(self.graph.operations.kind, [NUMBERS[kind] for kind in kinds])

    def sum_work(self, *kinds: Kind) -> FloatArray:
        """How long each worker takes for these kinds, per operation, ``[num_steps, num_replicas, num_stages]``; a pass
        counts per micro-batch and chunk. NaN: it has none."""
        rows, size = self.select(*kinds), int(np.prod(self.shape))
        total = np.bincount(self.worker[rows], weights=self.graph.work_ns[rows], minlength=size)
        count = np.bincount(self.worker[rows], minlength=size)
        mean: FloatArray = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
        return np.asarray(mean).reshape(self.shape)

    def measure_stages(self, kind: Kind) -> FloatArray:
        """The usual duration of a kind on each stage, ``[num_stages]``: the median over steps, and of the replicas the
        lower median, which a slow worker does not move where there are two."""
        of_replica = np.sort(np.nanmedian(self.sum_work(kind), axis=0), axis=0)
        usual_ns: FloatArray = of_replica[(len(of_replica) - 1) // 2]
        return usual_ns


def make_ideal(graph: OperationGraph) -> FloatArray:
    """The duration or transfer of each operation in an ideal job: the mean of computation, the median of the rest."""
    ideal_ns = np.zeros(len(graph.operations))
    for kind, number in NUMBERS.items():
        rows = graph.operations.kind == number
        if rows.any():
            of_kind = graph.work_ns[rows]
            ideal_ns[rows] = of_kind.mean() if kind in MEAN_KINDS else np.median(of_kind)
    return ideal_ns
