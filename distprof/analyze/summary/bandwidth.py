"""How fast does each group move data, by kind and size of its collectives?

Algorithm and bus bandwidth are those of nccl-tests (its page on performance): bytes of the whole buffer over time, and
that times the share of the buffer that each rank of n sends if the links are used at best. Times are transfers on the
device clock. On the host clock there are none that would do: gloo works on two collectives of a group at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.analyze.cycles.device_collectives import measure_took
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import as_number, find_median
from distprof.facts.run import PASSES, CollectiveKind, Collectives, FloatArray, IntArray
from distprof.report.bandwidth_report import BandwidthReport

MAX_SIZES = 8
"""Sizes of one kind that a group has rows for; of more, those between two powers of two share a row."""
SENT = {**PASSES, CollectiveKind.ALL_TO_ALL: 1.0}
"""How often each byte of the buffer leaves a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """One collective of a group's order, in every measured step."""

    kind: CollectiveKind
    size_bytes: int | None
    transfer_ns: FloatArray
    """``[num_steps]``; NaN: not known."""


def report_bandwidths(measured_steps: MeasuredSteps) -> list[BandwidthReport]:
    """By group, kind and size, of groups of several ranks whose collectives were timed on the device."""
    groups: dict[tuple[str, tuple[int, ...]], list[Collectives]] = {}
    for table in measured_steps.run.device_collectives:
        groups.setdefault((table.group, tuple(table.ranks.tolist())), []).append(table)
    reports = []
    for tables in groups.values():
        if tables[0].size > 1:
            samples = [sample for table in tables for sample in _list_samples(measured_steps, table)]
            reports += [_report(measured_steps, tables[0], part) for part in _split(samples)]
    return reports


def find_bus_factor(kind: CollectiveKind, num_ranks: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth in a group of several ranks. None: not defined for this kind."""
    return SENT[kind] * (num_ranks - 1) / num_ranks if kind in SENT else None


def _find_transfers(table: Collectives, steps: IntArray) -> FloatArray:
    """In some of a table's steps, ns, ``[num_steps, num_collectives]``; NaN: not known."""
    took_ns: FloatArray = measure_took(table, steps).min(axis=0)
    return np.where((took_ns > 0) & (len(table.ranks) == table.size), took_ns, np.nan)


def _list_samples(measured_steps: MeasuredSteps, table: Collectives) -> Iterator[_Sample]:
    transfer_ns = _find_transfers(table, np.flatnonzero(measured_steps.counted[table.steps]))
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
    algorithm = as_number(1e9 / float(find_median(pace_ns[known]))) if known.any() else None
    factor = find_bus_factor(kind, table.size)
    return BandwidthReport(
        group=table.group, kind=kind.value, least_bytes=min(sizes, default=None), most_bytes=max(sizes, default=None),
        num_ranks=table.size,
        hosts=tuple(dict.fromkeys(measured_steps.run.ranks[position].host for position in table.ranks.tolist())),
        count=int(known.sum()), transfer_ns=float(find_median(transfer_ns[known])) if known.any() else None,
        algorithm_bytes_per_s=algorithm,
        bus_bytes_per_s=None if algorithm is None or factor is None else algorithm * factor,
        members_missing=max(table.size - len(table.ranks), 0),
    )  # fmt: skip
