"""A drawing of a sweep: the step time of each job with its interval."""

from __future__ import annotations

from distprof.render.html.svg import GAP, LEFT, WIDTH, frame
from distprof.render.markup import show
from distprof.render.units import format_time
from distprof.report.sweep_report import SweepReport, SweepRow

MAX_JOBS = 200
TEXT, BAR = 18, 10
"""Heights of a job's label, and of its bar below it."""
HEIGHT = TEXT + BAR + 2 * GAP
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
        f'<rect class="job" x="{LEFT}" y="{bar}" width="{row.mean_ns * scale:.1f}" height="{BAR}"/>',
    ]
    if row.mean_low_ns is not None and row.mean_high_ns is not None:
        interval = f" ({format_time(row.mean_low_ns)} to {format_time(row.mean_high_ns)})"
        begin, end = LEFT + row.mean_low_ns * scale, min(LEFT + row.mean_high_ns * scale, float(WIDTH))
        shapes.append(f'<path class="interval" d="M{begin:.1f} {bar + BAR / 2}H{end:.1f}M{begin:.1f} {bar}v{BAR}'
                      f'M{end:.1f} {bar}v{BAR}"/>')  # fmt: skip
    label = f"{settings}: {format_time(row.mean_ns)}{interval}" if settings else f"{format_time(row.mean_ns)}{interval}"
    shapes.append(f'<text x="{LEFT}" y="{top + 14}">{show(label)}</text>')
    return shapes
