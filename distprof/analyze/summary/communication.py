"""What did the ranks send to each other?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.cycles.collective_order import choose_tables
from distprof.analyze.cycles.device_collectives import find_starts
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import as_numbers
from distprof.facts.intervals import measure_union
from distprof.facts.run import KINDS, Clock, CollectiveKind, FloatArray
from distprof.report.report import CommunicationReport


def report_communication(measured_steps: MeasuredSteps) -> list[CommunicationReport]:
    """Every kind of collective that some rank issued in the counted steps, in the order of `KINDS`."""
    counted = [kind for kind in KINDS if np.nan_to_num(measured_steps.mean(f"{kind}_count")).any()]
    return [_report_kind(measured_steps, kind) for kind in counted]


def _report_kind(measured_steps: MeasuredSteps, kind: CollectiveKind) -> CommunicationReport:
    busy_host_ns, exposed_host_ns, busy_device_ns, exposed_device_ns = (
        measured_steps.mean(f"{kind}_{fact}_ns")
        for fact in ("busy_host", "exposed_host", "busy_device", "exposed_device")
    )
    overlapped_host_ns = np.maximum(busy_host_ns - exposed_host_ns, 0)
    if not np.isfinite(busy_host_ns).any():
        busy_host_ns, overlapped_host_ns = _measure_seen(measured_steps, kind)
    overlapped_device_ns = np.maximum(busy_device_ns - exposed_device_ns, 0)
    if not np.isfinite(busy_device_ns).any():
        busy_device_ns, overlapped_device_ns = _measure_timed(measured_steps, kind)
    return CommunicationReport(
        kind=kind.value,
        count_per_step=as_numbers(measured_steps.mean(f"{kind}_count")),
        bytes_per_step=as_numbers(measured_steps.mean(f"{kind}_bytes")),
        busy_host_ns=as_numbers(busy_host_ns),
        exposed_host_ns=as_numbers(exposed_host_ns),
        overlapped_host_ns=as_numbers(overlapped_host_ns),
        busy_device_ns=as_numbers(busy_device_ns),
        exposed_device_ns=as_numbers(exposed_device_ns),
        overlapped_device_ns=as_numbers(overlapped_device_ns),
    )


def _measure_seen(measured_steps: MeasuredSteps, kind: CollectiveKind) -> tuple[FloatArray, FloatArray]:
    """Busy and overlapped time on the host, mean over the steps in which all ends were seen there, ns.

    Both ``[num_ranks]``; NaN: there is no such step. Of long jobs, buckets of gradients are seen to end in some only.
    """
    counted = measured_steps.counted
    each_ns, exposed_ns = (
        measured_steps.run.column(f"{kind}_{fact}_host_ns")[:, counted] for fact in ("busy", "exposed")
    )
    busy_ns, overlapped_ns = np.full((2, len(each_ns)), np.nan)
    for position, seen in enumerate(np.isfinite(each_ns)):
        if seen.any():
            busy_ns[position] = each_ns[position, seen].mean()
            beside_ns = each_ns[position, seen].mean() - exposed_ns[position, seen].mean()
            overlapped_ns[position] = np.maximum(beside_ns, 0)
    return busy_ns, overlapped_ns


def _measure_timed(measured_steps: MeasuredSteps, kind: CollectiveKind) -> tuple[FloatArray, FloatArray]:
    """Busy and overlapped time on the device, mean over the steps in which collectives were timed there, ns.

    Both ``[num_ranks]``; NaN: in no such step, or the end of one was not seen in any of them.
    """
    tables = choose_tables(measured_steps, Clock.DEVICE)
    busy_ns, overlapped_ns = np.full((2, len(measured_steps.present)), np.nan)
    for position in range(len(busy_ns)):
        own = [table for table in tables if position in table.ranks and kind in table.kinds]
        steps = np.flatnonzero(measured_steps.counted)
        for table in own:
            steps = np.intersect1d(steps, table.steps, assume_unique=True)
        if not own or not len(steps):
            continue
        begins, ends, exposed = [], [], []
        for table in own:
            at, row = np.searchsorted(table.steps, steps), int(np.flatnonzero(table.ranks == position)[0])
            columns = [index for index, other in enumerate(table.kinds) if other is kind]
            begins.append(find_starts(table, at)[row][:, columns])
            ends.append(table.end_ns[row, at][:, columns])
            exposed.append(table.exposed_ns[row, at][:, columns])
        each_ns = measure_union(np.concatenate(begins, axis=1), np.concatenate(ends, axis=1))
        seen = np.isfinite(each_ns) & np.isfinite(np.concatenate(ends, axis=1)).all(axis=1)
        if seen.any():
            busy_ns[position] = each_ns[seen].mean()
            beside_ns = each_ns - np.concatenate(exposed, axis=1).sum(axis=1)
            overlapped_ns[position] = np.maximum(beside_ns[seen], 0).mean()
    return busy_ns, overlapped_ns
