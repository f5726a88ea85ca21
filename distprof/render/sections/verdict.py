"""The verdict in a sentence that a tired person understands, and the rows of the tables behind it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from distprof.render.sections.cause_times import format_period, format_when
from distprof.render.sections.cause_words import (
    CAUSES,
    NAME_LIMIT,
    NOBODY,
    count_others,
    describe_loader,
    describe_off_cpu,
    describe_unmarked,
    format_costs,
    format_gain,
    format_shorter_steps,
    format_where,
    list_larger,
    list_named,
    look_up_verdict_cause,
    may_get_batches,
    measure_data_share,
    name_beside,
    name_cause,
    name_link,
    name_often,
    name_part,
    read_cost,
    show_share,
)
from distprof.render.sections.gpus import describe_allocator, describe_throttle
from distprof.render.sections.pipeline import describe_pipeline_verdict
from distprof.render.sections.probes import describe_probes
from distprof.render.sections.rank_names import describe_place, name_groups, name_rank, read_dimension
from distprof.render.units import (
    clean_text,
    format_bytes,
    format_excess,
    format_factor,
    format_number,
    format_range,
    format_ratio,
    format_time,
)
from distprof.report.loader_report import SlowLoader
from distprof.report.report import Report
from distprof.report.wait_report import (
    LATE_KINDS,
    Cause,
    Estimate,
    Pattern,
    Stall,
    Verdict,
    VerdictKind,
    WaitReport,
    WhatIf,
    is_sample,
)

TEXT_LIMIT = 300
MAX_GROUPS = 4
"""So many groups that do the same have a row each; more share one."""
BLURRED_RATIO = 0.1
"""Where one rank takes over from another is known to this share of the shorter stretch."""
WORDS = {VerdictKind.COMMUNICATION: "communication", VerdictKind.JITTER: "waiting for whichever rank is last"}
"""What is nobody's fault, where nobody is named."""
MEANS = {VerdictKind.JITTER: " (a different rank is last each time)"}
"""Behind the name of a cause that comes first and is not in everybody's words."""
_PAUSES = {
    VerdictKind.GARBAGE_COLLECTION: ("Python's garbage collector", "collections"),
    VerdictKind.RECOMPILATION: ("compiling (torch.compile)", "it"),
}
"""What stops ranks, and what steps would be without."""
_MORE = {
    "tokens": "it gets {times} the tokens of the others",
    "squared_lengths": "its sequences are longer (the squares of their lengths sum to {times} the others')",
}
"""Why a rank may be late, by what it gets more of."""
STALLED_RATIO = 0.5
"""Of a step: stalls that cost more come first."""
WAITED_FOR = " is waited for"
"""In the reason why nobody is named although a rank seems late."""
NOTABLE_DATA_RATIO = 0.05
"""Share of a step from which a single process is said to wait for its data."""
MOST_RATIO = 0.8
"""Of what long steps take longer: a rank that explains less does not explain all of it."""


def describe_verdict(report: Report) -> str:
    """A sentence on the largest cause with a name, before it one on those without a name that cost more, and after it
    one that counts the others, one on the steps that this is based on, if these are not all, and what probes say; empty
    for traces without steps, and for a job of one rank that does not wait for its data."""
    verdict = report.verdict
    if not (report.steps or report.activity is None):
        return ""
    if report.world_size == 1:
        return _describe_alone(report)
    sentence = f"{'critical: ' if verdict.critical else ''}{_describe_largest(report)}"
    reasons = [describe_throttle(report), describe_allocator(report)]
    after = [*reasons, count_others(report), _describe_basis(report), _describe_probes(report)]
    after = [text for text in after if text]
    larger = [] if verdict.kind in NOBODY else list_larger(report)
    if larger:
        costs = [(name_beside(report, cause), read_cost(report, cause)) for cause in larger]
        costs[0] = costs[0][0] + MEANS.get(larger[0].kind, ""), costs[0][1]
        sentence = f"{format_costs(costs, 'the most, ')}. {sentence[:1].upper()}{sentence[1:]}"
    return " ".join(f"{text}." for text in (sentence, *after)) if larger or after else sentence


def _describe_basis(report: Report) -> str:
    used, measured = report.verdict.steps_used, report.coverage.steps_measured
    if report.verdict.lost_ratio is None or not is_sample(used, measured):
        return ""
    return f"This is based on {used:,} of {measured:,} measured steps"


def _describe_probes(report: Report) -> str:
    return "" if report.probes is None else f"Probes afterwards: {describe_probes(report.probes).rstrip('.')}"


def _describe_alone(report: Report) -> str:
    """Nobody holds a single process up, but its data may."""
    share_ratio = measure_data_share(report)
    if share_ratio < NOTABLE_DATA_RATIO or report.headline.step_mean_ns is None:
        return ""
    long = format_time(share_ratio * report.headline.step_mean_ns)
    shorter = f"with every batch ready in time, steps would be up to {format_ratio(share_ratio)} shorter"
    return f"the process waits for its data for {format_ratio(share_ratio)} of a step ({long}): {shorter}"


def _describe_largest(report: Report) -> str:
    verdict = report.verdict
    if report.pipeline is not None and report.pipeline.judged:
        return describe_pipeline_verdict(report, report.pipeline)
    if verdict.kind in LATE_KINDS:
        return _describe_late(report, verdict)
    if verdict.kind is VerdictKind.SLOW_LINK:
        return _describe_link(report, verdict)
    if verdict.kind is VerdictKind.STALLS:
        return _describe_stalls(report, verdict)
    reason = clean_text(verdict.reason, TEXT_LIMIT)
    if verdict.lost_ratio is None:
        return f"no verdict: {reason}"
    if verdict.kind is VerdictKind.UNEQUAL_DATA:
        start = "ranks process unequal amounts of data in a step, and wait for the one with the most"
        gain = format_gain(report, show_share(verdict.lost_ratio, "shorter"))
        return f"{start}: {reason}; with equal amounts steps would be {gain}"
    if verdict.kind is VerdictKind.UNEQUAL_SEQUENCES:
        start = "ranks process sequences of unequal lengths, and wait for the one whose sequences are longest"
        gain = format_gain(report, show_share(verdict.lost_ratio, "shorter"))
        return f"{start}: {reason}; with equal squares of lengths steps would be {gain}"
    if verdict.kind is VerdictKind.SLOW_LOADER and verdict.loader is not None:
        return _describe_loader(report, verdict.loader, verdict.lost_ratio)
    if verdict.kind in _PAUSES:
        what, gone = _PAUSES[verdict.kind]
        often = "some" if verdict.held_ratio is None else format_ratio(verdict.held_ratio)
        gain = format_gain(report, show_share(verdict.lost_ratio, "shorter"))
        start = f"{what} stops one rank or another in {often} of the steps, and the others wait"
        return f"{start}; without {gone} steps would be {gain}"
    return _describe_nobody(report, verdict, verdict.lost_ratio, reason)


def _describe_loader(report: Report, loader: SlowLoader, lost_ratio: Estimate) -> str:
    why = describe_loader(loader, "each rank's")
    gain = format_gain(report, show_share(lost_ratio, "shorter"))
    needs = f"the step needs {format_time(loader.step_ns)} without that"
    start = f"one rank or another waits for its batch, {format_time(loader.wait_ns)} in a step"
    return f"{start}: {why}, and {needs}; with batches in time steps would be {gain}"


def _describe_nobody(report: Report, verdict: Verdict, lost_ratio: Estimate, reason: str) -> str:
    """Why nobody is named, and what that is nobody's fault costs, the largest first."""
    start = f"no straggler: {reason}"
    if WAITED_FOR in reason:
        start = f"no certain straggler: {reason}"
    elif verdict.kind is VerdictKind.JITTER and not reason.startswith("rank "):
        start = "no single straggler: a different rank is last at each step"
    larger = list_larger(report)
    costs = [(WORDS.get(cause.kind, name_beside(report, cause)), read_cost(report, cause)) for cause in larger]
    own = verdict.kind if verdict.kind is VerdictKind.COMMUNICATION else VerdictKind.JITTER
    if not any(cause.kind is own for cause in larger):
        costs.append((WORDS[own], lost_ratio))
    costly = format_costs(sorted(costs, key=lambda cost: -cost[1].value))
    if larger and larger[0].kind is VerdictKind.STALLS and read_cost(report, larger[0]).value >= STALLED_RATIO:
        return f"{costly}; beside that, {start}"
    return f"{start}; {costly}"


def _describe_late(report: Report, verdict: Verdict) -> str:
    hosts = [clean_text(host, NAME_LIMIT) for host in verdict.hosts]
    own = [rank for rank in report.ranks if rank.host in verdict.hosts] if hosts else [None]
    name = f"host {hosts[0]} ({len(own)} ranks)" if hosts else name_rank(report, verdict.rank)
    doubt = "" if verdict.confirmed else f" ({clean_text(verdict.reason, TEXT_LIMIT)})"
    late = "late" if verdict.late_ns is None else f"{format_time(verdict.late_ns)} late"
    late += " per step" * (verdict.round_steps > 1 and verdict.pattern is Pattern.PERSISTENT)
    sentence = f"{name} is {late} in {_format_steps(report, verdict)}{_format_why(report, verdict)}"
    if verdict.received is not None:
        times = format_factor(verdict.received.more_ratio)
        got = f"experts of {name} get {times} the tokens of the others (all_to_all in {verdict.received.phase})"
        sentence = f"{got}: {sentence.replace(name, 'it', 1)}"
    if verdict.lost_ratio is None:
        return f"{sentence}{_compare_with(report)}; what fixing it would gain is not known{doubt}"
    neighbour = _describe_neighbour(report)
    others = len(report.coverage.ranks_present) - len(own)
    who = "the other rank waits" if others == 1 else f"the other {others:,} wait"
    together = "" if others == 1 else " together"
    waited = ""
    if verdict.waited_ns is not None and verdict.confirmed is not False:
        waited = f"; {who} {format_time(verdict.waited_ns)} per step{together}"
    fixed = f"fixing {'host ' + hosts[0] if hosts else name}" if neighbour else "fixing it"
    if verdict.received is not None:
        fixed = "giving all as many"
    gain = format_shorter_steps(report, verdict.lost_ratio)
    return f"{sentence}{neighbour}{waited}; {fixed} makes {gain}{doubt}"


def _compare_with(report: Report) -> str:
    return "" if report.is_unlike and not report.coverage.ranks_missing else ", compared with the ranks present"


def _format_steps(report: Report, verdict: Verdict) -> str:
    often = name_often(verdict)
    if verdict.pattern is not Pattern.PERSISTENT:
        often = "some steps" if verdict.held_ratio is None else f"{format_ratio(verdict.held_ratio)} of the steps"
        verdict_cause = look_up_verdict_cause(report)
        often = ("" if verdict_cause is None else format_period(verdict_cause)) or often
    return f"{often}{_format_cause_when(report)}"


def _format_cause_when(report: Report) -> str:
    verdict_cause = look_up_verdict_cause(report)
    return "" if verdict_cause is None else f" {format_when(verdict_cause, report)}".rstrip()


def _format_why(report: Report, verdict: Verdict) -> str:
    phases = [] if verdict.phase is None else [verdict.phase, *filter(None, [verdict.second_phase])]
    excesses = [format_excess(item.rank_ns - item.others_ns) for item in reversed(verdict.evidence)]
    places = itertools.zip_longest(phases, excesses[: len(phases)], fillvalue="")
    inside = "; also ".join(f"{clean_text(phase)} {excess}".rstrip() for phase, excess in places)
    if verdict.off_cpu is not None:
        return f": {describe_off_cpu(verdict.off_cpu, inside, host=bool(verdict.hosts))}"
    inside += describe_unmarked(verdict.unmarked)
    phase = f" ({inside})" if inside else ""
    if verdict.module is not None:
        phase += f", most of it in {clean_text(verdict.module.name, NAME_LIMIT)}"
    if verdict.loader is not None:
        phase += f"; {describe_loader(verdict.loader, 'its')}"
    if verdict.cause is Cause.OUTSIDE and may_get_batches(report):
        phase += ", perhaps getting its batches"
    if verdict.more_work is not None:
        times = format_factor(verdict.more_work.more_ratio)
        phase += f", perhaps because {_MORE[verdict.more_work.amount].format(times=times)}"
    return f": {CAUSES[verdict.cause]}{phase}" if verdict.cause is not None else phase


def _describe_neighbour(report: Report) -> str:
    """Who is late before or after the steps in which the rank or host of the verdict is, if somebody is."""
    verdict_cause = look_up_verdict_cause(report)
    if verdict_cause is None or verdict_cause.whole:
        return ""
    for cause in list_named(report.causes):
        apart = max(verdict_cause.first_step - cause.last_step, cause.first_step - verdict_cause.last_step)
        short = min(verdict_cause.last_step - verdict_cause.first_step, cause.last_step - cause.first_step)
        if cause is verdict_cause or cause.kind not in LATE_KINDS or abs(apart) > 1 + BLURRED_RATIO * short:
            continue
        excess = "" if cause.late_ns is None else format_excess(cause.late_ns)
        name = name_cause(cause, excess, report)
        if cause.rank is not None and cause.rank == verdict_cause.rank:
            elsewhere = " elsewhere" * (cause.phase != verdict_cause.phase)
            name = f"late{elsewhere} ({' '.join(filter(None, [name_part(cause), excess]))})"
        if cause.first_step < verdict_cause.first_step:
            return f"; before that it was {name}"
        lasts = not format_when(cause, report).startswith("from")
        return f"; {'since then' if lasts else 'after that'} it is {name}"
    return ""


def _describe_link(report: Report, verdict: Verdict) -> str:
    when = _format_cause_when(report)
    probed = verdict.needed_ns is not None
    start = f"{name_link(verdict.hosts)} holds every rank up{when}: {clean_text(verdict.reason, TEXT_LIMIT)}"
    if probed:
        start += f"; at its probed speed the link needs {format_time(verdict.needed_ns)} for one step's data"
    if verdict.lost_ratio is None:
        return f"{start}; what fixing it would gain is not known"
    return f"{start}; fixing it makes {format_shorter_steps(report, verdict.lost_ratio)}"


def _describe_stalls(report: Report, verdict: Verdict) -> str:
    verdict_cause = look_up_verdict_cause(report)
    one = verdict_cause is not None and verdict_cause.events == 1
    start, partly = "single steps are far longer", False
    if verdict_cause is not None and verdict_cause.events is not None:
        alike = sum(cause.kind is VerdictKind.STALLS for cause in list_named(report.causes)) == 1
        explained = verdict_cause.explained_ratio
        steps = "step" if one else "steps"
        measured = report.coverage.steps_measured
        count = measured if is_sample(verdict.steps_used, measured) else verdict.steps_used
        recorded = " recorded" if report.coverage.steps_timed_alone else ""
        start = f"{verdict_cause.events:,} {steps} of {count:,}{recorded} {'is' if one else 'are'} far longer"
        start += f" (step {verdict_cause.first_step:,})" if one else ""
        if partly := explained is not None and explained < MOST_RATIO:
            start += f", {format_ratio(explained)} of that"
        elif alike and not one and verdict.rank is not None:
            start += ", all"
    who = "" if verdict.rank is None else f"because of {name_rank(report, verdict.rank)}"
    often = "" if verdict_cause is None else f"{format_period(verdict_cause)}{_format_cause_when(report)}".lstrip()
    sentence = " ".join(word for word in (start, who, format_where(verdict.phase)) if word)
    sentence += f", {often}" if often else ""
    if verdict.loader is not None:
        sentence += f" ({describe_loader(verdict.loader, 'its')})"
    if verdict.lost_ratio is None:
        reason = clean_text(verdict.reason, TEXT_LIMIT)
        return f"{sentence}{_compare_with(report)}; what they cost is not known ({reason})"
    gain = format_gain(report, show_share(verdict.lost_ratio, "shorter"))
    return f"{sentence}; without {'that' if partly else 'it' if one else 'them'} the job would be {gain}"


def list_evidence(verdict: Verdict) -> list[list[str]]:
    """A row per piece of evidence: its name, the rank's time, the others', and in how many steps it alone agrees."""
    return [
        [clean_text(item.label, NAME_LIMIT), format_time(item.rank_ns), format_time(item.others_ns),
         format_ratio(item.agree_ratio)]
        for item in verdict.evidence
    ]  # fmt: skip


def list_what_ifs(report: Report) -> list[list[str]]:
    """A row per change: its name, the resulting step, what is saved, tokens/s, rank-hours a day."""
    return [
        show_change(
            name_change(report, item), item.step_ns, item.saved_ratio, item.tokens_per_s, item.rank_hours_per_day
        )
        for item in report.what_if
    ]


def name_change(report: Report, item: WhatIf) -> str:
    """``rank 5 (dp 1, tp 0) at normal speed``."""
    uneven = report.verdict.received is not None and item.rank == report.verdict.rank
    if uneven and item.change.endswith("at normal speed"):
        return f"as many tokens for {name_rank(report, item.rank)} as for the others"
    return item.change.replace(f"rank {item.rank}", name_rank(report, item.rank), 1)


def show_change(
    name: str, step_ns: float, saved: Estimate, tokens_per_s: float | None, rank_hours_per_day: float | None
) -> list[str]:
    """The row of a change."""
    hours = "" if rank_hours_per_day is None else f"{rank_hours_per_day:,.1f}"
    return [clean_text(name, NAME_LIMIT), format_time(step_ns), show_share(saved), format_number(tokens_per_s), hours]


def list_waits(report: Report) -> list[list[str]]:
    """A row per kind of collective, group and phase: count, bytes, the ranks' waits, transfer, and who arrives last.

    Where some were timed on the device, those that were not say so. Many groups that do the same share a row.
    """
    mixed = len({item.clock for item in report.waits}) > 1
    alike: dict[tuple[object, ...], list[WaitReport]] = {}
    for item in report.waits:
        dimension = read_dimension(report, item.group)
        key = (
            dimension,
            item.kind,
            item.phase,
            item.clock,
            item.count_per_step,
            item.bytes_per_step,
            item.members_missing > 0,
        )
        alike.setdefault(key, []).append(item)
    rows = []
    for items in alike.values():
        together = len(items) > MAX_GROUPS or read_dimension(report, items[0].group)
        rows += [items] if together else [[item] for item in items]
    return [
        [
            clean_text(_name_collective(report, items[0]), NAME_LIMIT)
            + " (host clock)" * (mixed and items[0].clock == "host"),
            name_groups(report, [item.group for item in items]),
            str(items[0].count_per_step), _show_bytes(items), _show_waits(items),
            format_range([item.transfer_ns for item in items], format_time), *_show_last(report, items),
        ]
        for items in rows
    ]  # fmt: skip


def _name_collective(report: Report, item: WaitReport) -> str:
    """What it is and in which phase, after the dimension whose groups issue it."""
    dimension = read_dimension(report, item.group)
    return f"{dimension}: " * bool(dimension) + f"{item.kind} in {item.phase}"


def _show_waits(items: Sequence[WaitReport]) -> str:
    """From the shortest wait of a rank to the longest; n/a if the clocks may be off by more. If members are missing, it
    is a lower limit."""
    known = [value for item in items for value in item.wait_ns if value is not None]
    shown = format_range(known, format_time)
    return f"at least {shown}" if items[0].members_missing and known else shown


def _show_bytes(items: Sequence[WaitReport]) -> str:
    """The buffer; of all-to-alls from what they bring least to what they bring most."""
    received = [value for item in items for value in item.received_bytes]
    return format_range(received, format_bytes) if received else format_bytes(items[0].bytes_per_step)


def _show_last(report: Report, items: Sequence[WaitReport]) -> tuple[str, str]:
    """Who arrived last most often, how often, and its coordinates; n/a if members are missing, since one of them may
    have been last."""
    if items[0].members_missing:
        missing = sum(item.members_missing for item in items)
        members = missing + sum(value is not None for item in items for value in item.exposed_ns)
        return f"n/a: {missing:,} of {members:,} missing", ""
    known = [
        (value, -position) for item in items for position, value in enumerate(item.last_ratio) if value is not None
    ]
    share, position = max(known, default=(0.0, 0))
    if share <= 0:
        return "n/a", ""
    rank = report.ranks[-position].rank
    return f"rank {rank}: {format_ratio(share)}", describe_place(report, rank)


def describe_stall(stall: Stall, who: str = "") -> str:
    """An unusually long step, in a sentence. ``who``: the rank's name, if it has more than its number."""
    who = (
        f"{who or f'rank {stall.rank}'}, {stall.phase}"
        if stall.rank is not None
        else f"no rank alone was late ({stall.phase})"
    )
    if stall.phase is None:
        who = "recording was off in this step (a shadow step), so the phase is unknown"
    return f"step {stall.step} took {format_time(stall.lost_ns)} longer than usual: {who}"
