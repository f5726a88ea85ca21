"""How long did each collective's transfer take, and how much of it was over before its last rank arrived?

The second is what a delay does not cost. The ranks that are there do not just wait: in a ring of n, a rank d places
behind the missing one can pass on d of the 2 (n - 1) parts of an all-reduce, a quarter of them on average. Where a link
between hosts is the bottleneck, the transfers of a step so make up for part of a delay. Measured with gloo on two and
four hosts with links of 400 Mbit/s: they were ahead by 10 to 29 % of the two all-reduces that are under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.clocks.clocks import map_clocks
from distprof.analyze.cycles.collective_order import OrderedCollectives
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import fast_median, median_standard_error
from distprof.facts.arrays import BoolArray, FloatArray, IntArray

AHEAD_RATIO = 0.25
"""Share of a ring's parts that a rank can pass on without one of the others, mean over the ranks."""
MOST_AHEAD_RATIO = 0.5
"""Share that the rank before it in the ring can pass on: more than this was not moved before."""
NUM_UNDER_WAY = 2
"""Collectives that gloo runs at a time."""
ALIKE_RATIO = 0.1
"""By how much the sizes of two collectives may differ that are taken to be equally far at a time."""
Z_AHEAD = 3.0
"""Standard errors beyond which transfers were ahead."""
HELD_UP_RATIO = 0.25
"""Of the time of a collective: what the last rank may lose between the first and the last one."""
MIN_QUEUED = 8
"""Cycles; with fewer, nothing can be said."""
Z_LEAST = 2.0
"""Standard errors from what is measured to the least that transfers were ahead by."""


class Ahead(Struct, frozen=True, kw_only=True):
    """How far transfers were ahead when the last rank came to the first of the collectives up to a wait, ns.

    Each ``[num_cycles, num_collectives]``; 0 at all collectives but the first.
    """

    usual_ns: FloatArray
    """By the pace of the queue; 0: not ahead, or nobody can tell."""
    least_ns: FloatArray
    """If that is measured too large."""
    most_ns: FloatArray
    """By what a ring allows."""

    def map(self, change: Callable[[FloatArray], FloatArray]) -> Ahead:
        """The same of other cycles or collectives."""
        return Ahead(
            usual_ns=change(self.usual_ns), least_ns=change(self.least_ns), most_ns=change(self.most_ns)
        )  # fmt: skip

    def suppose(self, ahead_ns: FloatArray) -> Ahead | None:
        """That transfers were ahead by so much; None: that is what is measured."""
        if np.array_equal(ahead_ns, self.usual_ns):
            return None
        return Ahead(usual_ns=ahead_ns, least_ns=self.least_ns, most_ns=self.most_ns)


def measure_transfers(
    measured_steps: MeasuredSteps, ordered: OrderedCollectives, exposed_ns: FloatArray
) -> tuple[FloatArray, FloatArray, Ahead | None]:
    """Measures transfers.

    A transfer is, where clocks can be compared, the own end less the last arrival or the previous own end, whichever is
    later. Else it is the shortest wait of a member, which had nobody to wait for; 0 if nobody waits.

    Args:
        measured_steps: The ranks and steps that count.
        ordered: Their collectives, as `align_times` leaves them.
        exposed_ns: Waited for it; 0 where ranks do not wait.

    Returns:
        Arrivals at the first collective, on rank 0's clock, ``[num_ranks, num_cycles]``, NaN: clock not compared; then
        ``transfer_ns`` and ``ahead`` as in `distprof.analyze.cycles.sync_cycles.SyncCycles`.
    """
    there, over = ordered.arrival_ns, ordered.end_ns
    transfer_ns = np.zeros_like(exposed_ns)
    free: dict[str, FloatArray] = {}
    for index, groups in enumerate(ordered.groups):
        for group, members in groups:
            arrived = there[members, :, index].max(axis=0)
            started = np.maximum(arrived, free.get(group, arrived))
            _fill_unseen(over, started, members, index)
            ended = over[members, :, index]
            took, shortest = ended - started, exposed_ns[members, :, index].min(axis=0)
            transfer_ns[members, :, index] = np.where(np.isfinite(took), np.maximum(took, 0), shortest)
            free[group] = np.where(np.isfinite(took), ended, started)
    names = {measured_steps.run.ranks[position].host for position in ordered.positions.tolist()}
    ahead = None if len(names) == 1 else _measure_ahead(ordered, there, over, transfer_ns)
    return there[:, :, 0].copy(), transfer_ns, ahead


def _fill_unseen(over_ns: FloatArray, started_ns: FloatArray, members: IntArray, index: int) -> None:
    """Puts the usual end in place of one that the host did not see, where it has seen some: of long jobs it sees
    buckets of gradients end in some steps only."""
    each_started_ns = np.broadcast_to(started_ns, (len(members), started_ns.shape[-1]))  # of all members, or of each
    for member, began_ns in zip(members.tolist(), each_started_ns, strict=True):
        took_ns = over_ns[member, :, index] - began_ns
        seen = np.isfinite(took_ns)
        if seen.any() and not seen.all():
            over_ns[member, ~seen, index] = began_ns[~seen] + np.median(took_ns[seen])


def measure_device_transfers(ordered: OrderedCollectives) -> tuple[FloatArray, FloatArray]:
    """Transfers on the device clock: what a collective took on the rank that came last, as
    `distprof.analyze.cycles.device_collectives` explains.

    Of collectives of which nothing follows from that, it is the shortest wait of a member.
    """
    assert ordered.took_ns is not None
    transfer_ns = np.zeros_like(ordered.arrival_ns)
    for index, groups in enumerate(ordered.groups):
        for _, members in groups:
            took_ns = ordered.took_ns[members, :, index].min(axis=0)
            shortest_ns = ordered.exposed_ns[members, :, index].min(axis=0)
            transfer_ns[members, :, index] = np.where(np.isfinite(took_ns), took_ns, shortest_ns)
    return ordered.arrival_ns[:, :, 0] + _join_ends(ordered), transfer_ns


def _join_ends(ordered: OrderedCollectives) -> FloatArray:
    """What to add to each rank's times so that common collectives end together, ``[num_ranks, num_steps]``; NaN: some
    ranks have none in common, even through others."""
    assert ordered.took_ns is not None
    shift_ns = np.zeros(ordered.arrival_ns.shape[:2])
    joined = np.arange(len(shift_ns))
    for index, groups in enumerate(ordered.groups):
        for _, members in groups:
            if not (joined == joined[0]).all() and np.isfinite(ordered.took_ns[members, :, index]).any():
                over_ns = ordered.end_ns[members, :, index] + shift_ns[members]
                for row, number in enumerate(joined[members].tolist()):
                    if joined[members[row]] != joined[members[0]]:
                        moved = joined == number
                        shift_ns[moved] += over_ns[0] - over_ns[row]
                        joined[moved] = joined[members[0]]
    return shift_ns if (joined == joined[0]).all() else np.full_like(shift_ns, np.nan)


def align_times(measured_steps: MeasuredSteps, ordered: OrderedCollectives, resume_ns: FloatArray) -> None:
    """Overwrites arrivals and ends with these on rank 0's clock, NaN: clock not compared, or end not seen. Where ranks
    wait, the end is when they could go on.

    Args:
        measured_steps: The ranks and steps that count.
        ordered: Their collectives.
        resume_ns: When each rank went on, in the shape of the arrivals and on the same clocks.
    """
    clocks = map_clocks(measured_steps.run)
    for row, position in enumerate(ordered.positions.tolist()):
        left_ns = np.where(ordered.is_waited_on, resume_ns[row], ordered.end_ns[row])
        ordered.arrival_ns[row] = clocks.to_reference(position, ordered.arrival_ns[row])
        ordered.end_ns[row] = clocks.to_reference(position, left_ns)


def _measure_ahead(ordered: OrderedCollectives, there: FloatArray, over: FloatArray, transfer_ns: FloatArray) -> Ahead:
    """How far the transfers were ahead; 0 where several groups share the network."""
    ahead = Ahead(**{name: np.zeros(there.shape[1:]) for name in ("usual_ns", "least_ns", "most_ns")})
    for first, end in split_waits(ordered.is_waited_on):
        groups = {group for index in range(first, end) for group, _ in ordered.groups[index]}
        if len(groups) == 1:
            here = slice(first, end)
            usual_ns, least_ns = measure_ahead(there[:, :, here], over[:, :, here], ordered.sizes_bytes[here])
            bound_ns = bound_ahead(there[:, :, first], transfer_ns[:, :, here].mean(axis=0))
            ahead.usual_ns[:, first], ahead.least_ns[:, first] = usual_ns, least_ns
            ahead.most_ns[:, first] = np.maximum(usual_ns, bound_ns)
    return ahead


def split_waits(is_waited_on: BoolArray) -> list[tuple[int, int]]:
    """Stretches of collectives up to the one that the ranks wait for, as (first, end)."""
    ends = (np.flatnonzero(is_waited_on) + 1).tolist()
    return list(zip([0, *ends], ends, strict=False))


def measure_ahead(
    arrival_ns: FloatArray, end_ns: FloatArray, sizes_bytes: Sequence[int | None]
) -> tuple[FloatArray, FloatArray]:
    """How far transfers demonstrably were ahead when the last rank came to the first of several collectives.

    If each of them queues behind those before, they take as long as their bytes need at the pace of the queue. If they
    take less from the last arrival on, some were moved before. Where a rank loses more time between them, the pace is
    its own and not the queue's.

    Args:
        arrival_ns: On one clock, ``[num_ranks, num_cycles, num_collectives]``, like the next; NaN: not known.
        end_ns: When each rank had its result.
        sizes_bytes: ``[num_collectives]``

    Returns:
        As ``Ahead.usual_ns`` and ``least_ns``, ``[num_cycles]``.
    """
    last_ns, over_ns = arrival_ns.max(axis=0), end_ns.max(axis=0)
    nothing = np.zeros(len(last_ns))
    until = _end_of_window(sizes_bytes)
    if until is None or len(arrival_ns) < 3:
        return nothing, nothing
    sizes = np.array(sizes_bytes, dtype=float)
    pace = (over_ns[:, until] - over_ns[:, 0]) / sizes[1 : until + 1].sum()
    ahead_ns = pace * sizes.sum() - (over_ns[:, -1] - last_ns[:, 0])
    behind_ns = last_ns - fast_median(arrival_ns, axis=0)
    held_up = behind_ns[:, -1] - behind_ns[:, 0] > HELD_UP_RATIO * pace * sizes.mean()
    queued = (last_ns[:, 1:] <= over_ns[:, :-1]).all(axis=1) & ~held_up & np.isfinite(ahead_ns)
    if queued.sum() < max(MIN_QUEUED, len(queued) / 2):
        return nothing, nothing
    usual_ns, error_ns = float(fast_median(ahead_ns[queued])), float(median_standard_error(ahead_ns[queued]))
    if usual_ns <= Z_AHEAD * error_ns:
        return nothing, nothing
    most_ns = NUM_UNDER_WAY * MOST_AHEAD_RATIO * pace * sizes.mean()
    most_ns = np.where(queued, np.minimum(most_ns, measure_lead(arrival_ns[:, :, 0])), 0.0)
    return np.minimum(usual_ns, most_ns), np.minimum(usual_ns - Z_LEAST * error_ns, most_ns)


def bound_ahead(first_arrival_ns: FloatArray, transfer_ns: FloatArray) -> FloatArray:
    """How far transfers may have been ahead, ns, ``[num_cycles]``, by what a ring allows on average.

    Args:
        first_arrival_ns: At the first collective, ``[num_ranks, num_cycles]``.
        transfer_ns: Of all collectives up to the wait, from the last arrival on, ``[num_cycles, num_collectives]``.
    """
    count = transfer_ns.shape[1]
    share = AHEAD_RATIO * min(count, NUM_UNDER_WAY) / count
    most_ns = share / (1 - share) * transfer_ns.sum(axis=1)
    most_ns = np.minimum(most_ns, measure_lead(first_arrival_ns))
    return np.where(np.isfinite(most_ns), most_ns, 0.0)


def measure_lead(arrival_ns: FloatArray) -> FloatArray:
    """How long all ranks but the last have been there when that one arrives, ``[num_cycles]``."""
    ranked = np.partition(arrival_ns, len(arrival_ns) - 2, axis=0)
    lead_ns: FloatArray = np.subtract(ranked[-1], ranked[-2])
    return lead_ns


def _end_of_window(sizes_bytes: Sequence[int | None]) -> int | None:
    """The last collective that ends while another of the second one's size is under way: from the end of the first to
    its end, as many bytes are moved as there are from the second to it."""
    second = sizes_bytes[1] if len(sizes_bytes) > NUM_UNDER_WAY else None
    for under_way in range(len(sizes_bytes) - 1, NUM_UNDER_WAY - 1, -1):
        size = sizes_bytes[under_way]
        if second and size and None not in sizes_bytes and abs(size - second) <= ALIKE_RATIO * second:
            return under_way - 1
    return None
