"""Which steps of a table of operations are whole? A step in which partners are missing cannot be replayed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from distprof.analyze.pipeline.graph import TRANSFERS, locate_crossings
from distprof.errors import TableError
from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.operations import KINDS, NUMBERS, Kind, Operations, number_workers

JOINT = (Kind.PARAMS, Kind.GRADS, Kind.CLIP)
"""Kinds that every worker, or every replica of a stage, has equally often."""


class WholeSteps(Struct, frozen=True, kw_only=True):
    """The steps that can be replayed, and why the others cannot."""

    operations: Operations
    left_out: tuple[str, ...]
    """One reason for each step that is left out, by step."""


def choose_whole_steps(operations: Operations) -> WholeSteps:
    """Leaves out steps of which something is missing.

    Raises:
        TableError: No step is whole.
    """
    steps, step = np.unique(operations.step, return_inverse=True)
    shape = len(steps), operations.num_replicas, operations.num_stages
    broken: dict[int, str] = {}
    for place, reason in _list_gaps(operations, number_workers(operations), shape):
        at = np.argwhere(place)
        for index in np.unique(at[:, 0], return_index=True)[1].tolist():
            where, replica, stage = at[index].tolist()
            broken.setdefault(where, f"step {steps[where]}: dp {replica}, stage {stage}: {reason}")
    if len(broken) == len(steps):
        raise TableError(f"no step can be replayed: {broken[min(broken)]}")
    kept = ~np.isin(step, list(broken))
    chosen = operations if not broken else operations.choose(kept)
    return WholeSteps(operations=chosen, left_out=tuple(broken[where] for where in sorted(broken)))


def _list_gaps(
    operations: Operations, worker: IntArray, shape: tuple[int, int, int]
) -> Iterator[tuple[BoolArray, str]]:
    """Workers whose operations are not all there, ``[num_steps, num_replicas, num_stages]``, and what is wrong."""
    size = int(np.prod(shape))

    def count(kind: Kind, rows: BoolArray | None = None) -> IntArray:
        chosen = operations.kind == NUMBERS[kind]
        chosen = chosen if rows is None else chosen & rows
        return np.bincount(worker[chosen], minlength=size).reshape(shape)

    forward, backward = count(Kind.FORWARD), count(Kind.BACKWARD)
    yield forward == 0, f"has no {Kind.FORWARD}"
    yield forward != backward, f"has not as many {Kind.BACKWARD} as {Kind.FORWARD}"
    yield forward != forward[:, :, :1], f"has not as many {Kind.FORWARD} as stage 0"
    every = np.ones(len(operations), dtype=bool)
    for computation, send, receive, _up in TRANSFERS:
        for kind in (send, receive):
            crossing = count(computation, every & locate_crossings(operations, np.arange(len(operations)), kind))
            found = count(kind)
            yield (found != crossing) & (found != count(computation)), f"some {kind} is missing or has no partner"
    for kind in JOINT:
        found = count(kind)
        yield found != found[:, :1, :], f"has not as many {kind} as dp 0"
    clips, embeddings = count(Kind.CLIP), count(Kind.EMBEDDING)
    yield clips != clips[:, :, :1], f"has not as many {Kind.CLIP} as stage 0"
    ends = np.zeros(shape, dtype=bool)
    ends[:, :, [0, -1]] = embeddings[:, :, [0, -1]] != embeddings[:, :, :1]
    yield ends, f"has not as many {Kind.EMBEDDING} as stage 0"
    for number, kind in enumerate(KINDS):
        rows = operations.kind == number
        highest = np.full(size, -1, dtype=np.int64)
        np.maximum.at(highest, worker[rows], operations.number[rows])
        yield highest.reshape(shape) + 1 != count(kind), f"numbers of {kind} have gaps"
