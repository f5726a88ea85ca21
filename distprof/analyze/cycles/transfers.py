"""How long did each collective's transfer take, and how far was it ahead when its last rank arrived?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.clocks.clocks import map_clocks
from distprof.analyze.cycles.collective_order import OrderedCollectives
from distprof.analyze.cycles.early_transfer import Ahead, bound_ahead, measure_ahead, split_waits
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.run import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """The transfers of all cycles, ns."""

    first_arrival_ns: FloatArray
    """At the first collective, on rank 0's clock, ``[num_ranks, num_cycles]``; NaN: clock not compared."""
    transfer_ns: FloatArray
    """As in `distprof.analyze.cycles.sync_cycles.SyncCycles`; so is the next."""
    ahead: Ahead | None


def find_transfers(
    measured_steps: MeasuredSteps, ordered: OrderedCollectives, resume_ns: FloatArray, exposed_ns: FloatArray
) -> Transfers:
    """Measures transfers.

    A transfer is, where clocks can be compared, the own end less the last arrival or the previous own end, whichever is
    later. Else it is the shortest wait of a member, which had nobody to wait for; 0 if nobody waits.

    Args:
        measured_steps: The ranks and steps that count.
        ordered: Their collectives.
        resume_ns: When each rank went on, in the shape of the arrivals and on the same clocks.
        exposed_ns: Waited for it; 0 where not blocking.
    """
    there, over = _align(measured_steps, ordered, resume_ns)
    transfer_ns = np.zeros_like(exposed_ns)
    free: dict[str, FloatArray] = {}
    for index, parties in enumerate(ordered.parties):
        for group, members in parties:
            arrived = there[members, :, index].max(axis=0)
            started = np.maximum(arrived, free.get(group, arrived))
            _fill_unseen(over, started, members, index)
            ended = over[members, :, index]
            took, shortest = ended - started, exposed_ns[members, :, index].min(axis=0)
            transfer_ns[members, :, index] = np.where(np.isfinite(took), np.maximum(took, 0), shortest)
            free[group] = np.where(np.isfinite(took), ended, started)
    names = {measured_steps.run.ranks[position].host for position in ordered.positions.tolist()}
    ahead = None if len(names) == 1 else _find_ahead(ordered, there, over, transfer_ns)
    return Transfers(first_arrival_ns=there[:, :, 0].copy(), transfer_ns=transfer_ns, ahead=ahead)


def _fill_unseen(over_ns: FloatArray, started_ns: FloatArray, members: IntArray, index: int) -> None:
    """Puts the usual end in place of one that the host did not see, where it has seen some: of long jobs it sees
    buckets of gradients end in some steps only."""
    each_started_ns = np.broadcast_to(started_ns, (len(members), started_ns.shape[-1]))  # of all members, or of each
    for member, began_ns in zip(members.tolist(), each_started_ns, strict=True):
        took_ns = over_ns[member, :, index] - began_ns
        seen = np.isfinite(took_ns)
        if seen.any() and not seen.all():
            over_ns[member, ~seen, index] = began_ns[~seen] + np.median(took_ns[seen])


def find_device_transfers(ordered: OrderedCollectives) -> Transfers:
    """Transfers on the device clock: what a collective took on the rank that came last; see `measure_took`.

    Of collectives of which nothing follows from that, it is the shortest wait of a member.
    """
    assert ordered.took_ns is not None
    transfer_ns = np.zeros_like(ordered.arrival_ns)
    for index, parties in enumerate(ordered.parties):
        for _, members in parties:
            took_ns = ordered.took_ns[members, :, index].min(axis=0)
            shortest_ns = ordered.exposed_ns[members, :, index].min(axis=0)
            transfer_ns[members, :, index] = np.where(np.isfinite(took_ns), took_ns, shortest_ns)
    first_ns = ordered.arrival_ns[:, :, 0] + _join_ends(ordered)
    return Transfers(first_arrival_ns=first_ns, transfer_ns=transfer_ns, ahead=None)


def _join_ends(ordered: OrderedCollectives) -> FloatArray:
    """What to add to each rank's times so that common collectives end together, ``[num_ranks, num_steps]``; NaN: some
    ranks have none in common, even through others."""
    assert ordered.took_ns is not None
    shift_ns = np.zeros(ordered.arrival_ns.shape[:2])
    joined = np.arange(len(shift_ns))
    for index, parties in enumerate(ordered.parties):
        for _, members in parties:
            if not (joined == joined[0]).all() and np.isfinite(ordered.took_ns[members, :, index]).any():
                over_ns = ordered.end_ns[members, :, index] + shift_ns[members]
                for row, number in enumerate(joined[members].tolist()):
                    if joined[members[row]] != joined[members[0]]:
                        moved = joined == number
                        shift_ns[moved] += over_ns[0] - over_ns[row]
                        joined[moved] = joined[members[0]]
    return shift_ns if (joined == joined[0]).all() else np.full_like(shift_ns, np.nan)


def _align(
    measured_steps: MeasuredSteps, ordered: OrderedCollectives, resume_ns: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Arrivals, and when each rank could go on, on rank 0's clock; NaN: clock not compared, or end not seen."""
    clocks = map_clocks(measured_steps.run)
    left_ns = np.where(ordered.blocking, resume_ns, ordered.end_ns)
    there, over = np.empty_like(left_ns), np.empty_like(left_ns)
    for row, position in enumerate(ordered.positions.tolist()):
        there[row] = clocks.to_reference(position, ordered.arrival_ns[row])
        over[row] = clocks.to_reference(position, left_ns[row])
    return there, over


def _find_ahead(ordered: OrderedCollectives, there: FloatArray, over: FloatArray, transfer_ns: FloatArray) -> Ahead:
    """How far the transfers were ahead; 0 where several groups share the network."""
    ahead = Ahead(**{name: np.zeros(there.shape[1:]) for name in ("usual_ns", "least_ns", "most_ns")})
    for first, end in split_waits(ordered.blocking):
        groups = {group for index in range(first, end) for group, _ in ordered.parties[index]}
        if len(groups) == 1:
            here = slice(first, end)
            usual_ns, least_ns = measure_ahead(there[:, :, here], over[:, :, here], ordered.sizes_bytes[here])
            bound_ns = bound_ahead(there[:, :, first], transfer_ns[:, :, here].mean(axis=0))
            ahead.usual_ns[:, first], ahead.least_ns[:, first] = usual_ns, least_ns
            ahead.most_ns[:, first] = np.maximum(usual_ns, bound_ns)
    return ahead
