"""The recorded steps with another number of micro-steps, or without gathering parameters again in backward."""

from __future__ import annotations

import dataclasses

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles, renumber
from distprof.facts.run import OWN_PARTS, CollectiveKind, FloatArray, Phase

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
    parties = cycles.parties[first:end]
    if (
        {*cycles.kinds[first:end]} != {CollectiveKind.ALL_REDUCE}
        or not all(cycles.sizes_bytes[first:end])
        or cycles.blocking[first:end].tolist() != [index == end - 1 for index in places]
        or any(len(party) != 1 or party[0][0] != parties[0][0][0] for party in parties)
        or (cycles.skipped is not None and cycles.skipped[:, first:end].any())
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
    gap_ns, own_ns = cycles.gap_ns.copy(), _find_own(cycles) / recorded
    gap_ns[:, :, first] += _sum_before(own_ns, max(wanted - recorded, 0))
    gap_ns[:, :, first] = np.maximum(gap_ns[:, :, first] - max(recorded - wanted, 0) * own_ns, 0)
    return dataclasses.replace(cycles, gap_ns=gap_ns)


def repeat_gathering(cycles: SyncCycles, *, recorded: int, wanted: int) -> SyncCycles | None:
    """Micro-steps that gather parameters, of which the last one also reduces gradients, as under FSDP2.

    Args:
        cycles: As recorded.
        recorded: Micro-steps of a recorded step.
        wanted: Micro-steps instead.

    Returns:
        None: the collectives are not issued like this.
    """
    parts = _find_micro_steps(cycles)
    if len(parts) != recorded or any(
        CollectiveKind.ALL_GATHER not in {cycles.kinds[at] for at in part} for part in parts
    ):
        return None
    gathers = {at for at in parts[0] if cycles.kinds[at] is CollectiveKind.ALL_GATHER}
    before, after = range(parts[0][0]), range(parts[-1][-1] + 1, len(cycles.parties))
    order: list[int] = list(before)
    gaps_ns = [cycles.gap_ns[:, :, at] for at in before]
    transfers_ns = [cycles.transfer_ns[:, :, at] for at in before]
    left_ns = np.zeros(cycles.gap_ns.shape[:2])
    for number in range(wanted):
        last = number == wanted - 1
        part, shift = (parts[-1], 0) if last else (parts[0], number + 1 if number else 0)
        for at in part:
            gap_ns = cycles.gap_ns[:, :, at]
            if at == part[0]:
                gap_ns = _find_first(cycles, parts) if number else cycles.gap_ns[:, :, parts[0][0]]
            left_ns = left_ns + np.roll(gap_ns, shift, axis=1)
            if last or at in gathers:
                order.append(at)
                gaps_ns.append(left_ns)
                transfers_ns.append(np.roll(cycles.transfer_ns[:, :, at], shift, axis=1))
                left_ns = np.zeros_like(left_ns)
    order += after
    gaps_ns += [cycles.gap_ns[:, :, at] for at in after]
    transfers_ns += [cycles.transfer_ns[:, :, at] for at in after]
    return dataclasses.replace(
        cycles, parties=tuple(cycles.parties[at] for at in order), blocking=cycles.blocking[order],
        gap_ns=np.stack(gaps_ns, axis=2), transfer_ns=np.stack(transfers_ns, axis=2),
        exposed_ns=np.zeros((*left_ns.shape, len(order))), issued=(), kinds=(), sizes_bytes=(), ahead=None,
        skipped=None if cycles.skipped is None else cycles.skipped[:, order],
        awaits=renumber(cycles.awaits, order), follows=renumber(cycles.follows, order),
    )  # fmt: skip


def keep_gathered(cycles: SyncCycles) -> SyncCycles | None:
    """Parameters stay gathered from forward to backward: nothing is gathered there. None: nothing is as it is."""
    again = np.array([
        cycles.issued[index] is Phase.BACKWARD and cycles.kinds[index] is CollectiveKind.ALL_GATHER
        for index in cycles.find_awaited().tolist()
    ], dtype=bool)  # fmt: skip
    if not again.any() or again[-1]:
        return None
    return dataclasses.replace(
        cycles, blocking=cycles.blocking & ~again, transfer_ns=np.where(again, 0.0, cycles.transfer_ns), ahead=None
    )


def _find_own(cycles: SyncCycles) -> FloatArray:
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


def _find_micro_steps(cycles: SyncCycles) -> list[list[int]]:
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


def _find_first(cycles: SyncCycles, parts: list[list[int]]) -> FloatArray:
    """Own time before the first collective of any micro-step but the first one, ``[num_ranks, num_cycles]``."""
    if len(parts) > 1:
        return cycles.gap_ns[:, :, parts[1][0]]
    inside_ns = cycles.gap_ns[:, :, parts[0][1:]].sum(axis=2)
    first_ns: FloatArray = np.clip(_find_own(cycles) - inside_ns, 0, cycles.gap_ns[:, :, parts[0][0]])
    return first_ns
