"""What did the ranks send to each other, and how fast does each group move data?

Algorithm and bus bandwidth are those of nccl-tests (its page on performance): bytes of the whole buffer over time, and
that times the share of the buffer that each rank of n sends if the links are used at best. Their times are transfers on
the device clock. On the host clock there are none that would do: gloo works on two collectives of a group at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.cycles.collective_order import choose_tables
from distprof.analyze.cycles.device_collectives import compute_earliest_starts, measure_took
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import as_number, as_numbers, fast_median
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.intervals import measure_union
from distprof.facts.run import KINDS, PASSES, Clock, CollectiveKind, Collectives
from distprof.report.report import BandwidthReport, CommunicationReport


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
            begins.append(compute_earliest_starts(table, at)[row][:, columns])
            ends.append(table.end_ns[row, at][:, columns])
            exposed.append(table.exposed_ns[row, at][:, columns])
        each_ns = measure_union(np.concatenate(begins, axis=1), np.concatenate(ends, axis=1))
        seen = np.isfinite(each_ns) & np.isfinite(np.concatenate(ends, axis=1)).all(axis=1)
        if seen.any():
            busy_ns[position] = each_ns[seen].mean()
            beside_ns = each_ns - np.concatenate(exposed, axis=1).sum(axis=1)
            overlapped_ns[position] = np.maximum(beside_ns[seen], 0).mean()
    return busy_ns, overlapped_ns


MAX_SIZES = 8
"""Sizes of one kind that a group has rows for; of more, those between two powers of two share a row."""
SENT = {**PASSES, CollectiveKind.ALL_TO_ALL: 1.0}
"""How often each byte of the buffer leaves a rank."""


class _Sample(Struct, frozen=True, kw_only=True):
    """One collective of a group's order, in every measured step."""

    kind: CollectiveKind
    size_bytes: int | None
    transfer_ns: FloatArray
    """``[num_steps]``; NaN: not known."""


def report_bandwidths(measured_steps: MeasuredSteps) -> list[BandwidthReport]:
    """By group, kind and size, of groups of several ranks whose collectives were timed on the device."""
    groups: dict[tuple[str, tuple[int, ...]], list[Collectives]] = {}
    for table in filter(lambda table: table.ends_seen, measured_steps.run.device_collectives):
        groups.setdefault((table.group, tuple(table.ranks.tolist())), []).append(table)
    reports = []
    for tables in groups.values():
        if tables[0].size > 1:
            samples = [sample for table in tables for sample in _list_samples(measured_steps, table)]
            reports += [_report(measured_steps, tables[0], part) for part in _split(samples)]
    return reports


def compute_bus_factor(kind: CollectiveKind, num_ranks: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth in a group of several ranks. None: not defined for this kind."""
    return SENT[kind] * (num_ranks - 1) / num_ranks if kind in SENT else None


def _measure_shortest(table: Collectives, steps: IntArray) -> FloatArray:
    """In some of a table's steps, ns, ``[num_steps, num_collectives]``; NaN: not known."""
    took_ns: FloatArray = measure_took(table, steps).min(axis=0)
    return np.where((took_ns > 0) & (len(table.ranks) == table.size), took_ns, np.nan)


def _list_samples(measured_steps: MeasuredSteps, table: Collectives) -> Iterator[_Sample]:
    transfer_ns = _measure_shortest(table, np.flatnonzero(measured_steps.counted[table.steps]))
    for index, (kind, size_bytes) in enumerate(zip(table.kinds, table.sizes_bytes, strict=True)):
        if len(transfer_ns):
            yield _Sample(kind=kind, size_bytes=size_bytes, transfer_ns=transfer_ns[:, index])


def _split(samples: Sequence[_Sample]) -> list[list[_Sample]]:
    """By kind and size, in order of issue; where there are many sizes, by the powers of two between them."""
    sizes: dict[CollectiveKind, set[int | None]] = {}
    for sample in samples:
        sizes.setdefault(sample.kind, set()).add(sample.size_bytes)
    parts: dict[tuple[CollectiveKind, int | None], list[_Sample]] = {}
    for sample in samples:
        size = sample.size_bytes
        place = size.bit_length() if size is not None and len(sizes[sample.kind]) > MAX_SIZES else size
        parts.setdefault((sample.kind, place), []).append(sample)
    return list(parts.values())


def _report(measured_steps: MeasuredSteps, table: Collectives, samples: Sequence[_Sample]) -> BandwidthReport:
    kind, sizes = samples[0].kind, [sample.size_bytes for sample in samples if sample.size_bytes is not None]
    transfer_ns = np.concatenate([sample.transfer_ns for sample in samples])
    known = np.isfinite(transfer_ns)
    pace_ns = np.concatenate([sample.transfer_ns / (sample.size_bytes or np.nan) for sample in samples])
    algorithm = as_number(1e9 / float(fast_median(pace_ns[known]))) if known.any() else None
    factor = compute_bus_factor(kind, table.size)
    return BandwidthReport(
        group=table.group, kind=kind.value, least_bytes=min(sizes, default=None), most_bytes=max(sizes, default=None),
        num_ranks=table.size,
        hosts=tuple(dict.fromkeys(measured_steps.run.ranks[position].host for position in table.ranks.tolist())),
        count=int(known.sum()), transfer_ns=float(fast_median(transfer_ns[known])) if known.any() else None,
        algorithm_bytes_per_s=algorithm,
        bus_bytes_per_s=None if algorithm is None or factor is None else algorithm * factor,
        members_missing=max(table.size - len(table.ranks), 0),
    )  # fmt: skip
