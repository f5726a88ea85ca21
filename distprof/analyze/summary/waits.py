"""How long did each rank wait for the last one, and how long did the transfer take, collective by collective?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.clocks.clocks import ClockMap, map_clocks
from distprof.analyze.cycles.collective_order import choose_tables
from distprof.analyze.cycles.device_collectives import compute_earliest_starts, mark_last, measure_took
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import as_numbers, choose_blocks
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.intervals import measure_union
from distprof.facts.run import Clock, Collectives
from distprof.report.wait_report import WaitReport

MAX_CELLS = 1_250_000
"""Largest ranks x steps x collectives whose mean is taken; of larger tables, that of blocks of neighbouring steps."""


class Waits(Struct, frozen=True, kw_only=True):
    """One group's collectives on one clock, ns, ``[num_members, num_steps, num_collectives]``."""

    wait_ns: FloatArray
    """Last arrival less own; on the device clock, what the member took less the transfer."""
    transfer_ns: FloatArray
    """End less last arrival; NaN: the end was not seen. On the device clock, what the member took that took least."""
    last: BoolArray
    """Whether the member arrived last, by more than ``bound_ns``."""
    bound_ns: float
    """Largest error of a comparison of two members' clocks; infinite: they cannot be compared."""


def measure_waits(table: Collectives, steps: IntArray, clocks: ClockMap) -> Waits:
    """Waits and transfers of a table in some of its steps, given as positions in ``table.steps``.

    If members are missing, the last arrival is that of the members present: true waits are at least as long, and true
    transfers at most as long.
    """
    arrival_ns, end_ns = table.arrival_ns[:, steps], table.end_ns[:, steps].copy()
    left_ns = arrival_ns + table.exposed_ns[:, steps]
    np.copyto(end_ns, left_ns, where=~np.isfinite(end_ns) & (table.exposed_ns[:, steps] > 0))
    bound_ns = _bound_clock_error(table, arrival_ns, clocks)
    there = np.stack([clocks.to_reference(int(pos), arrival_ns[row]) for row, pos in enumerate(table.ranks)])
    over = np.stack([clocks.to_reference(int(pos), end_ns[row]) for row, pos in enumerate(table.ranks)])
    ranked = np.sort(there, axis=0)
    latest = ranked[-1]
    lead = latest - ranked[-2] if len(ranked) > 1 else np.zeros_like(latest)
    return Waits(
        wait_ns=latest - there, transfer_ns=np.maximum(over - latest, 0), bound_ns=bound_ns,
        last=(there == latest) & (lead > bound_ns) & bool(len(ranked) > 1),
    )  # fmt: skip


def measure_device_waits(table: Collectives, steps: IntArray) -> Waits:
    """The same of a table on the device clock, for which no clocks are compared."""
    took_ns = measure_took(table, steps)
    transfer_ns = np.broadcast_to(took_ns.min(axis=0), took_ns.shape)
    return Waits(wait_ns=took_ns - transfer_ns, transfer_ns=transfer_ns, last=mark_last(took_ns), bound_ns=0.0)


def report_waits(measured_steps: MeasuredSteps) -> list[WaitReport]:
    """By group, kind and phase, for groups with at least two members whose clocks can be compared.

    Where a group's collectives were timed on the device, these times count, and kind `OTHER` is left out, since its
    roots leave early. On the host, collectives whose end and wait it did not see are left out: of those on a device it
    knows when it issued them, which is not when the device was ready for them.
    """
    clocks = map_clocks(measured_steps.run)
    return [
        item for table, steps, waits in list_waits(measured_steps)
        for item in _summarize(measured_steps, table, steps, waits, clocks)
    ]  # fmt: skip


def list_waits(measured_steps: MeasuredSteps) -> Iterator[tuple[Collectives, IntArray, Waits]]:
    """Each table that counts, the steps of it that do, as positions in ``table.steps``, and the waits in them.

    On the host clock, arrivals are seen in every recorded step, so all steps count. On a device, those with all ends.
    """
    clocks = map_clocks(measured_steps.run)
    on_device = [table for table in choose_tables(measured_steps, Clock.DEVICE) if table.ends_seen]
    timed = {(table.group, tuple(table.ranks.tolist())) for table in on_device}
    for table in [*on_device, *choose_tables(measured_steps)]:
        if table.clock is Clock.HOST and (table.group, tuple(table.ranks.tolist())) in timed:
            continue
        device = table.clock is Clock.DEVICE
        steps = (_choose_ended if device else _choose_counted)(measured_steps, table)
        if len(table.ranks) > 1 and len(steps):
            waits = measure_device_waits(table, steps) if device else measure_waits(table, steps, clocks)
            if np.isfinite(waits.bound_ns):
                yield table, steps, waits


def _choose_counted(measured_steps: MeasuredSteps, table: Collectives) -> IntArray:
    """The counted steps, as positions in ``table.steps``; of too many, blocks."""
    return _choose_blocks(table, measured_steps.counted[table.steps])


def _choose_ended(measured_steps: MeasuredSteps, table: Collectives) -> IntArray:
    """Those in which every end is known, if there are any, else all. On the host clock, an end is known by the wait for
    it, too."""
    counted = measured_steps.counted[table.steps]
    known = np.isfinite(table.end_ns)
    if table.clock is Clock.HOST:
        known |= table.exposed_ns > 0
    whole = counted & known.all(axis=(0, 2))
    return _choose_blocks(table, whole if whole.any() else counted)


def _choose_blocks(table: Collectives, chosen: BoolArray) -> IntArray:
    steps = np.flatnonzero(chosen)
    return steps[choose_blocks(len(steps), MAX_CELLS // max(1, len(table.ranks) * len(table.kinds)))]


def _bound_clock_error(table: Collectives, arrival_ns: FloatArray, clocks: ClockMap) -> float:
    """Summed bound of the two least certain clocks; 0: the members share one."""
    rows = {int(clocks.clock[position]): row for row, position in enumerate(table.ranks)}
    if len(rows) == 1:
        first = int(table.ranks[0])
        return 0.0 if clocks.comparable(first) or len(table.ranks) == 1 else np.inf
    bounds = []
    for row in rows.values():
        position = int(table.ranks[row])
        ends = clocks.to_reference(position, (arrival_ns[row].min(), arrival_ns[row].max()))
        bounds.append(clocks.worst_bound_ns(position, float(ends[0]), float(ends[1])))
    return sum(sorted(bounds)[-2:])


def _summarize(
    measured_steps: MeasuredSteps, table: Collectives, steps: IntArray, waits: Waits, clocks: ClockMap
) -> list[WaitReport]:
    kinds = list(zip(table.kinds, table.phases, strict=True))
    reports = []
    missing = max(table.size - len(table.ranks), 0)
    device = table.clock is Clock.DEVICE
    ended = _choose_ended(measured_steps, table)
    same = np.array_equal(ended, steps)
    transfers_ns = (waits if same else measure_waits(table, ended, clocks)).transfer_ns
    begin_ns = compute_earliest_starts(table, ended) if device else table.arrival_ns[:, ended]
    end_ns, exposures_ns = table.end_ns[:, ended], table.exposed_ns[:, ended]
    known = np.isfinite(transfers_ns) | (np.isfinite(exposures_ns) & (not device))
    for kind, phase in dict.fromkeys(kinds):
        own = [index for index, item in enumerate(kinds) if item == (kind, phase)]
        if not known[:, :, own].any():
            continue
        transfer_ns = transfers_ns[:, :, own].min(axis=0)
        exposed_ns = np.nan_to_num(exposures_ns[:, :, own]).sum(axis=2).mean(axis=1)
        busy_ns = measure_union(begin_ns[:, :, own], end_ns[:, :, own]).mean(axis=1)
        reports.append(
            WaitReport(
                group=table.group, kind=kind.value, phase=phase.value, count_per_step=len(own),
                bytes_per_step=_add_sizes(table, own), received_bytes=_add_received(measured_steps, table, own, steps),
                wait_ns=_place(measured_steps, table, _mean_wait(waits.wait_ns[:, :, own], waits.bound_ns)),
                transfer_ns=float(transfer_ns.mean()) if np.isfinite(transfer_ns).all() and not missing else None,
                busy_ns=_place(measured_steps, table, busy_ns), exposed_ns=_place(measured_steps, table, exposed_ns),
                overlapped_ns=_place(measured_steps, table, np.maximum(busy_ns - exposed_ns, 0)),
                last_ratio=_place(measured_steps, table, _compute_last_ratio(waits.last[:, :, own], missing)),
                bound_ns=waits.bound_ns, steps_used=len(steps), ended_steps=len(ended), members_missing=missing,
                clock=table.clock.value,
            )
        )  # fmt: skip
    return reports


def _mean_wait(wait_ns: FloatArray, bound_ns: float) -> FloatArray:
    """Mean wait of each member, ns; NaN if no wait exceeds the error of the clocks."""
    mean_ns: FloatArray = wait_ns.mean(axis=(1, 2))
    return mean_ns if bound_ns == 0 or (mean_ns > bound_ns).any() else np.full(len(mean_ns), np.nan)


def _compute_last_ratio(last: BoolArray, missing: int) -> FloatArray:
    """Share of the collectives in which each member arrived last; NaN if members are missing, which may have been."""
    return np.full(len(last), np.nan) if missing else last.mean(axis=(1, 2))


def _add_sizes(table: Collectives, own: Sequence[int]) -> int | None:
    known = [size for index in own if (size := table.sizes_bytes[index]) is not None]
    return sum(known) if len(known) == len(own) else None


def _add_received(
    measured_steps: MeasuredSteps, table: Collectives, own: Sequence[int], steps: IntArray
) -> tuple[float | None, ...]:  # fmt: skip
    if table.received_bytes is None or not np.isfinite(received := table.received_bytes[:, steps][:, :, own]).all():
        return ()
    return _place(measured_steps, table, received.sum(axis=2).mean(axis=1))


def _place(measured_steps: MeasuredSteps, table: Collectives, values: FloatArray) -> tuple[float | None, ...]:
    """By position in the report; None: no member."""
    placed: list[float | None] = [None] * len(measured_steps.run.ranks)
    for position, value in zip(table.ranks.tolist(), as_numbers(values), strict=True):
        placed[position] = value
    return tuple(placed)
