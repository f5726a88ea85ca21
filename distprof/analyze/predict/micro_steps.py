"""The recorded steps with another number of micro-steps, or without gathering parameters again in backward."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from distprof.analyze.cycles.sync_cycles import SyncCycles, renumber
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PARTS, CollectiveKind, Phase

REPEATED = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD)
"""What every micro-step consists of."""
_REPEATED_CODES = [OWN_PARTS.index(phase) for phase in REPEATED]


def locate_buckets(cycles: SyncCycles) -> int | None:
    """Index of the first bucket of gradients among the collectives, as DDP issues them: neighbouring all-reduces of all
    ranks in backward, of which the ranks wait only for the last. None: collectives are not issued like this."""
    places = [index for index, part in enumerate(cycles.issued) if part is Phase.BACKWARD]
    if not places or places != list(range(places[0], places[-1] + 1)):
        return None
    first, end = places[0], places[-1] + 1
    groups = cycles.groups[first:end]
    if (
        {*cycles.kinds[first:end]} != {CollectiveKind.ALL_REDUCE}
        or not all(cycles.sizes_bytes[first:end])
        or cycles.is_waited_on[first:end].tolist() != [index == end - 1 for index in places]
        or any(len(party) != 1 or party[0][0] != groups[0][0][0] for party in groups)
        or (cycles.absent is not None and cycles.absent[:, first:end].any())
    ):
        return None
    return first


def repeat_computing(cycles: SyncCycles, first: int, *, recorded: int, wanted: int) -> SyncCycles:
    """Micro-steps of which only the last one synchronises, as under DDP: the others come before its first collective.

    Each further micro-step takes as long as one of another step does, a different one for each, so that a rank that was
    late by chance is not late in all of them.

    Args:
        cycles: As recorded.
        first: The first collective of the last micro-step.
        recorded: Micro-steps of a recorded step.
        wanted: Micro-steps instead.
    """
    work_ns, own_ns = cycles.work_ns.copy(), _sum_own_times(cycles) / recorded
    work_ns[:, :, first] += _sum_before(own_ns, max(wanted - recorded, 0))
    work_ns[:, :, first] = np.maximum(work_ns[:, :, first] - max(recorded - wanted, 0) * own_ns, 0)
    return structs.replace(cycles, work_ns=work_ns)


def repeat_gathering(cycles: SyncCycles, *, recorded: int, wanted: int) -> SyncCycles | None:
    """Micro-steps that gather parameters, of which the last one also reduces gradients, as under FSDP2.

    Args:
        cycles: As recorded.
        recorded: Micro-steps of a recorded step.
        wanted: Micro-steps instead.

    Returns:
        None: the collectives are not issued like this.
    """
    parts = _group_by_micro_step(cycles)
    if len(parts) != recorded or any(
        CollectiveKind.ALL_GATHER not in {cycles.kinds[at] for at in part} for part in parts
    ):
        return None
    gathers = {at for at in parts[0] if cycles.kinds[at] is CollectiveKind.ALL_GATHER}
    before, after = range(parts[0][0]), range(parts[-1][-1] + 1, len(cycles.groups))
    order: list[int] = list(before)
    gaps_ns = [cycles.work_ns[:, :, at] for at in before]
    transfers_ns = [cycles.transfer_ns[:, :, at] for at in before]
    left_ns = np.zeros(cycles.work_ns.shape[:2])
    for number in range(wanted):
        last = number == wanted - 1
        part, shift = (parts[-1], 0) if last else (parts[0], number + 1 if number else 0)
        for at in part:
            work_ns = cycles.work_ns[:, :, at]
            if at == part[0]:
                work_ns = _measure_before_first(cycles, parts) if number else cycles.work_ns[:, :, parts[0][0]]
            left_ns = left_ns + np.roll(work_ns, shift, axis=1)
            if last or at in gathers:
                order.append(at)
                gaps_ns.append(left_ns)
                transfers_ns.append(np.roll(cycles.transfer_ns[:, :, at], shift, axis=1))
                left_ns = np.zeros_like(left_ns)
    order += after
    gaps_ns += [cycles.work_ns[:, :, at] for at in after]
    transfers_ns += [cycles.transfer_ns[:, :, at] for at in after]
    return structs.replace(
        cycles, groups=tuple(cycles.groups[at] for at in order), is_waited_on=cycles.is_waited_on[order],
        work_ns=np.stack(gaps_ns, axis=2), transfer_ns=np.stack(transfers_ns, axis=2),
        blocked_ns=np.zeros((*left_ns.shape, len(order))), issued=(), kinds=(), sizes_bytes=(), ahead=None,
        absent=None if cycles.absent is None else cycles.absent[:, order],
        waits_for=renumber(cycles.waits_for, order), predecessor=renumber(cycles.predecessor, order),
    )  # fmt: skip


def keep_gathered(cycles: SyncCycles) -> SyncCycles | None:
    """Parameters stay gathered from forward to backward: nothing is gathered there. None: nothing is as it is."""
    again = np.array([
        cycles.issued[index] is Phase.BACKWARD and cycles.kinds[index] is CollectiveKind.ALL_GATHER
        for index in cycles.list_awaited().tolist()
    ], dtype=bool)  # fmt: skip
    if not again.any() or again[-1]:
        return None
    return structs.replace(
        cycles,
        is_waited_on=cycles.is_waited_on & ~again,
        ahead=None,
        transfer_ns=np.where(again, 0.0, cycles.transfer_ns),
    )


def _sum_own_times(cycles: SyncCycles) -> FloatArray:
    """Own time of all micro-steps, ``[num_ranks, num_cycles]``."""
    own_ns: FloatArray = np.nan_to_num(cycles.phase_ns[:, :, _REPEATED_CODES]).sum(axis=2)
    return own_ns


def _sum_before(values: FloatArray, count: int) -> FloatArray:
    """The sum of as many values before each along axis 1, where the last comes before the first; same shape."""
    num_values = values.shape[1]
    rounds, rest = divmod(count, num_values)
    until = np.cumsum(np.pad(values, ((0, 0), (rest + 1, 0)), mode="wrap"), axis=1)
    found: FloatArray = rounds * values.sum(axis=1, keepdims=True) + until[:, rest:-1] - until[:, :num_values]
    return found


def _group_by_micro_step(cycles: SyncCycles) -> list[list[int]]:
    """The collectives of each: those of a forward, and of the backward that follows."""
    parts: list[list[int]] = []
    before: object = None
    for at, part in enumerate(cycles.issued):
        if part not in (Phase.FORWARD, Phase.BACKWARD):
            continue
        if part is Phase.FORWARD and before is not Phase.FORWARD:
            parts.append([])
        if parts:
            parts[-1].append(at)
        before = part
    return parts


def _measure_before_first(cycles: SyncCycles, parts: list[list[int]]) -> FloatArray:
    """Own time before the first collective of any micro-step but the first one, ``[num_ranks, num_cycles]``."""
    if len(parts) > 1:
        return cycles.work_ns[:, :, parts[1][0]]
    inside_ns = cycles.work_ns[:, :, parts[0][1:]].sum(axis=2)
    first_ns: FloatArray = np.clip(_sum_own_times(cycles) - inside_ns, 0, cycles.work_ns[:, :, parts[0][0]])
    return first_ns
