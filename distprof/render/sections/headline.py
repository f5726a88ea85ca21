"""The job in a few lines: what it is, how fast it runs, and which rank is busiest."""

from __future__ import annotations

from distprof.facts.run import name_ranks
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.section_types import Fact
from distprof.render.sections.trace_rows import is_traced
from distprof.render.units import (
    NOT_MEASURED,
    clean_text,
    format_count,
    format_excess,
    format_flops,
    format_flops_per_s,
    format_number,
    format_ratio,
    format_time,
)
from distprof.report.report import WAITS_BETWEEN, Headline, Report
from distprof.report.wait_report import Spread

TEXT_LIMIT = 300
MAX_DEVICE_NAMES = 3
NOTABLE_BETWEEN_RATIO = 0.01
"""Share of the step time that lies between steps, from which on the headline says so."""
NOTABLE_RECORDED_RATIO = 0.02
"""By so much of the step time a recorded step must differ for the headline to say so."""
MOST_RATIO = 0.5
"""Share of what the busiest rank does more that is most of it."""


def list_job_facts(report: Report) -> list[str]:
    """Strategy, number of ranks, backend, devices and precision, as far as they are known."""
    ranks = f"{report.world_size:,} rank" + ("s" if report.world_size != 1 else "")
    names = dict.fromkeys(clean_text(rank.device_name) for rank in report.ranks if rank.device_name)
    device = clean_text(report.device_type) + (f" ({', '.join(list(names)[:MAX_DEVICE_NAMES])})" if names else "")
    facts = [clean_text(report.strategy), ranks, clean_text(report.backend), device, clean_text(report.precision)]
    return [fact for fact in facts if fact != NOT_MEASURED]


def list_headline(report: Report) -> tuple[Fact, ...]:
    """Step time, throughput, utilisation, exposed communication, the busiest rank and the model."""
    head = report.headline
    throughput = NOT_MEASURED if head.tokens_per_s is None else f"{format_number(head.tokens_per_s)} tokens/s"
    facts = [
        _describe_step(head),
        Fact(label="throughput", number=throughput),
        _describe_flops(head.achieved_flops_per_s),
        _describe_utilisation(report),
        _describe_exposed(report),
        Fact(label="busiest rank", text=describe_busiest(report)),
    ]
    if report.flops is not None:
        facts.append(Fact(label="model", text=_describe_model(report)))
    return tuple(fact for fact in facts if _is_shown(fact.label, report))


def _is_shown(label: str, report: Report) -> bool:
    """Leaves out what a report on traces alone cannot know: no FLOP/s, and no steps where none are marked."""
    head = report.headline
    measured = {
        "step time": head.step_mean_ns is not None, "throughput": head.tokens_per_s is not None,
        "FLOP/s": head.achieved_flops_per_s is not None, "MFU, HFU": head.mfu_ratio is not None,
        "exposed comm.": (head.exposed_ratio is not None or bool(report.phases)) and report.world_size > 1,
        "busiest rank": head.busiest is not None,
    }  # fmt: skip
    return not is_traced(report) or measured.get(label, True)


def _describe_step(head: Headline) -> Fact:
    """From step to step, and how much of it lies between steps, if that is more than a trifle."""
    text = ": no measured step"
    if head.step_mean_ns is not None:
        text = f" mean, {format_time(head.step_median_ns)} median, {format_time(head.step_p95_ns)} p95"
        notable = (head.between_ratio or 0.0) >= NOTABLE_BETWEEN_RATIO
        within = f", {format_ratio(head.between_ratio)} of it between steps" if notable else ""
        text += f" (elapsed time over steps, {head.clock} clock{within}){describe_recorded(head)}"
    return Fact(label="step time", number=format_time(head.step_mean_ns), text=text)


def describe_recorded(head: Headline) -> str:
    """How long a recorded step takes, whose parts are shown, if that is not what the job's steps take on average."""
    if head.step_mean_ns is None or head.recorded_mean_ns is None:
        return ""
    differ = abs(head.recorded_mean_ns - head.step_mean_ns) >= NOTABLE_RECORDED_RATIO * head.step_mean_ns
    return f"; {format_time(head.recorded_mean_ns)} when recorded" if differ else ""


def _describe_flops(spread: Spread | None) -> Fact:
    if spread is None:
        return Fact(label="FLOP/s", number=NOT_MEASURED)
    low, middle, high = (format_flops_per_s(value) for value in (spread.min, spread.median, spread.max))
    return Fact(label="FLOP/s", number=middle, text=" per device" + (f" ({low} to {high})" if low != high else ""))


def _describe_utilisation(report: Report) -> Fact:
    head, text = report.headline, ""
    notes = [(rank.rank, rank.mfu_note) for rank in report.ranks if rank.mfu_note]
    if notes and (head.mfu_ratio is None or head.hfu_ratio is None):
        first = notes[0][1]
        concerned = [rank for rank, note in notes if note == first]
        who = "" if len(concerned) == report.world_size else f"{clean_text(name_ranks(concerned))}: "
        text = f": {who}{clean_text(first, TEXT_LIMIT)}"
    number = f"{format_ratio(head.mfu_ratio)}, {format_ratio(head.hfu_ratio)}"
    return Fact(label="MFU, HFU", number=number, text=text)


def _describe_exposed(report: Report) -> Fact:
    """Of the step, and beside it what of the time from step to step is waiting between steps, if more than a trifle."""
    head, text = report.headline, ""
    if head.exposed_ratio is not None:
        text = f" of the step, {format_time(head.exposed_ns)} (mean over ranks)"
        parts = () if report.between is None else report.between.parts
        waits = sum(part.share_ratio or 0.0 for part in parts if part.part == WAITS_BETWEEN)
        if waits >= NOTABLE_BETWEEN_RATIO:
            text += f"; waits between steps are {format_ratio(waits)} of the time from step to step"
    return Fact(label="exposed comm.", number=format_ratio(head.exposed_ratio), text=text)


def describe_busiest(report: Report) -> str:
    """The busiest rank in one sentence, or why none is named."""
    busiest = report.headline.busiest
    if busiest is None:
        return "one rank: nothing to compare it with" if report.world_size == 1 else NOT_MEASURED
    there = {rank.rank for rank in report.ranks}
    which = "of the ranks present, " if set(report.coverage.ranks_missing) - there else ""
    averaged = "" if report.verdict.rank in (None, busiest.rank) else ", averaged over all steps"
    if not busiest.stands_out:
        return (
            f"{which}no outlier: {name_rank(report, busiest.rank)} does the most work{averaged}, "
            f"{format_time(busiest.excess_ns)} per step above the others' median"
        )
    where = "in no single phase more than the others"
    if busiest.phase is not None:
        most = (busiest.phase_excess_ns or 0.0) >= MOST_RATIO * (busiest.excess_ns or 0.0)
        part = "most of it" if most else "the largest part of it"
        where = f"{part} in {busiest.phase} ({format_excess(busiest.phase_excess_ns)})"
    return (
        f"{which}{name_rank(report, busiest.rank)} spends {format_time(busiest.own_ns)} of its own per step{averaged}, "
        f"{format_time(busiest.excess_ns)} more than the median of the others, {where}"
    )


def _describe_model(report: Report) -> str:
    flops = report.flops
    assert flops is not None
    text = f"{format_count(flops.parameters)} parameters, {format_flops(flops.model_flops_per_step)} per step and rank"
    if flops.hardware_flops_per_step != flops.model_flops_per_step:
        text += f" ({format_flops(flops.hardware_flops_per_step)} with recomputation)"
    off = flops.analytic_error_ratio
    if off is not None and flops.analytic_flops_per_step is not None:
        text += f"; the formula gives {format_flops(flops.analytic_flops_per_step)}"
        text += f" ({format_ratio(off)} off)" if off <= 1 else ", so it does not describe this model"
    return text
