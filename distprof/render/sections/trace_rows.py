"""What traces show, as sections: findings, device time by rank, kernels, ranges, and the check of the kernel window."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from distprof.facts.run import PHASES
from distprof.render.finding_texts import describe_finding, describe_lack
from distprof.render.finding_texts.parts import name_kernel
from distprof.render.sections.section_types import EXTREMES, MAX_RANK_ROWS, Section, ShownFinding, make_columns
from distprof.render.units import (
    NOT_MEASURED,
    clean_text,
    format_count,
    format_milliseconds,
    format_ratio,
    format_time,
)
from distprof.report.finding_report import Finding
from distprof.report.report import Report
from distprof.report.trace_report import DeviceReport, RangeReport, TraceReport, WindowCheck

MAX_LINES = 4
"""Lines of evidence that a terminal shows."""
_SHOWN_WHOLE = ("launch_gaps",)
"""Rules whose evidence it shows whole: the longest gaps."""
TEXT_LIMIT = 600
"""Characters of a sentence of a finding."""
NAME_LIMIT = 160
"""Characters of a kernel or a range; narrow displays shorten further."""
MAX_KERNELS = 15
MAX_RANGES = 15
WARMUP_ERROR_RATIO, WARMUP_FACTOR = 0.05, 1.2
"""Of the step, and of the range's share: by so much must counting warm-up shift a share to be worth a sentence."""

DEVICE_PARTS: tuple[tuple[str, str, str], ...] = (
    ("compute", "compute_ns", "compute: kernels other than collectives"),
    ("copies", "memory_ns", "copies: copies and memsets while nothing computes"),
    ("exposed", "idle_communication_ns", "exposed: only collectives run"),
    ("host", "idle_host_ns", "host: idle, the next work is not launched yet"),
    ("launch", "idle_launch_ns", "launch: idle, although the next work is launched"),
    ("unknown", "idle_unknown_ns", "unknown: idle, its launch is not in the trace"),
)
"""Heads, fields and meanings of the parts of a device's time, which add up to the span."""
DEVICE_HEADS = ("rank", *(head for head, _, _ in DEVICE_PARTS), "span", "overlap", "queue", "empty")
MEANINGS = {
    **{head: meaning for head, _, meaning in DEVICE_PARTS},
    "overlap": "overlap: share of communication that runs beside compute",
    "queue": "queue: launched but not finished, on average",
    "empty": "empty: share of the time with an empty queue",
}
CATEGORY_HEADS = ("category", "launches", "time", "share")
KERNEL_HEADS = ("kernel", "category", "precision", "launches", "time", "share", "min", "max", "most on")
KERNEL_TEXTS = ("kernel", "category", "precision")
RANGE_HEADS = ("range", "count", "host, each", "GPU, each", "GPU/host", "of the step", "of GPU time")
CHECK_HEADS = ("phase", "clock", "live", "trace", "difference", "rank")
RANGE_WORDS = (
    "host: how long a range was open on the host; GPU: how long the device worked on what was launched inside it. "
    "Neither is a share of the other, and both exclude warm-up."
)
CPU_WORDS = "How long a range was open on the host, which is where this job ran."
HOST_ONLY_WORDS = "Host times only: the work of the device is not known."
SHARE_WORDS = "the share is the part of the step concerned, not a promised gain"


def is_traced(report: Report) -> bool:
    """Whether the report is on traces alone: lines that only a live run can fill are then left out."""
    return report.activity is not None and bool(report.ranks) and all(rank.source == "trace" for rank in report.ranks)


def show_finding(finding: Finding) -> ShownFinding:
    """A finding as it is shown."""
    text = describe_finding(finding)
    return ShownFinding(
        title=text.title,
        share=format_ratio(finding.share_ratio) if finding.share_ratio > 0 else "",
        figures=tuple(f"{line.what}: {line.value} ({line.where})" for line in text.evidence),
        lines=len(text.evidence) if finding.rule in _SHOWN_WHOLE else MAX_LINES,
        consequence=text.consequence,
        remedy=text.remedy,
    )


def describe_not_checked(activity: TraceReport) -> str:
    """The rules that lacked their data, grouped by reason; empty if none did."""
    reasons: dict[str, list[str]] = {}
    for item in activity.not_checked:
        reasons.setdefault(describe_lack(item), []).append(item.rule)
    return "; ".join(f"{', '.join(rules)} ({why})" for why, rules in reasons.items())


def title_devices(activity: TraceReport) -> str:
    """The title of the table of device times."""
    stepped = {device.steps > 0 for device in activity.devices}
    what = "mean per step" if True in stepped else "over the whole trace"
    if len(stepped) > 1:
        what = "mean per step, or over the whole trace where no steps are marked"
    return f"device time by rank: {what}, ms"


def choose_devices(activity: TraceReport) -> list[DeviceReport]:
    """All ranks or, when there are many, those with the busiest and the least busy devices, busiest first."""
    devices = list(activity.devices)
    if len(devices) <= MAX_RANK_ROWS:
        return devices
    order = sorted(devices, key=lambda device: (-_compute_own_ratio(device), device.rank))
    return [*order[:EXTREMES], *order[-EXTREMES:]]


def _compute_own_ratio(device: DeviceReport) -> float:
    """Share of the span that is not exposed communication: largest on the rank that arrives last."""
    return 1 - device.idle_communication_ns / device.span_ns if device.span_ns else 0.0


def list_devices(devices: Sequence[DeviceReport]) -> list[list[str]]:
    """A row per rank: the parts, their sum, overlap and queue."""
    return [
        [
            str(device.rank), *(format_milliseconds(getattr(device, field)) for _, field, _ in DEVICE_PARTS),
            format_milliseconds(device.span_ns), format_ratio(device.overlap_ratio), _show_queue(device),
            format_ratio(device.queue_empty_ratio),
        ]
        for device in devices
    ]  # fmt: skip


def _show_queue(device: DeviceReport) -> str:
    return NOT_MEASURED if device.queue_mean is None else f"{device.queue_mean:,.1f}"


def count_rank_steps(activity: TraceReport) -> int:
    """The number by which sums over ranks are divided: all their steps, or 1 if a rank has no steps."""
    steps = [device.steps for device in activity.devices]
    return sum(steps) if steps and all(steps) else 1


def format_per(activity: TraceReport) -> str:
    """What the sums over all ranks are divided by, in words."""
    if count_rank_steps(activity) == 1 and not (len(activity.devices) == 1 and activity.devices[0].steps == 1):
        return "all ranks, the whole trace" if len(activity.devices) > 1 else "the whole trace"
    return "per step and rank" if len(activity.devices) > 1 else "per step"


def list_categories(activity: TraceReport) -> list[list[str]]:
    """A row per category of kernels."""
    per = count_rank_steps(activity)
    return [
        [
            clean_text(item.category), format_count(round(item.count / per, 1)), format_time(item.total_ns / per),
            format_ratio(item.share_ratio),
        ]
        for item in activity.categories
    ]  # fmt: skip


def list_kernels(activity: TraceReport) -> list[list[str]]:
    """A row per kernel, those with the most time."""
    per, several = count_rank_steps(activity), len(activity.devices) > 1
    return [
        [
            name_kernel(item.name, NAME_LIMIT), clean_text(item.category, 16), clean_text(item.precision or "", 8),
            format_count(round(item.count / per, 1)), format_time(item.total_ns / per), format_ratio(item.share_ratio),
            format_time(item.min_ns), format_time(item.max_ns), f"rank {item.max_rank}" if several else "",
        ]
        for item in activity.kernels[:MAX_KERNELS]
    ]  # fmt: skip


def list_ranges(activity: TraceReport) -> list[list[str]]:
    """A row per named range, those with the longest host time."""
    return [
        [
            name_range(item, NAME_LIMIT), format_count(item.count), format_time(_per_instance(item.host_ns, item)),
            format_time(_per_instance(item.gpu_ns, item)), _show_factor(item.gpu_over_host_ratio),
            format_ratio(item.host_share_ratio), format_ratio(item.gpu_share_ratio),
        ]
        for item in choose_ranges(activity)
    ]  # fmt: skip


def choose_ranges(activity: TraceReport) -> list[RangeReport]:
    """The measured ranges with the longest host time."""
    return [item for item in activity.ranges if item.count][:MAX_RANGES]


def name_range(item: RangeReport, limit: int) -> str:
    """Domain and name; the default domain is left out."""
    return clean_text(f"{item.domain}:{item.name}" if item.domain else item.name, limit) or "(no name)"


def _per_instance(total_ns: float | None, item: RangeReport) -> float | None:
    return None if total_ns is None or not item.count else total_ns / item.count


def _show_factor(ratio: float | None) -> str:
    """How many times as long the device worked. Not a share, so not in percent."""
    return NOT_MEASURED if ratio is None else f"{ratio:.2f} x"


def describe_ranges(report: Report) -> list[str]:
    """What the table of ranges shows, and what it leaves out."""
    activity = report.activity
    if activity is None or not choose_ranges(activity):
        return []
    lines = [RANGE_WORDS]
    if all(item.gpu_ns is None for item in activity.ranges):
        on_cpu = report.device_type == "cpu" and not is_traced(report)
        lines = [CPU_WORDS if on_cpu else HOST_ONLY_WORDS]
    if warmed := _describe_warmup(activity.ranges):
        lines.append(warmed)
    if outside := [item for item in activity.ranges if item.outside_count]:
        names = ", ".join(name_range(item, 40) for item in outside[:3]) + (", ..." if len(outside) > 3 else "")
        count = sum(item.outside_count for item in outside)
        lines.append(f"{count:,} ranges began between two steps or after the last one and are left out: {names}")
    if opened := [item for item in activity.ranges if item.open_count]:
        names = ", ".join(name_range(item, 40) for item in opened[:3]) + (", ..." if len(opened) > 3 else "")
        lines.append(f"{sum(item.open_count for item in opened):,} ranges were never closed and are left out: {names}")
    return lines


def _describe_warmup(ranges: Sequence[RangeReport]) -> str | None:
    """The range whose share of the step would be most wrong if warm-up counted. None: none by a fifth of its share."""
    found = [
        (abs(counted - own), item, own, counted)
        for item in ranges
        if (own := item.host_share_ratio) and (counted := item.host_share_with_warmup_ratio) is not None
    ]
    error, item, own, counted = max(found, key=lambda each: each[0], default=(0.0, None, 1.0, 1.0))
    if item is None or error < WARMUP_ERROR_RATIO or 1 / WARMUP_FACTOR < counted / own < WARMUP_FACTOR:
        return None
    return (
        f"With warm-up counted, as in nvtx_sum, {name_range(item, 40)} would come out at {format_ratio(counted)} of "
        f"the step instead of {format_ratio(own)}."
    )


def list_checks(activity: TraceReport) -> list[list[str]]:
    """A row per phase: the rank on which the live time and the time in the trace differ most."""
    order = {name: row for row, name in enumerate(("step", *map(str, PHASES)))}
    worst: dict[tuple[str, str], WindowCheck] = {}
    for check in activity.window_checks:
        key = check.phase, check.clock
        if key not in worst or _absolute_difference(check) > _absolute_difference(worst[key]):
            worst[key] = check
    return [
        [
            clean_text(check.phase), clean_text(check.clock), format_time(check.live_ns), format_time(check.trace_ns),
            _show_difference(check.difference_ratio), str(check.rank),
        ]
        for check in sorted(worst.values(), key=lambda check: (order.get(check.phase, len(order)), check.clock))
    ]  # fmt: skip


def _absolute_difference(check: WindowCheck) -> float:
    return abs(check.difference_ratio) if check.difference_ratio is not None else 0.0


def _show_difference(ratio: float | None) -> str:
    text = format_ratio(ratio)
    return f"+{text}" if ratio is not None and ratio > 0 and text[0].isdigit() else text


def list_findings(report: Report) -> Section:
    """What is worth changing, in order, and what could not be checked; no content without traces."""
    if report.activity is None:
        return Section(key="findings", title="findings")
    findings = tuple(show_finding(finding) for finding in report.activity.findings)
    lacking = describe_not_checked(report.activity)
    notes = (*([] if findings else ["none"]), *([f"not checked: {lacking}"] if lacking else []))
    about = SHARE_WORDS if findings else ""
    return Section(key="findings", title="findings", about=about, findings=findings, notes=notes)


def list_trace_sections(report: Report) -> list[Section]:
    """The tables; none without traces."""
    activity = report.activity
    if activity is None:
        return []
    per = format_per(activity)
    checks = make_columns(CHECK_HEADS, list_checks(activity), ("clock",))
    categories = make_columns(CATEGORY_HEADS, list_categories(activity))
    kernels = make_columns(KERNEL_HEADS, list_kernels(activity), KERNEL_TEXTS, non_empty_only=True)
    ranges = make_columns(RANGE_HEADS, list_ranges(activity), ("range",))
    title = "kernel window against live phases: mean per step of the rank where they differ most"
    return [
        Section(key="checks", title=title, columns=checks),
        _show_devices(activity),
        Section(key="categories", title=f"kernels by category: {per}", columns=categories),
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
    middle = f"{left_out:,} ranks between the busiest and the least busy are left out; report.json has them"
    return Section(
        key="device_time", title=title_devices(activity),
        columns=tuple(replace(column, meaning=MEANINGS.get(column.head, "")) for column in columns),
        notes=(*_list_unobserved(devices), *((middle,) if left_out else ())),
    )  # fmt: skip


def _list_unobserved(devices: Sequence[DeviceReport]) -> list[str]:
    parts = [f"{format_time(item.unobserved_ns)} of rank {item.rank}" for item in devices if item.unobserved_ns]
    if not parts:
        return []
    why = "before its first kernels a device may have run what was launched before the trace began"
    return [f"in no column: {', '.join(parts)}; {why}"]
