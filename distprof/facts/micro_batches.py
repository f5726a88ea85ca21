"""What a rank did for each micro-batch of a pipeline: forwards, backwards, sends and receives."""

from __future__ import annotations

import enum

from msgspec import Struct

from distprof.facts.arrays import BoolArray, FloatArray, IntArray


class OperationKind(enum.StrEnum):
    """What an operation is."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """Of the inputs and the weights or, where a schedule splits it, of the inputs alone."""
    WEIGHT = "backward_weight"
    """The backward of the weights alone, as in zero-bubble schedules."""
    SEND = "send"
    RECEIVE = "receive"
    WAIT = "wait"
    """For a collective, after the last backward and outside of gradient synchronisation."""


OPERATION_KINDS: tuple[OperationKind, ...] = tuple(OperationKind)
OPERATION_CODE: dict[OperationKind, int] = {kind: code for code, kind in enumerate(OPERATION_KINDS)}
UNKNOWN = -1
"""A micro-batch, a stage, or another rank that is not known, or that an operation does not have."""


class RankOperations(Struct, frozen=True, kw_only=True):
    """The operations of one rank in the steps that were kept, one element each, in the order in which they began.

    Those since the step before, such as receiving the first micro-batch, belong to the step that follows. Times are on
    a clock of the rank's own.
    """

    step: IntArray
    """The number of its step."""
    kind: IntArray
    """Index into `OPERATION_KINDS`."""
    micro_batch: IntArray
    """Counted from 0 in each step; `UNKNOWN` of what is sent, received or waited for."""
    stage: IntArray
    """The stage that computes, of all stages of the pipeline; `UNKNOWN`: the loop does not say."""
    peer: IntArray
    """The global rank that it is sent to, or received from; `UNKNOWN`: any rank, or none."""
    tag: IntArray
    size_bytes: IntArray
    start_ns: FloatArray
    """When it began; of what is sent or received, when it was issued."""
    duration_ns: FloatArray
    """Until it ended; of what is sent or received, until the rank had waited for it. NaN: it was not waited for."""
    waited_ns: FloatArray
    """How long the rank stood still for it; of a forward or a backward, in collectives inside it."""
    on_device: BoolArray
    """Whether its times are of the device clock, as where tensors are exchanged on GPUs, and not of the host's."""
