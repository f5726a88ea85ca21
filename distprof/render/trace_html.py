"""What traces say, on the page: the findings, a bar of device time per rank, kernels and ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distprof.render.markup import make_section, show, show_rows, tabulate
from distprof.render.svg import BAR, GAP, LEFT, WIDTH, frame
from distprof.render.trace_rows import (
    CATEGORY_HEADS,
    CHECK_HEADS,
    DEVICE_HEADS,
    DEVICE_PARTS,
    KERNEL_HEADS,
    RANGE_HEADS,
    ShownFinding,
    choose_devices,
    describe_not_checked,
    describe_ranges,
    list_categories,
    list_checks,
    list_devices,
    list_kernels,
    list_ranges,
    say_per,
    show_finding,
    title_devices,
)
from distprof.render.units import format_time
from distprof.report.report import Report
from distprof.report.trace_report import DeviceReport, TraceReport

NAME_LIMIT = 160
"""Characters of a kernel or a range in a table."""


def show_findings(report: Report) -> str:
    """What is worth changing, in order; empty without traces."""
    activity = report.activity
    if activity is None:
        return ""
    found = "".join(_show_finding(show_finding(finding)) for finding in activity.findings)
    listed = f'<ol class="findings">{found}</ol>' if found else "<p>None.</p>"
    about = "<p>The share is what a finding touches of the step, and no promise of a gain.</p>" if found else ""
    lacking = describe_not_checked(activity)
    return about + listed + (f"<p>Not checked: {show(lacking, 4_000)}.</p>" if lacking else "")


def _show_finding(shown: ShownFinding) -> str:
    share = f"<b>{show(shown.share)}</b>" if shown.share else ""
    figures = "".join(f"<li>{show(figure)}</li>" for figure in shown.figures)
    return (
        f"<li><h3>{show(shown.title)}{share}</h3><ul>{figures}</ul><p>{show(shown.consequence)}</p>"
        f"<p><em>Remedy</em> {show(shown.remedy)}</p></li>"
    )


def list_activity(report: Report) -> Iterable[str]:
    """The sections of what traces say; none without traces."""
    activity = report.activity
    if activity is None:
        return
    checks = tabulate(CHECK_HEADS, show_rows(list_checks(activity)))
    yield make_section("Kernel window against live phases: the rank where they differ most, mean per step", checks)
    devices = choose_devices(activity)
    title = show(title_devices(activity).capitalize())
    yield make_section(title, draw_devices(devices) + _tabulate_devices(activity, devices))
    categories = tabulate(CATEGORY_HEADS, show_rows(list_categories(activity)))
    yield make_section(f"Kernels by category: {say_per(activity)}", categories)
    width = len(KERNEL_HEADS) if len(devices) > 1 else len(KERNEL_HEADS) - 1  # the last one names a rank
    rows = [row[:width] for row in show_rows(list_kernels(activity, NAME_LIMIT))]
    kernels = tabulate(KERNEL_HEADS[:width], rows, "wide long")
    yield make_section(f"Top kernels: {say_per(activity)}; min and max of one launch", kernels)
    ranges = tabulate(RANGE_HEADS, show_rows(list_ranges(activity, NAME_LIMIT)), "wide long")
    words = "".join(f"<p>{show(line)}</p>" for line in describe_ranges(report))
    yield make_section("Ranges: host time and GPU time side by side", words + ranges if ranges else "")


def _tabulate_devices(activity: TraceReport, devices: Sequence[DeviceReport]) -> str:
    left_out = len(activity.devices) - len(devices)
    note = f"<p>{left_out:,} ranks between those with the most and the least of their own to do are left out; "
    return tabulate(DEVICE_HEADS, show_rows(list_devices(devices))) + (
        note + "report.json has them.</p>" if left_out else ""
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
