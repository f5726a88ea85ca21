"""The texts of the rules about named ranges: odd siblings, host times, warm-up."""

from __future__ import annotations

from distprof.render.finding_texts.not_checked import LACKS
from distprof.render.finding_texts.parts import FigureText, FindingText, make_line, name_some, say_name
from distprof.render.units import format_count, format_factor, format_ratio, format_time
from distprof.report.finding_report import Figure, Finding, Lack, Trait


def word_unlike_siblings(finding: Finding) -> FindingText:
    """One of several similar parts differs."""
    first = finding.figures[0]
    excess = first.numbers["own_factor"] - 1
    siblings, several = format_count(first.numbers["siblings_count"]), finding.ranks_checked > 1
    return FindingText(
        title=f"{say_name(first.name)} takes {format_ratio(abs(excess))} {'more' if excess > 0 else 'less'} "
        f"{first.sign} time than the median of its {siblings} siblings"
        + (f" on {name_some(finding.ranks)}" if several else ""),
        evidence=tuple(map(_show_odd, finding.figures)),
        consequence="Parts that should be alike are not: this one does different work, or something holds it up."
        if first.sign == "GPU"
        else "Host times: the part may be launched more slowly, or the host may have waited there for the device; what "
        "the device did for it is not known.",
        remedy="Compare its kernels and shapes with a sibling's: another dtype or layout, a recompilation, a hook, "
        "checkpointing, or a synchronising call in this part only.",
    )


def _show_odd(figure: Figure) -> FigureText:
    numbers = figure.numbers
    return FigureText(
        what=say_name(figure.name),
        value=f"{format_time(numbers['own_ns'])} of {figure.sign} time per instance, median of "
        f"{format_count(numbers['siblings_count'])}: {format_time(numbers['median_ns'])} "
        f"({format_factor(numbers['own_factor'])})",
        where=f"{name_some(figure.ranks)}, among {say_name(figure.family)}",
    )


def word_host_is_not_gpu(finding: Finding) -> FindingText:
    """Host times mislead about the device's work."""
    if Trait.HOST_ONLY in finding.traits:
        return _word_host_only(finding)
    shown = [(figure, *_show_shares(figure)) for figure in finding.figures]
    (long, long_host, long_gpu), (short, short_host, short_gpu) = shown[:2]
    return FindingText(
        title=f"Host times and GPU times rank ranges differently: {say_name(long.name)} is {long_host} of the step on "
        f"the host and {long_gpu} of GPU work (without collectives), {say_name(short.name)} {short_host} and "
        f"{short_gpu}",
        evidence=tuple(
            make_line(figure, f"host {host} of the step, GPU {gpu} of its work") for figure, host, gpu in shown
        ),
        consequence="A range's host time is how long the host took to launch its work, or waited in it for room in the "
        "queue; a table of host times (nvtx_sum) ranks the launching, not the device's work.",
        remedy="Read the GPU times beside the host times under 'ranges', and decide what to optimise by them.",
    )


def _show_shares(figure: Figure) -> tuple[str, str]:
    return format_ratio(figure.numbers["host_ratio"]), format_ratio(figure.numbers["gpu_ratio"])


def _word_host_only(finding: Finding) -> FindingText:
    why = LACKS[Lack.DEVICE_NOT_UNDERSTOOD if Trait.NOT_UNDERSTOOD in finding.traits else Lack.NO_DEVICE]
    called = Trait.CALLS_TRACED in finding.traits
    ranges = format_count(finding.facts["ranges_count"])
    return FindingText(
        title=f"The times and shares of all {ranges} ranges are host times only: {why}",
        evidence=tuple(make_line(figure, _show_host(figure)) for figure in finding.figures),
        consequence="For a job on a GPU they are the time of launching and waiting, and say nothing about the device's "
        "work; for a job on the CPU they are all there is."
        + (" Calls of the device's API were traced, so a GPU was in use." if called else ""),
        remedy="If the job uses a GPU, capture its activity: nsys profile -t cuda,nvtx, or ProfilerActivity.CUDA.",
    )


def _show_host(figure: Figure) -> str:
    share = figure.numbers.get("host_ratio")
    of_steps = "" if share is None else f", {format_ratio(share)} of the steps"
    return f"{format_time(figure.numbers['host_total_ns'])} on the host{of_steps}; GPU not known"


def word_warmup_in_statistics(finding: Finding) -> FindingText:
    """Counting warm-up changes what a table of ranges says."""
    first, facts = finding.figures[0], finding.facts
    return FindingText(
        title=f"Counting warm-up, {_say_error(first, share_off=Trait.SHARE_OFF in finding.traits)}",
        evidence=tuple(make_line(figure, _show_instances(figure)) for figure in finding.figures),
        consequence=f"A table of all instances (nvtx_sum) misleads about {format_count(facts['misleading_count'])} of "
        f"{format_count(facts['ranges_count'])} ranges: first calls allocate memory, choose algorithms and load "
        "kernels. The tables here leave warm-up out.",
        remedy="Compare measured instances only, or capture after the warm-up (launch/nsys.sh does).",
    )


def _say_error(figure: Figure, *, share_off: bool) -> str:
    numbers, name = figure.numbers, say_name(figure.name)
    if not share_off:
        return f"the mean of {name} comes out at {format_factor(numbers['mean_factor'])} its value"
    whole, measured = format_ratio(numbers["all_ratio"]), format_ratio(numbers["measured_ratio"])
    return f"{name} comes out at {whole} of the step instead of {measured} ({format_factor(numbers['share_factor'])})"


def _show_instances(figure: Figure) -> str:
    numbers = figure.numbers
    return (
        f"all {format_count(numbers['all_count'])} instances {format_time(numbers['all_total_ns'])}, "
        f"{format_ratio(numbers['all_ratio'])} of a step; the {format_count(numbers['measured_count'])} measured "
        f"{format_time(numbers['measured_total_ns'])}, {format_ratio(numbers['measured_ratio'])}; "
        f"mean {format_factor(numbers['mean_factor'])} that of the measured"
    )
