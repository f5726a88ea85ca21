"""How well do the hosts' clocks agree?"""

from __future__ import annotations

from collections.abc import Sequence

from distprof.analyze.measured_steps import MeasuredSteps
from distprof.facts.run import ClockReading
from distprof.report.wait_report import ClockReport


def report_clocks(measured_steps: MeasuredSteps) -> list[ClockReport]:
    """One entry per clock. Ranks with the same readings share a clock."""
    hosts = {info.rank: info.host for info in measured_steps.run.ranks}
    readings: dict[int, list[ClockReading]] = {}
    for reading in measured_steps.run.meta.clock_readings:
        readings.setdefault(reading.rank, []).append(reading)
    clocks: dict[tuple[tuple[int, int, int], ...], list[int]] = {}
    for rank, own in sorted(readings.items()):
        clocks.setdefault(tuple((item.at_ns, item.offset_ns, item.bound_ns) for item in own), []).append(rank)
    return [
        ClockReport(
            host=hosts.get(ranks[0], f"host of rank {ranks[0]}"), ranks=tuple(ranks), offset_ns=float(key[0][1]),
            bound_ns=float(max(bound for _, _, bound in key)), drift_ratio=_find_drift(key),
        )
        for key, ranks in clocks.items()
    ]  # fmt: skip


def _find_drift(key: Sequence[tuple[int, int, int]]) -> float | None:
    (first, offset, _), (last, later, _) = key[0], key[-1]
    return (later - offset) / (last - first) if last > first else None
