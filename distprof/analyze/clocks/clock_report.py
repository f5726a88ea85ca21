"""How well do the hosts' clocks agree, and the devices' with them?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from distprof.analyze.clocks.clocks import UNKNOWN
from distprof.analyze.clocks.device_clock import DeviceClockMap, map_device_clocks
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.rank_names import name_ranks
from distprof.facts.run import ClockReading, Run
from distprof.report.report import DeviceClockReport
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


def report_device_clocks(run: Run) -> list[DeviceClockReport]:
    """One entry per rank; none if no rank has anchors."""
    if not np.isfinite(run.column("anchor_host_ns")).any():
        return []
    clocks = map_device_clocks(run)
    return [_describe(run, clocks, position) for position in range(len(run.ranks))]


def note_device_clocks(reports: Sequence[DeviceClockReport]) -> list[str]:
    """What does not agree."""
    notes = []
    apart = {item.rank: item.against for item in reports if item.agrees is False}
    if apart:
        others = name_ranks([rank for rank in apart.values() if rank is not None])
        notes.append(
            f"common collectives end farther apart on {name_ranks([*apart])} and {others} than their device clocks can "
            "be wrong: the distance is taken as the bound"
        )
    contrary = {item.rank: item.anchors_left_out for item in reports if item.anchors_left_out}
    if contrary:
        number, ranks = sum(contrary.values()), name_ranks([*contrary])
        notes.append(f"{ranks}: {number} reading(s) of the device clock contradict the others and are left out")
    return notes


def _describe(run: Run, clocks: DeviceClockMap, position: int) -> DeviceClockReport:
    number, check = int(clocks.devices.clock[position]), clocks.checks.get(position)
    times_ns = run.column("begin_device_ns")[position]
    track = None if number == UNKNOWN else clocks.devices.tracks[number]
    own_ns = whole_ns = drift = None
    if track is not None:
        times_ns = np.concatenate([times_ns[np.isfinite(times_ns)], track.at_ns + track.offset_ns])
        span = float(times_ns.min()), float(times_ns.max())
        own_ns, whole_ns = clocks.worst_host_bound_ns(position, *span), clocks.worst_bound_ns(position, *span)
        drift = _find_drift(
            [*zip(track.at_ns.tolist(), track.offset_ns.tolist(), track.bound_ns.tolist(), strict=True)]
        )
    return DeviceClockReport(
        rank=run.ranks[position].rank,
        anchors=0 if track is None else len(track.at_ns),
        anchors_left_out=int(clocks.num_left_out[position]),
        drift_ratio=drift,
        host_bound_ns=own_ns,
        bound_ns=whole_ns if whole_ns is not None and math.isfinite(whole_ns) else None,
        against=None if check is None else run.ranks[check.against].rank,
        end_gap_ns=None if check is None else check.gap_ns,
        agrees=None if check is None else check.agrees,
    )


def _find_drift(key: Sequence[tuple[float, float, float]]) -> float | None:
    (first, offset, _), (last, later, _) = key[0], key[-1]
    return (later - offset) / (last - first) if last > first else None
