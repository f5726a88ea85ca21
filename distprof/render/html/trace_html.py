"""What traces show, on the page: the findings, and a bar of device time per rank."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.render.html.svg import BAR, GAP, LEFT, WIDTH, frame
from distprof.render.markup import list_texts, show
from distprof.render.sections.section_types import ShownFinding
from distprof.render.sections.trace_rows import DEVICE_PARTS
from distprof.render.units import format_time
from distprof.report.trace_report import DeviceReport


def show_findings(findings: Sequence[ShownFinding]) -> str:
    """What is worth changing, in order."""
    found = "".join(_show_finding(finding) for finding in findings)
    return f'<ol class="findings">{found}</ol>' if found else ""


def _show_finding(shown: ShownFinding) -> str:
    share = f"<b>{show(shown.share)}</b>" if shown.share else ""
    return (
        f"<li><h3>{show(shown.title)}{share}</h3>{list_texts(shown.figures)}<p>{show(shown.consequence)}</p>"
        f"<p><em>Remedy</em> {show(shown.remedy)}</p></li>"
    )


def draw_devices(devices: Sequence[DeviceReport]) -> str:
    """A bar per rank, what its device did side by side."""
    longest_ns = max((device.span_ns for device in devices), default=0.0)
    if longest_ns <= 0:
        return ""
    shapes = []
    for row, device in enumerate(devices):
        top = row * (BAR + GAP)
        shapes.append(f'<text x="{LEFT - 8}" y="{top + 14}" class="end">rank {device.rank}</text>')
        x = float(LEFT)
        for head, field, _ in DEVICE_PARTS:
            time_ns: float = getattr(device, field)
            width = time_ns / longest_ns * (WIDTH - LEFT)
            if width > 0.05:
                shapes.append(
                    f'<rect class="d-{head}" x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR}">'
                    f"<title>rank {device.rank}: {head} {format_time(time_ns)}</title></rect>"
                )
            x += width
    legend = "".join(f'<li><i class="d-{head}"></i>{meaning}</li>' for head, _, meaning in DEVICE_PARTS)
    bars = frame(shapes, len(devices) * (BAR + GAP), "Device time by rank")
    return f'<ul class="legend">{legend}</ul>{bars}<p>The longest bar is {format_time(longest_ns)}.</p>'
