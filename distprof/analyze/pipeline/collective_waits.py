"""Where the ranks of a pipeline wait for collectives, as for gradients of replicas or their norm."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.analyze.clocks.clocks import map_clocks
from distprof.analyze.pipeline.step_frame import StepFrame
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import Clock

LEAST_NS = 20e3
"""Collectives that no rank waits longer for, in the mean, are left out: they hold nobody up."""


class CollectiveWaits(Struct, frozen=True, kw_only=True):
    """One element for each rank, step and collective."""

    slot: IntArray
    """Step and worker as one number, as in `StepFrame`."""
    begin_ns: FloatArray
    """On rank 0's clock; where a rank did not wait, when it arrived, or went on."""
    end_ns: FloatArray
    group: IntArray
    """The same for all ranks of one collective."""


def list_collective_waits(measured_steps: MeasuredSteps, frame: StepFrame) -> CollectiveWaits:
    """The waits for collectives of which all ranks are known."""
    clocks, workers = map_clocks(measured_steps.run), {int(at): worker for worker, at in enumerate(frame.position)}
    slots, begins, ends, groups, count = [], [], [], [], 0
    for table in measured_steps.run.collectives:
        members = [int(at) for at in table.ranks]
        _, mine, here = np.intersect1d(table.steps, frame.at, return_indices=True)
        if table.clock is not Clock.HOST or len(members) != table.size or len(members) < 2 or not len(mine):
            continue
        if not all(member in workers for member in members):
            continue
        exposed_ns = np.nan_to_num(table.exposed_ns[:, mine])
        arrival_ns = table.arrival_ns[:, mine]
        left_ns = arrival_ns + exposed_ns if table.left_ns is None else table.left_ns[:, mine]
        left_ns = np.where(np.isfinite(left_ns), left_ns, arrival_ns + exposed_ns)
        chosen = np.flatnonzero((exposed_ns.mean(axis=1) >= LEAST_NS).any(axis=0) & np.isfinite(left_ns).all((0, 1)))
        number = len(mine) * len(chosen)
        if not number:
            continue
        for row, member in enumerate(members):
            end_ns = left_ns[row][:, chosen]
            shifted_ns = clocks.to_reference(member, end_ns)
            end_ns = np.where(np.isnan(shifted_ns), end_ns, shifted_ns)
            slots.append(np.repeat(here * frame.num_workers + workers[member], len(chosen)))
            ends.append(end_ns.ravel())
            begins.append((end_ns - exposed_ns[row][:, chosen]).ravel())
            groups.append(count + np.arange(number))
        count += number
    if not slots:
        nothing = np.empty(0)
        return CollectiveWaits(
            slot=nothing.astype(np.int64), begin_ns=nothing, end_ns=nothing, group=nothing.astype(np.int64)
        )
    return CollectiveWaits(
        slot=np.concatenate(slots), begin_ns=np.concatenate(begins), end_ns=np.concatenate(ends),
        group=np.concatenate(groups),
    )  # fmt: skip
