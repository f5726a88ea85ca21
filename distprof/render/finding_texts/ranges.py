"""The texts of the rule about named ranges."""

from __future__ import annotations

from distprof.analyze.traces.findings.ranges import CALLS_TRACED, HOST_ONLY, NOT_UNDERSTOOD
from distprof.render.finding_texts.parts import FindingText, format_name, make_line
from distprof.render.units import format_count, format_ratio, format_time
from distprof.report.finding_report import EvidenceItem, Finding, MissingData


def describe_host_is_not_gpu(finding: Finding) -> FindingText:
    """Host times mislead about the device's work."""
    if HOST_ONLY in finding.traits:
        return _describe_host_only(finding)
    shown = [(figure, *_show_shares(figure)) for figure in finding.figures]
    (long, long_host, long_gpu), (short, short_host, short_gpu) = shown[:2]
    return FindingText(
        title=f"Host times and GPU times rank ranges differently: {format_name(long.name)} is {long_host} of the step "
        f"on the host and {long_gpu} of GPU work (without collectives), {format_name(short.name)} {short_host} and "
        f"{short_gpu}",
        evidence=tuple(
            make_line(figure, f"host {host} of the step, GPU {gpu} of its work") for figure, host, gpu in shown
        ),
        consequence="A range's host time is how long the host took to launch its work, or waited in it for room in the "
        "queue; a table of host times (nvtx_sum) ranks the launching, not the device's work.",
        remedy="Read the GPU times beside the host times under 'ranges', and let them decide what to optimise.",
    )


def _show_shares(figure: EvidenceItem) -> tuple[str, str]:
    return format_ratio(figure.numbers["host_ratio"]), format_ratio(figure.numbers["gpu_ratio"])


def _describe_host_only(finding: Finding) -> FindingText:
    why = (MissingData.DEVICE_NOT_UNDERSTOOD if NOT_UNDERSTOOD in finding.traits else MissingData.NO_DEVICE).why
    called = CALLS_TRACED in finding.traits
    ranges = format_count(finding.facts["ranges_count"])
    return FindingText(
        title=f"The times and shares of all {ranges} ranges are host times only: {why}",
        evidence=tuple(make_line(figure, _show_host(figure)) for figure in finding.figures),
        consequence="For a job on a GPU they are the time of launching and waiting, and say nothing about the device's "
        "work; for a job on the CPU they are all there is."
        + (" Calls of the device's API were traced, so a GPU was in use." if called else ""),
        remedy="If the job uses a GPU, capture its activity: nsys profile -t cuda,nvtx, or ProfilerActivity.CUDA.",
    )


def _show_host(figure: EvidenceItem) -> str:
    share = figure.numbers.get("host_ratio")
    of_steps = "" if share is None else f", {format_ratio(share)} of the steps"
    return f"{format_time(figure.numbers['host_total_ns'])} on the host{of_steps}; GPU not known"


WORDS = {"host_is_not_gpu": describe_host_is_not_gpu}
