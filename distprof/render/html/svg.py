"""The drawings of the HTML report: plain SVG, coloured by the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.facts.arrays import FloatArray
from distprof.render.markup import show
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.sections import choose_spread
from distprof.render.sections.trace_rows import DEVICE_PARTS
from distprof.render.units import format_time
from distprof.report.report import Report
from distprof.report.sweep_report import SweepReport, SweepRow
from distprof.report.trace_report import DeviceReport

MAX_BARS = 64
WIDTH, BAR, GAP, LEFT = 1000, 18, 4, 84


def draw_phases(report: Report, clock: str) -> str:
    """A bar per rank with its phases side by side; when there are many ranks, a selection of them."""
    phases = [phase for phase in report.phases if phase.clock == clock]
    positions = choose_spread(report, MAX_BARS)
    table = _as_table([phase.mean_ns for phase in phases])
    longest_ns = float(np.nansum(table, axis=0).max()) if table.size else 0.0
    if longest_ns <= 0:
        return ""
    left_out = len(report.ranks) - len(positions)
    shown = f"{left_out:,} ranks that do not stand out are not drawn. " if left_out else ""
    legend = "".join(f'<li><i class="p-{phase.phase}"></i>{phase.phase}</li>' for phase in phases)
    names = [(f"p-{phase.phase}", phase.phase) for phase in phases]
    ranks = [report.ranks[position].rank for position in positions]
    bars = [
        (rank, name_rank(report, rank), [*table[:, position]]) for rank, position in zip(ranks, positions, strict=True)
    ]
    drawn = _draw_bars(bars, names, longest_ns, f"Time per phase and rank, {clock} clock")
    return f'<ul class="legend">{legend}</ul>{drawn}<p>{shown}The longest bar is {format_time(longest_ns)}.</p>'


def draw_devices(report: Report, devices: Sequence[DeviceReport]) -> str:
    """A bar per rank, what its device did side by side."""
    longest_ns = max((device.span_ns for device in devices), default=0.0)
    if longest_ns <= 0:
        return ""
    legend = "".join(f'<li><i class="d-{head}"></i>{meaning}</li>' for head, _, meaning in DEVICE_PARTS)
    names = [(f"d-{head}", head) for head, *_ in DEVICE_PARTS]
    bars = [
        (device.rank, name_rank(report, device.rank), [float(getattr(device, field)) for _, field, _ in DEVICE_PARTS])
        for device in devices
    ]
    drawn = _draw_bars(bars, names, longest_ns, "Device time by rank")
    return f'<ul class="legend">{legend}</ul>{drawn}<p>The longest bar is {format_time(longest_ns)}.</p>'


def _draw_bars(
    bars: Sequence[tuple[int, str, Sequence[float]]], names: Sequence[tuple[str, str]], longest_ns: float, title: str
) -> str:
    """A bar per rank, with what it is called and the times of its parts, ns; NaN: not measured. ``names``: each part's
    class, and its name."""
    shapes = []
    for row, (rank, place, times_ns) in enumerate(bars):
        top, x = row * (BAR + GAP), float(LEFT)
        shapes.append(f'<text x="{LEFT - 8}" y="{top + 14}" class="end">rank {rank}</text>')
        for (kind, name), time_ns in zip(names, times_ns, strict=True):
            width = 0.0 if np.isnan(time_ns) else time_ns / longest_ns * (WIDTH - LEFT)
            if width > 0.05:
                shapes.append(
                    f'<rect class="{kind}" x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR}">'
                    f"<title>{show(place)}: {name} {format_time(time_ns)}</title></rect>"
                )
            x += width
    return frame(shapes, len(bars) * (BAR + GAP), title)


def _as_table(values: Sequence[Sequence[float | None]]) -> FloatArray:
    return np.array([[np.nan if value is None else value for value in row] for row in values], dtype=np.float64)


def frame(shapes: Sequence[str], height: int, title: str) -> str:
    """A drawing as wide as the page allows."""
    drawn = (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" preserveAspectRatio="xMinYMin meet"><title>{title}</title>'
        f"{''.join(shapes)}</svg>"
    )
    return f'<div class="chart" role="region" aria-label="{title}">{drawn}</div>'


MAX_JOBS = 200
TEXT, JOB_BAR = 18, 10
"""Heights of a job's label, and of its bar below it."""
HEIGHT = TEXT + JOB_BAR + 2 * GAP
SPACE = 1.5
"""Of the longest bar: an interval that reaches further is cut there, since one of few steps may reach anywhere."""


def draw_jobs(report: SweepReport) -> str:
    """A bar per job that has measured steps, in the sweep's order, with the interval of its mean as a line. Escaped."""
    measured = [row for row in report.rows if row.mean_ns is not None]
    rows = measured[:MAX_JOBS]
    longest_ns = max((row.mean_ns or 0.0 for row in rows), default=0.0)
    if longest_ns <= 0:
        return ""
    reach_ns = max(min(row.mean_high_ns or 0.0, longest_ns * SPACE) for row in rows)
    scale = (WIDTH - LEFT) / max(longest_ns, reach_ns)
    shapes = [shape for place, row in enumerate(rows) for shape in _draw_job(row, place * HEIGHT, scale)]
    left_out = len(measured) - len(rows)
    more = f" {left_out:,} more jobs are in the table." if left_out else ""
    return (
        f"{frame(shapes, len(rows) * HEIGHT, 'Step time by job')}"
        f"<p>Mean step of each job; the line is its 95 % interval, about the steps of that run.{more}</p>"
    )


def _draw_job(row: SweepRow, top: int, scale: float) -> list[str]:
    assert row.mean_ns is not None
    settings = " ".join(f"{key}={value}" for key, value in row.settings.items())
    interval, bar = "", top + TEXT
    shapes = [
        f'<text x="{LEFT - 8}" y="{top + 14}" class="end">job {row.number}</text>',
        f'<rect class="job" x="{LEFT}" y="{bar}" width="{row.mean_ns * scale:.1f}" height="{JOB_BAR}"/>',
    ]
    if row.mean_low_ns is not None and row.mean_high_ns is not None:
        interval = f" ({format_time(row.mean_low_ns)} to {format_time(row.mean_high_ns)})"
        begin, end = LEFT + row.mean_low_ns * scale, min(LEFT + row.mean_high_ns * scale, float(WIDTH))
        shapes.append(f'<path class="interval" d="M{begin:.1f} {bar + JOB_BAR / 2}H{end:.1f}'
                      f'M{begin:.1f} {bar}v{JOB_BAR}M{end:.1f} {bar}v{JOB_BAR}"/>')  # fmt: skip
    label = f"{settings}: {format_time(row.mean_ns)}{interval}" if settings else f"{format_time(row.mean_ns)}{interval}"
    shapes.append(f'<text x="{LEFT}" y="{top + 14}">{show(label)}</text>')
    return shapes
