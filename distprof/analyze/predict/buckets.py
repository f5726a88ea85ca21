"""DDP's gradient buckets: which gradients were ready when, and how the same steps run with buckets of another size.

DDP adds gradients to a bucket in the order in which they become ready, closes it with the gradient that brings it to
``bucket_mb`` or more, and reduces the buckets one after the other. Where ``bucket_mb`` is given, the first bucket is no
exception; only without it DDP closes that one at 1 MiB.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from distprof.analyze.clocks.clocks import map_clocks
from distprof.analyze.cycles.collective_order import choose_tables
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles, renumber, take_cycles
from distprof.analyze.predict.transfer_fit import Fit, fit_transfers, share_time
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import find_median
from distprof.facts.run import OWN_PARTS, Clock, CollectiveKind, FloatArray, IntArray, Phase
from distprof.report.forecast_report import NoForecast

NUM_AT_ONCE = (1, 2)
"""Buckets that may be under way at a time; all of them is tried too."""
MAX_BUCKETS = 4096
"""Of a forecast; no step has more collectives whose times are recorded."""
MAX_CELLS = 200_000
"""Ranks x cycles x collectives that are replayed with one size; of longer runs, every n-th cycle is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """The gradient buckets among the collectives of cycles."""

    first: int
    """Index of the first bucket among the collectives."""
    end: int
    """Index after the last one."""
    sizes_bytes: FloatArray
    """``[num_buckets]``"""
    cap_bytes: float
    """The size at which DDP closed a bucket."""

    @property
    def borders_bytes(self) -> FloatArray:
        """Bytes of gradients up to the end of each bucket, ``[num_buckets]``."""
        return np.cumsum(self.sizes_bytes)


def find_buckets(cycles: SyncCycles, cap_bytes: float | None) -> Buckets | None:
    """The buckets: neighbouring all-reduces of all ranks in backward, of which the ranks wait only for the last.

    Args:
        cycles: The recorded ones.
        cap_bytes: The configured size of a bucket. None: not known; then the smallest bucket that is neither the first
            nor the last tells, since every such bucket has at least that size.

    Returns:
        None: collectives are not issued like this, or their sizes are not known.
    """
    places = [index for index, part in enumerate(cycles.issued) if part is Phase.BACKWARD]
    if not places or places != list(range(places[0], places[-1] + 1)):
        return None
    first, end = places[0], places[-1] + 1
    sizes, kinds = cycles.sizes_bytes[first:end], {*cycles.kinds[first:end]}
    if (
        kinds != {CollectiveKind.ALL_REDUCE}
        or not all(sizes)
        or cycles.is_waited_on[first:end].tolist() != [index == end - 1 for index in places]
    ):
        return None
    groups = cycles.groups[first:end]
    if any(len(party) != 1 or party[0][0] != groups[0][0][0] for party in groups):
        return None
    if cycles.absent is not None and cycles.absent[:, first:end].any():
        return None
    sizes_bytes = np.array(sizes, dtype=float)
    if cap_bytes is None:
        cap_bytes = float((sizes_bytes[1:-1] if len(sizes_bytes) > 2 else sizes_bytes).min())
    return Buckets(first=first, end=end, sizes_bytes=sizes_bytes, cap_bytes=cap_bytes)


def fit_buckets(measured_steps: MeasuredSteps, cycles: SyncCycles, buckets: Buckets) -> Fit | NoForecast:
    """Latency and bandwidth of the buckets' transfers.

    How many of them run at once is not recorded, and differs: NCCL runs one, gloo as many as it has threads. Of several
    numbers, that counts which makes the times fit a straight line best.
    """
    times = _find_times(measured_steps, cycles, buckets)
    if times is None:
        return NoForecast.ENDS_UNSEEN
    found = [
        fit_transfers(buckets.sizes_bytes, share_time(*times, at_once=number))
        for number in sorted({*NUM_AT_ONCE, len(buckets.sizes_bytes)})
    ]
    fits = [fit for fit in found if isinstance(fit, Fit)]
    if fits:
        return min(fits, key=lambda fit: fit.error_ratio)
    return NoForecast.INEXACT if NoForecast.INEXACT in found else found[0]


def _find_times(
    measured_steps: MeasuredSteps, cycles: SyncCycles, buckets: Buckets
) -> tuple[FloatArray, FloatArray] | None:
    """When the last rank arrived at each bucket, and its end on the median rank, ``[num_cycles, num_buckets]``.

    A bucket can end before the one that was issued first, and all of them before their rank has done its own work: so
    these are the collectives' own ends, not when ranks went on. None: not seen on one clock in enough of the cycles.
    """
    group, sizes = cycles.groups[buckets.first][0][0], buckets.sizes_bytes.tolist()
    clocks = map_clocks(measured_steps.run)
    for table in choose_tables(measured_steps, cycles.clock):
        columns = [index for index, phase in enumerate(table.phases) if phase is Phase.BACKWARD]
        if table.group != group or [table.sizes_bytes[index] for index in columns] != sizes:
            continue
        at = np.searchsorted(table.steps, cycles.steps)
        there, over = (
            np.stack([
                values[member][at][:, columns] if cycles.clock is Clock.DEVICE
                else clocks.to_reference(position, values[member][at][:, columns])
                for member, position in enumerate(table.ranks.tolist())
            ])
            for values in (table.arrival_ns, table.end_ns)
        )  # fmt: skip
        if cycles.clock is Clock.DEVICE:  # every rank has its own, but the first bucket ends at one time on all
            there, over = there - over[:, :, :1], over - over[:, :, :1]
        arrived_ns, ended_ns = there.max(axis=0), find_median(over, axis=0)
        seen = np.isfinite(arrived_ns).all(axis=1) & np.isfinite(ended_ns).all(axis=1)
        return (arrived_ns[seen], ended_ns[seen]) if seen.sum() >= MIN_CYCLES else None
    return None


def divide_gradients(buckets: Buckets, cap_bytes: float, *, beyond: float = 1.0) -> FloatArray:
    """Where buckets of another size would end: bytes of gradients up to each end, ``[num_new_buckets]``.

    Single gradients are not known. What a recorded bucket has beyond its size belongs to the gradient that closed it,
    which cannot be divided. Elsewhere a new bucket goes beyond its size as far as the recorded ones usually do: what a
    sum of many gradients exceeds a limit by depends on the gradients, not on the limit.

    Args:
        buckets: As recorded.
        cap_bytes: The new size.
        beyond: New buckets go so many times as far beyond it.
    """
    beyond_bytes = np.sort(np.maximum(buckets.sizes_bytes[:-1] - buckets.cap_bytes, 0))
    usual_bytes = beyond * float(beyond_bytes[(len(beyond_bytes) - 1) // 2]) if len(beyond_bytes) else 0.0
    ends: list[float] = []
    last = begin = 0.0
    for size in buckets.sizes_bytes.tolist():
        over, whole_from = begin + size, begin + min(size, buckets.cap_bytes)
        while last + cap_bytes <= over:
            end = last + cap_bytes + usual_bytes
            last = end if last + cap_bytes < whole_from and end < whole_from else over
            ends.append(last)
        begin = over
    if last < begin:
        ends.append(begin)
    return np.array(ends)


def rebuild_cycles(
    cycles: SyncCycles, buckets: Buckets, ends_bytes: FloatArray, fit: Fit, *, shift: FloatArray | None = None,
    num_micro_steps: float = 1.0,
) -> SyncCycles:  # fmt: skip
    """The cycles with gradients divided otherwise, and every transfer as the fit has it.

    Args:
        cycles: As recorded.
        buckets: As recorded.
        ends_bytes: Bytes of gradients up to the end of each new bucket.
        fit: Of the group's transfers.
        shift: Added to the terms of the fit.
        num_micro_steps: Of a recorded step: gradients are reduced in the last one's backward.
    """
    ready_ns = _read_curve(cycles, buckets, ends_bytes, num_micro_steps)
    sizes_bytes, count = np.diff(ends_bytes, prepend=0.0), len(ends_bytes)
    work_ns = np.diff(ready_ns, axis=2, prepend=0.0)
    shape = work_ns.shape
    took_ns = np.broadcast_to(fit.find_time(sizes_bytes, shift), shape)
    last = np.arange(count) == count - 1

    def put(values: FloatArray, new: FloatArray) -> FloatArray:
        return np.concatenate([values[:, :, : buckets.first], new, values[:, :, buckets.end :]], axis=2)

    def repeat(index: IntArray) -> IntArray:
        """For each collective of the new cycles, one of the recorded ones."""
        return np.concatenate([index[: buckets.first], np.full(count, buckets.first), index[buckets.end :]])

    source = repeat(np.arange(len(cycles.groups)))
    is_waited_on = cycles.is_waited_on[source]
    is_waited_on[buckets.first : buckets.first + count] = last
    return dataclasses.replace(
        cycles, work_ns=put(cycles.work_ns, work_ns), transfer_ns=put(cycles.transfer_ns, took_ns),
        blocked_ns=put(cycles.blocked_ns, np.zeros(shape)), is_waited_on=is_waited_on,
        groups=tuple(cycles.groups[index] for index in source.tolist()), issued=(), kinds=(), sizes_bytes=(),
        absent=None if cycles.absent is None else cycles.absent[:, source], ahead=None,
        waits_for=renumber(cycles.waits_for, source.tolist()),
        predecessor=renumber(cycles.predecessor, source.tolist()),
    )  # fmt: skip


def limit_cells(cycles: SyncCycles, num_collectives: int) -> SyncCycles:
    """Every n-th cycle, so that as many collectives in each are not too much."""
    every = -(-len(cycles.positions) * len(cycles.steps) * num_collectives // MAX_CELLS)
    return cycles if every <= 1 else take_cycles(cycles, np.arange(0, len(cycles.steps), every))


def _read_curve(cycles: SyncCycles, buckets: Buckets, ends_bytes: FloatArray, num_micro_steps: float) -> FloatArray:
    """Own time until so many bytes of gradients are ready, ``[num_ranks, num_cycles, num_ends]``.

    A straight line from one recorded bucket to the next, and to the first one from where the last backward began.
    """
    at_ns = cycles.work_ns[:, :, buckets.first : buckets.end].cumsum(axis=2)
    backward_ns = np.nan_to_num(cycles.phase_ns[:, :, OWN_PARTS.index(Phase.BACKWARD)]) / num_micro_steps
    begin_ns = np.clip(at_ns[:, :, -1] - backward_ns, 0, at_ns[:, :, 0])
    curve_ns = np.concatenate([begin_ns[:, :, None], at_ns], axis=2)
    known = np.concatenate([[0.0], buckets.borders_bytes])
    place = np.clip(np.searchsorted(known, ends_bytes) - 1, 0, len(known) - 2)
    part = (ends_bytes - known[place]) / np.diff(known)[place]
    ready_ns: FloatArray = curve_ns[:, :, place] * (1 - part) + curve_ns[:, :, place + 1] * part
    return ready_ns
