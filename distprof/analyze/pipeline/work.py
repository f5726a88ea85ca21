"""How long each worker computed, and the ideal job in which every operation takes as long as its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from msgspec import Struct

from distprof.analyze.pipeline.graph import OperationGraph
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.operations import MEAN_KINDS, NUMBERS, Kind, number_workers

PASSES = (Kind.FORWARD, Kind.BACKWARD)


LEAST_NS = 1.0
"""Operations of no duration count as this long."""


FIRM_FACTOR = 1.25
FIRST, SECOND = 1, 2
"""The halves of a pass."""


class StepReplay(Protocol):
    """Whatever replays a graph with chosen durations."""

    def compute_steps(self, work_ns: FloatArray) -> FloatArray:
        """How long each step takes, ``[num_steps]``."""


class LeastWork(Struct, frozen=True, kw_only=True):
    """How long operations take that nothing disturbs, where ranks share cores and other programs come in between: the
    shortest of those of a kind and chunk that a worker has. What disturbs many of them does not move it, and more to do
    lengthens all."""

    unit: IntArray
    """Number of the few steps that each step is one of, ``[num_steps]``."""
    of_unit_ns: FloatArray
    """The shortest of those like it in these steps, ``[num_operations]``; 0 of `Kind.OTHER`."""
    work_ns: FloatArray
    """The same of all steps: where nearly all are disturbed, one is not."""
    next_ns: FloatArray
    """A low quantile of the same: where it is far from the shortest, all are disturbed, and the shortest tells
    nothing."""


class Recorded(Struct, frozen=True, kw_only=True):
    """A job that is judged: its graph, the order of its replay, and what that says of the job as it is."""

    graph: OperationGraph
    replay: StepReplay
    step_ns: FloatArray
    """Steps replayed with recorded durations, ``[num_steps]``."""
    least: LeastWork | None = None
    """What workers are compared by. None: the mean of a step's operations."""
    half: IntArray | None = None
    """As of `number_halves`, ``[num_operations]``. None: no pass is split."""
    looks: int = 1
    """How often the job is judged, as a whole and by its parts: each time at so much lower a level."""

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
        rows = self.select(*kinds)
        count = self._add_up(rows, self._is_new(rows))
        mean: FloatArray = np.divide(self.add_work(rows), count, out=np.full(self.shape, np.nan), where=count > 0)
        return mean

    def add_work(self, rows: BoolArray) -> FloatArray:
        """How long each worker takes for some operations together, ``[num_steps, num_replicas, num_stages]``."""
        return self._add_up(rows, self.graph.work_ns[rows])

    def _add_up(self, rows: BoolArray, weights: FloatArray | BoolArray) -> FloatArray:
        sums = np.bincount(self.worker[rows], weights=weights, minlength=int(np.prod(self.shape)))
        return np.asarray(sums, dtype=np.float64).reshape(self.shape)

    @property
    def is_split(self) -> bool:
        """Whether some backwards come in halves."""
        return self.half is not None and bool(self.half.any())

    def _is_new(self, rows: BoolArray) -> BoolArray:
        """Of these operations, which are not the second half of a pass."""
        return np.ones(int(rows.sum()), dtype=bool) if self.half is None else self.half[rows] != SECOND

    @property
    def unit(self) -> IntArray:
        """The unit of statistics that each step belongs to, ``[num_steps]``."""
        return np.arange(len(self.graph.steps)) if self.least is None else self.least.unit

    def compare_work(self, *kinds: Kind) -> FloatArray:
        """What workers are tested by, per operation of these kinds, ``[num_units, num_replicas, num_stages]``."""
        if self.least is None:
            return sum((np.nan_to_num(self.sum_work(kind)) for kind in kinds), start=np.zeros(()))
        return self._average_least(self.least.of_unit_ns, self.unit, kinds)

    def measure_sizes(self, *kinds: Kind) -> FloatArray:
        """What says by how much workers differ: the same or, of their shortest operations, those of all steps,
        ``[1, num_replicas, num_stages]``."""
        if self.least is None:
            return self.compare_work(*kinds)
        return self._average_least(self.least.work_ns, np.zeros_like(self.unit), kinds)

    def mark_firm(self) -> Mapping[Kind, BoolArray]:
        """Whether workers are compared by their forwards, and by their backwards: where the shortest are like the next
        ones, ``[num_replicas, num_stages]``. Those of others, if they are too long, make nobody look slow."""
        if self.least is None:
            return {kind: np.ones(self.shape[1:], dtype=bool) for kind in PASSES}
        whole = np.zeros_like(self.unit)
        return {
            kind: np.asarray(
                self._average_least(self.least.next_ns, whole, (kind,))[0]
                <= FIRM_FACTOR * self._average_least(self.least.work_ns, whole, (kind,))[0]
            )
            for kind in PASSES
        }

    def list_firm(self) -> tuple[Kind, ...]:
        """By which of forward and backward all workers are compared."""
        return tuple(kind for kind, firm in self.mark_firm().items() if firm.all())

    def _average_least(self, least_ns: FloatArray, unit: IntArray, kinds: tuple[Kind, ...]) -> FloatArray:
        rows, (_, replicas, stages) = self.select(*kinds), self.shape
        shape = int(unit.max()) + 1, replicas, stages
        slot = unit[self.graph.step[rows]] * replicas * stages + self.worker[rows] % (replicas * stages)
        total = np.bincount(slot, weights=least_ns[rows], minlength=int(np.prod(shape)))
        count = np.bincount(slot, weights=self._is_new(rows), minlength=int(np.prod(shape)))
        mean: FloatArray = np.divide(total, count, out=np.zeros(len(total)), where=count > 0)
        return np.asarray(mean * len(kinds)).reshape(shape)

    def spread(self, sizes: FloatArray, rows: BoolArray) -> FloatArray:
        """Of each of some operations, the value of its step in what `measure_sizes` is by step; by axis 0."""
        return np.asarray(sizes[self.graph.step[rows] if self.least is None else 0 * self.graph.step[rows]])

    def shorten(self, rows: BoolArray, more: FloatArray) -> FloatArray:
        """Durations of some operations if they were shorter by factors of ``exp(more)``, of each one. What disturbs an
        operation stays."""
        own_ns = self.graph.work_ns[rows]
        if self.least is None:
            return np.asarray(own_ns * np.exp(-more))
        return np.asarray(np.maximum(own_ns - self.least.work_ns[rows] * (1 - np.exp(-more)), 0.0))

    def measure_stages(self, kind: Kind) -> FloatArray:
        """The usual duration of a kind on each stage, ``[num_stages]``: the median over steps, and of the replicas the
        lower median, which a slow worker does not move where there are two."""
        own_ns = self.sum_work(kind) if self.least is None else self.measure_sizes(kind)
        of_replica = np.sort(np.nanmedian(own_ns, axis=0), axis=0)
        usual_ns: FloatArray = of_replica[(len(of_replica) - 1) // 2]
        return usual_ns


def number_halves(graph: OperationGraph) -> IntArray:
    """Which part of a pass each operation is, ``[num_operations]``: 0, all of it; `FIRST` and `SECOND`, the backward of
    the inputs and that of the weights, where a schedule splits it. A worker has both for a micro-batch and chunk."""
    found, half = graph.operations, np.zeros(len(graph.operations), dtype=np.int64)
    rows = np.flatnonzero((found.kind == NUMBERS[Kind.BACKWARD]) & (found.micro_batch >= 0))
    keys = np.stack([found.micro_batch[rows], found.chunk[rows], number_workers(found)[rows]])
    order = np.lexsort((found.start_ns[rows], *keys))
    rows, keys = rows[order], keys[:, order]
    first = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(rows)])
    pairs = first[np.diff(np.append(first, len(rows))) == 2]
    half[rows[pairs]], half[rows[pairs + 1]] = FIRST, SECOND
    return half


def make_ideal(graph: OperationGraph) -> FloatArray:
    """The duration or transfer of each operation in an ideal job: the mean of computation, the median of the rest."""
    ideal_ns = np.zeros(len(graph.operations))
    for kind, number in NUMBERS.items():
        rows = graph.operations.kind == number
        if rows.any():
            of_kind = graph.work_ns[rows]
            ideal_ns[rows] = of_kind.mean() if kind in MEAN_KINDS else np.median(of_kind)
    return ideal_ns
