"""What traces show, as sections: findings, device time by rank, kernels, ranges, and the check of the kernel window."""

from __future__ import annotations

from dataclasses import replace

from distprof.render.section_types import Section, make_columns
from distprof.render.trace_rows import (
    CATEGORY_HEADS,
    CHECK_HEADS,
    DEVICE_HEADS,
    DEVICE_PARTS,
    KERNEL_HEADS,
    RANGE_HEADS,
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
from distprof.report.report import Report
from distprof.report.trace_report import TraceReport

NAME_LIMIT = 160
"""Characters of a kernel or a range in a table; narrow displays shorten further."""
MEANINGS = {head: meaning for head, _, meaning in DEVICE_PARTS} | {
    "overlap": "overlap: of communication, beside compute",
    "queue": "queue: launched and not finished, on average",
    "empty": "empty: share of the time without any",
}
SHARE_WORDS = "the share is what a finding touches of the step, no promise"


def list_findings(report: Report) -> Section:
    """What is worth changing, in order, and what could not be checked; no content without traces."""
    section = Section(key="findings", title="findings")
    if report.activity is None:
        return section
    findings = tuple(show_finding(finding) for finding in report.activity.findings)
    lacking = describe_not_checked(report.activity)
    notes = (*([] if findings else ["none"]), *([f"not checked: {lacking}"] if lacking else []))
    return replace(section, about=SHARE_WORDS if findings else "", findings=findings, notes=notes)


def list_trace_sections(report: Report) -> list[Section]:
    """The tables; none without traces."""
    activity = report.activity
    if activity is None:
        return []
    per = say_per(activity)
    kernels = make_columns(KERNEL_HEADS, list_kernels(activity, NAME_LIMIT), ("kernel", "category", "precision"))
    ranges = make_columns(RANGE_HEADS, list_ranges(activity, NAME_LIMIT), ("range",))
    checks = make_columns(CHECK_HEADS, list_checks(activity), ("clock",))
    return [
        Section(
            key="checks", columns=checks,
            title="kernel window against live phases: mean per step of the rank where they differ most",
        ),
        _show_devices(activity),
        Section(
            key="categories", title=f"kernels by category: {per}",
            columns=make_columns(CATEGORY_HEADS, list_categories(activity)),
        ),
        Section(key="kernels", title=f"top kernels: {per}; min and max of one launch", columns=kernels),
        Section(
            key="ranges", title="ranges: host time and GPU time side by side", columns=ranges,
            notes=tuple(describe_ranges(report)),
        ),
    ]  # fmt: skip


def _show_devices(activity: TraceReport) -> Section:
    devices = choose_devices(activity)
    columns = make_columns(DEVICE_HEADS, list_devices(devices))
    left_out = len(activity.devices) - len(devices)
    middle = f"{left_out:,} ranks between those with the most and the least of their own to do are left out"
    return Section(
        key="device_time", title=title_devices(activity),
        columns=tuple(replace(column, meaning=MEANINGS.get(column.head, "")) for column in columns),
        notes=(f"{middle}; report.json has them",) if left_out else (),
    )  # fmt: skip
