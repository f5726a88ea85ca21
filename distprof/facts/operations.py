"""Operations of a pipeline-parallel job: what a table of them, or a recording, says about each micro-batch.

This stands between readers, which know a layout, and `distprof.analyze.pipeline`, which knows what waits for what. It
holds the facts alone. Whoever records a pipeline fills the same columns.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from distprof.facts.arrays import BoolArray, FloatArray, IntArray


class Kind(enum.StrEnum):
    """What an operation does. The set is closed, for each kind has its own place in the graph."""

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    FORWARD_SEND = "forward-send"
    FORWARD_RECV = "forward-recv"
    BACKWARD_SEND = "backward-send"
    BACKWARD_RECV = "backward-recv"
    PARAMS = "params-all-gather"
    """Parameters of a chunk, from the same stage of all replicas."""
    GC = "gc"
    """The garbage collector of Python."""
    LAYERNORM = "layernorm-grads-all-reduce"
    """Inside a tensor-parallel group, which is one row: no partner."""
    EMBEDDING = "embedding-grads-all-reduce"
    """Between the first and the last stage of a replica, which share an embedding."""
    GRADS = "grads-reduce-scatter"
    """Gradients of a chunk, with the same stage of all replicas."""
    CLIP = "optimizer-clip-main-grad"
    """The norm of all gradients, with all stages of all replicas."""
    OPTIMIZER = "optimizer"
    OTHER = "others"
    """None of these: what a rank does between its operations, and waits for collectives. Not in tables."""


KINDS = tuple(Kind)
NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
"""What stands for each kind in columns."""
SEND_NUMBERS = (NUMBERS[Kind.FORWARD_SEND], NUMBERS[Kind.BACKWARD_SEND])
RECEIVE_NUMBERS = (NUMBERS[Kind.FORWARD_RECV], NUMBERS[Kind.BACKWARD_RECV])
"""Of activations, and of gradients."""

COMPUTE = (Kind.FORWARD, Kind.BACKWARD, Kind.GC, Kind.OPTIMIZER, Kind.LAYERNORM)
"""Kinds that wait for nobody: all of their duration is work."""
MEAN_KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.GC, Kind.OPTIMIZER)
"""Kinds that take their mean in an ideal job, for their durations have no waiting in them; others take their median."""


class Operations(Struct, frozen=True, kw_only=True):
    """One row per operation, each column ``[num_operations]``, in any order.

    Clocks of the workers agree to within what a transfer is allowed to be below 0
    (`distprof.analyze.pipeline.graph.SKEW_NS`). The ranks of one tensor-parallel group are one row.
    """

    replica: IntArray
    """Coordinate ``dp``, from 0, without gaps."""
    stage: IntArray
    """Coordinate ``pp``, from 0, without gaps: micro-batches go forward from stage s to s + 1."""
    rank: IntArray
    """Global rank, for names; -1: not known."""
    step: IntArray
    """Number of the step; steps need not be neighbours."""
    kind: npt.NDArray[np.int8]
    """Position in `KINDS`."""
    start_ns: FloatArray
    """From any origin that all workers of a step share."""
    duration_ns: FloatArray
    """From its start to its end, waiting included; 0 or more."""
    number: IntArray
    """Which one of its kind this is on its worker in its step, from 0."""
    chunk: IntArray
    """Model chunk (virtual stage), from 0; -1 where it has none."""
    micro_batch: IntArray
    """Number of the micro-batch; -1 where it has none."""

    def __len__(self) -> int:
        return len(self.kind)

    def choose(self, rows: IntArray | BoolArray) -> Operations:
        """Some of the operations, in the order of ``rows``."""
        return Operations(**{name: getattr(self, name)[rows] for name in self.__struct_fields__})

    @property
    def num_stages(self) -> int:
        """How many stages the pipeline has."""
        return int(self.stage.max()) + 1

    @property
    def num_replicas(self) -> int:
        """How many replicas of the pipeline there are."""
        return int(self.replica.max()) + 1


def number_workers(operations: Operations) -> IntArray:
    """A number for each worker and step, ``[num_operations]``: by step, then replica, then stage."""
    _, step = np.unique(operations.step, return_inverse=True)
    numbers: IntArray = (
        step.astype(np.int64) * operations.num_replicas + operations.replica
    ) * operations.num_stages + operations.stage
    return numbers
