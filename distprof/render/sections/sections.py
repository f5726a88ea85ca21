"""The sections of a report in their order: what every renderer shows, and the terminal and the page lay out."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from distprof.facts.run import Clock
from distprof.render.sections.cause_words import CAUSE_HEADS, CAUSE_NOTE, list_causes
from distprof.render.sections.coverage import list_coverage
from distprof.render.sections.ends import name_end, show_generations
from distprof.render.sections.gpus import show_gpus
from distprof.render.sections.hangs import show_states
from distprof.render.sections.headline import list_headline
from distprof.render.sections.job_modules import show_memory, show_modules
from distprof.render.sections.pipeline import show_pipeline
from distprof.render.sections.probes import show_probes
from distprof.render.sections.rank_names import describe_place, list_rank_heads, name_groups, name_rank, read_dimension
from distprof.render.sections.section_types import EXTREMES, MAX_RANK_ROWS, Section, drop_places, make_columns
from distprof.render.sections.trace_rows import is_traced, list_findings, list_trace_sections
from distprof.render.sections.traced_modules import show_traced_modules
from distprof.render.sections.verdict import list_evidence, list_waits, list_what_ifs, name_change, show_change
from distprof.render.units import (
    NOT_MEASURED,
    clean_text,
    format_bandwidth,
    format_bytes,
    format_count,
    format_flops_per_s,
    format_milliseconds,
    format_range,
    format_ratio,
    format_time,
)
from distprof.report.report import BandwidthReport, BetweenReport, RankReport, Report, StepReport
from distprof.report.wait_report import ChangedSetting, Forecast, Spread, is_sample

EVIDENCE_HEADS = ("quantity", "the rank", "the others", "steps that agree")
WHAT_IF_HEADS = ("change", "step", "shorter by", "tokens/s", "rank-hours a day")
WAIT_HEADS = ("collective", "group", "count", "payload", "wait", "transfer", "last", "place")
COMMUNICATION_HEADS = (
    "collective", "count", "payload", "busy", "exposed", "overlapped", "busy, device", "exposed, device",
    "overlapped, device",
)  # fmt: skip
TEXT_LIMIT = 600


def list_sections(report: Report, *, max_notes: int, note_limit: int) -> list[Section]:
    """Every section, also those without content; at most ``max_notes`` notes, of ``note_limit`` characters each."""
    coverage = list_coverage(report, max_notes=max_notes, note_limit=note_limit)
    return [
        Section(key="headline", title="headline", facts=list_headline(report)),
        show_generations(report),
        show_states(report),
        list_findings(report),
        *(show_phases(report, step) for step in report.steps),
        show_pipeline(report),
        *list_trace_sections(report),
        *_list_verdict_sections(report),
        show_probes(report.probes),
        show_modules(report),
        show_memory(report),
        show_traced_modules(report),
        *list_rank_sections(report),
        show_scheduling(report),
        _show_communication(report),
        show_bandwidths(report),
        Section(key="coverage", title="coverage", facts=coverage),
    ]


def _list_verdict_sections(report: Report) -> list[Section]:
    """All causes, the evidence for the verdict, what changes would gain, and who waited for whom."""
    traced = is_traced(report)
    assumptions = (clean_text(f"{name_change(report, item)}: {item.assumption}", TEXT_LIMIT) for item in report.what_if)
    evidence = make_columns(EVIDENCE_HEADS, list_evidence(report.verdict), non_empty_only=traced)
    forecasts = list_forecasts(report)
    what_ifs = make_columns(WHAT_IF_HEADS, [*list_what_ifs(report), *forecasts], non_empty_only=traced)
    waits = drop_places(make_columns(WAIT_HEADS, list_waits(report), ("place",), non_empty_only=traced))
    causes = list_causes(report)
    about = "upper bounds, not additive" + ("; rows for other settings are estimates" if forecasts else "")
    return [
        Section(
            key="causes", title="causes: where step time could be saved",
            columns=make_columns(CAUSE_HEADS, causes, ("where", "when"), non_empty_only=True),
            ruled=(len(causes) - 1,), notes=(CAUSE_NOTE,) if causes else (),
        ),
        Section(key="evidence", title="evidence, per step", columns=evidence),
        Section(
            key="what_if", title="what if: replay of the recorded steps", about=about,
            columns=what_ifs, details=(*dict.fromkeys(assumptions), *list_assumptions(report)),
        ),
        Section(
            key="waits", title="waits per collective: waiting for the last rank, then transferring",
            about="on the device clock" if any(item.clock == "device" for item in report.waits) else "", columns=waits,
            notes=tuple(_note_ends(report)),
        ),
    ]  # fmt: skip


def _note_ends(report: Report) -> Iterator[str]:
    """In a long job, the ends of collectives are seen in some steps only."""
    fewest = min(report.waits, key=lambda item: item.ended_steps / item.steps_used, default=None)
    if fewest is not None and is_sample(fewest.ended_steps, fewest.steps_used):
        yield (
            f"waits are of {fewest.steps_used:,} steps, transfers of the {fewest.ended_steps:,} in which the ends of "
            "all collectives were seen"
        )


def _show_communication(report: Report) -> Section:
    """Every kind of collective, per step and rank: one number, or the range where ranks differ."""
    rows = [
        [
            kind.kind, format_range(kind.count_per_step, format_count), format_range(kind.bytes_per_step, format_bytes),
            format_range(kind.busy_host_ns, format_time), format_range(kind.exposed_host_ns, format_time),
            format_range(kind.overlapped_host_ns, format_time), format_range(kind.busy_device_ns, format_time),
            format_range(kind.exposed_device_ns, format_time), format_range(kind.overlapped_device_ns, format_time),
        ]
        for kind in report.communication
    ]  # fmt: skip
    columns = make_columns(COMMUNICATION_HEADS, rows)
    on_host = any(column.head in ("busy", "exposed") and column.has_values() for column in columns)
    title = "communication: per step and rank" + (", host clock" if on_host else "")
    return Section(key="communication", title=title, columns=columns, notes=tuple(_note_exposed(report)))


def _note_exposed(report: Report) -> Iterator[str]:
    """A thread that has waited may get a core only a while later."""
    pairs = [
        pair for kind in report.communication
        for exposed, busy in ((kind.exposed_host_ns, kind.busy_host_ns), (kind.exposed_device_ns, kind.busy_device_ns))
        for pair in zip(exposed, busy, strict=True)
    ]  # fmt: skip
    if any(exposed_ns is not None and busy_ns is not None and exposed_ns > busy_ns for exposed_ns, busy_ns in pairs):
        yield "exposed lasts until the rank goes on, which may be after the collectives have ended, and may exceed busy"


PHASE_HEADS = ("phase", "min", "median", "max", "rank", "share")
MAX_RANK_COLUMNS = 8
NOTABLE_IDENTITY_RATIO = 0.001
"""Share of a step by which its phases may miss it before that is worth a note."""
NOTABLE_BETWEEN_RATIO = 0.001
"""Share of the cycle from which on the time between steps is shown."""
BETWEEN_NOTE = (
    'the rows below "step" are the time between steps, which is known before {:,} of them, as a mean per measured '
    "step; a cycle is the step and that time, and shares in those rows are of the cycle"
)
UNKNOWN_NOTE = "own time and waits between steps cannot be distinguished: their parts were not recorded"
Row = tuple[str, Spread, float | None, Sequence[float | None]]
"""Name, spread, share and means by rank."""


def show_phases(report: Report, step: StepReport) -> Section:
    """Phases by rank on one clock, in ms, and the step; on the host clock also what lies between steps."""
    phases = [phase for phase in report.phases if phase.clock == step.clock]
    inside: list[Row] = [(phase.phase, phase.spread_ns, phase.share_ratio, phase.mean_ns) for phase in phases]
    inside.append(("step", step.spread_ns, 1.0 if phases else None, step.mean_ns))
    between = _choose_between(report) if step.clock == Clock.HOST.value else None
    outside = _list_between(between) if between is not None else []
    heads = list_rank_heads(report) if len(report.ranks) <= MAX_RANK_COLUMNS else []
    rows = [*inside, *outside]
    ruled = (len(phases), *((len(inside), len(rows) - 1) if outside else ()))
    return Section(
        key="phases", title=f"phases by rank, {step.clock} clock: mean per step, ms", clock=step.clock,
        columns=make_columns(PHASE_HEADS, [_show_row(report, *row[:3]) for row in rows]),
        by_rank=make_columns(heads, [[format_milliseconds(value) for value in row[3][: len(heads)]] for row in rows]),
        ruled=ruled, notes=tuple(_list_notes(step, between, recorded=bool(phases))),
    )  # fmt: skip


def _choose_between(report: Report) -> BetweenReport | None:
    """The time between steps, if it is worth showing."""
    between = report.between
    return between if between is not None and (between.between_ratio or 0) >= NOTABLE_BETWEEN_RATIO else None


def _list_between(between: BetweenReport) -> list[Row]:
    rows = [(part.part, part.spread_ns, part.share_ratio, part.mean_ns) for part in between.parts]
    return [*rows, ("cycle", between.cycle_spread_ns, None, between.cycle_mean_ns)]


def _show_row(report: Report, name: str, spread: Spread, share_ratio: float | None) -> list[str]:
    return [
        name, *map(format_milliseconds, (spread.min, spread.median, spread.max)),
        NOT_MEASURED if spread.max_rank is None else name_rank(report, spread.max_rank).removeprefix("rank "),
        "" if name == "cycle" else format_ratio(share_ratio),
    ]  # fmt: skip


def _list_notes(step: StepReport, between: BetweenReport | None, *, recorded: bool) -> list[str]:
    notes = [] if recorded else ["phases were not recorded: step time only"]
    if step.identity_error_ratio is not None and step.identity_error_ratio > NOTABLE_IDENTITY_RATIO:
        notes.append(f"in one step the phases differ from the step by {format_ratio(step.identity_error_ratio)}")
    if between is not None:
        notes += [BETWEEN_NOTE.format(between.steps_used), *([] if between.parts_known else [UNKNOWN_NOTE])]
    return notes


ALLOCATOR_HEADS = ("driver alloc.", "flushes")
"""Of the allocator of a rank's GPU, per step."""
RANK_HEADS = ("FLOP/s", "MFU", "mem. peak", "mem. now", *ALLOCATOR_HEADS, "last step", "ended")
SELDOM = 0.05
"""An allocator that asks the driver less often than this, per step, is not worth two columns."""
DEVICE_HEADS = ("rank", "device", "memory", "in use", "busy", "power", "temp.", "processes")
SCHEDULING_HEADS = (
    "rank", "place", "on a core", "off the CPU", "preempted", "disk faults", "threads", "cores", "throttled", "steal",
)  # fmt: skip
TEXTS = ("place", "host", "device", "did")
NAME_LIMIT, DEVICE_LIMIT = 160, 12
"""Characters of a host's or a device's name, and of a device such as ``cuda:0``."""


def choose_rows(report: Report) -> list[int]:
    """Positions of the ranks that get a row: all, or those with the most and the least own time, most first."""
    everyone = range(len(report.ranks))
    if len(everyone) <= MAX_RANK_ROWS:
        return list(everyone)
    own_ns = list_own_times(report)
    ordered = sorted(everyone, key=lambda position: (own_ns[position] is None, -(own_ns[position] or 0.0)))
    last = sum(own is not None for own in own_ns) or len(ordered)
    return [*ordered[:EXTREMES], *ordered[max(EXTREMES, last - EXTREMES) : last]]


def choose_spread(report: Report, most: int) -> list[int]:
    """Positions of all ranks or, when there are more than ``most``, of the verdict's rank, those with the most and the
    least own time, and every n-th, about half of ``most``."""
    count = len(report.ranks)
    if count <= most:
        return list(range(count))
    named = [position for position, rank in enumerate(report.ranks) if rank.rank == report.verdict.rank]
    return sorted({*named, *choose_rows(report), *range(0, count, -(-count // (most // 2)))})


def list_own_times(report: Report) -> list[float | None]:
    """Own time by position, or without phases the mean step, ns on the headline clock; None: not measured."""
    if report.phases:
        return [rank.own_ns for rank in report.ranks]
    steps = (list(step.mean_ns) for step in report.steps if step.clock == report.headline.clock)
    return next(steps, [None] * len(report.ranks))


def list_rank_sections(report: Report) -> list[Section]:
    """The ranks, and what their devices showed before the first step."""
    positions, traced = choose_rows(report), is_traced(report)
    ranks = [report.ranks[position] for position in positions]
    left_out = len(report.ranks) - len(ranks)
    hosts = {rank.host for rank in report.ranks}
    own = "own, ms" if report.phases else "step, ms"
    columns = make_columns(
        ("rank", "place", "host", "device", own, *RANK_HEADS, "did"), _list_ranks(report, positions), TEXTS
    )
    hidden = {
        *([] if any(rank.apart for rank in ranks) else ["did"]),
        *(["host"] if len(hosts) == 1 else []),
        *([] if any((_count_allocations(rank)[0] or 0) >= SELDOM for rank in ranks) else ALLOCATOR_HEADS),
        *([] if left_out else [own]),
    }
    shown = (column for column in columns if column.head not in hidden and (column.has_values() or not traced))
    columns = drop_places(tuple(shown))
    rows = [] if traced else [_list_device(rank) for rank in ranks]
    devices = make_columns(DEVICE_HEADS, rows, TEXTS, non_empty_only=True)
    shown_heads = {column.head for column in devices} - {"rank", "device"}
    return [
        Section(
            key="ranks", title=_title_ranks(report, left_out), columns=columns,
            notes=(f"{left_out:,} other ranks are left out; report.json has them",) if left_out else (),
        ),
        Section(key="devices", title="devices, before the first step", columns=devices if shown_heads else ()),
        show_gpus(report, {rank.rank for rank in ranks}),
    ]  # fmt: skip


def show_scheduling(report: Report) -> Section:
    """How the ranks' training threads got cores, per step."""
    rows = [
        [
            str(rank.rank), describe_place(report, rank.rank), format_milliseconds(own.run_ns),
            format_milliseconds(own.wait_ns), *map(format_count, (own.preempted, own.major_faults)),
            *("" if number is None else f"{number:,.3g}" for number in (own.threads, own.cores)),
            format_ratio(own.throttled_ratio), format_ratio(own.steal_ratio),
        ]
        for rank in map(report.ranks.__getitem__, choose_rows(report)) if (own := rank.scheduling) is not None
    ]  # fmt: skip
    return Section(
        key="scheduling", title="cores: each rank's training thread, per step, ms",
        columns=make_columns(SCHEDULING_HEADS, rows, ("place",), non_empty_only=True),
    )  # fmt: skip


def _title_ranks(report: Report, left_out: int) -> str:
    if left_out:
        what = "time of their own" if report.phases else "step time"
        return f"ranks: the {EXTREMES} with the most {what}, and the {EXTREMES} with the least"
    hosts = {rank.host for rank in report.ranks}
    return f"ranks, all on {clean_text(hosts.pop())}" if len(hosts) == 1 else "ranks"


def _list_ranks(report: Report, positions: Sequence[int]) -> list[list[str]]:
    own_ns = list_own_times(report)
    return [
        [
            str(rank.rank), describe_place(report, rank.rank), clean_text(rank.host, NAME_LIMIT),
            clean_text(rank.device_name or rank.device, NAME_LIMIT), format_milliseconds(own_ns[position]),
            format_flops_per_s(rank.achieved_flops_per_s).removesuffix("FLOP/s").strip(), format_ratio(rank.mfu_ratio),
            format_bytes(rank.memory_peak_bytes), format_bytes(rank.memory_bytes),
            *(NOT_MEASURED if number is None else f"{number:,.3g}" for number in _count_allocations(rank)),
            NOT_MEASURED if rank.last_step is None else str(rank.last_step), name_end(rank),
            clean_text(rank.apart, TEXT_LIMIT) if rank.apart else "",
        ]
        for position, rank in ((position, report.ranks[position]) for position in positions)
    ]  # fmt: skip


def _count_allocations(rank: RankReport) -> tuple[float | None, float | None]:
    """How often a step asks the driver for memory of the GPU, and gives back what was cached. None: not read."""
    read = rank.scheduling
    return (None, None) if read is None else (read.driver_allocations, read.cache_flushes)


def _list_device(rank: RankReport) -> list[str]:
    return [
        str(rank.rank), clean_text(rank.device, DEVICE_LIMIT), format_bytes(rank.device_memory_total_bytes),
        format_bytes(rank.device_memory_used_bytes), format_ratio(rank.device_utilization_ratio),
        _with_unit(rank.device_power_w, "W"), _with_unit(rank.device_temperature_c, "C"),
        format_count(rank.device_processes),
    ]  # fmt: skip


def _with_unit(value: float | None, unit: str) -> str:
    return NOT_MEASURED if value is None else f"{value:.0f} {unit}"


_ASSUMPTIONS = {
    ChangedSetting.GRAD_ACCUM: "micro-steps: each takes as long as a recorded one, and only the last one reduces "
    "gradients",
    ChangedSetting.RESHARD_AFTER_FORWARD: "no resharding after forward: an upper limit: nothing is gathered in "
    "backward, and memory holds all parameters until then",
}


def list_forecasts(report: Report) -> list[list[str]]:
    """A row per forecast, in the form of `distprof.render.sections.verdict.list_what_ifs`."""
    return [_show_forecast(item) for item in report.forecasts]


def _show_forecast(item: Forecast) -> list[str]:
    name = "no resharding after forward"
    if item.setting is ChangedSetting.GRAD_ACCUM:
        name = f"{item.value:,.0f} micro-step{'s' if item.value > 1 else ''}"
    row = show_change(name, item.step_ns, item.saved_ratio, item.tokens_per_s, item.rank_hours_per_day)
    if item.setting is ChangedSetting.GRAD_ACCUM:
        row[2] = "not comparable"  # a step of other work; tokens/s tell what it is worth
    return row


def list_assumptions(report: Report) -> list[str]:
    """What the forecasts suppose, a sentence each."""
    there = {item.setting for item in report.forecasts}
    return [text for setting, text in _ASSUMPTIONS.items() if setting in there]


BANDWIDTH_HEADS = (
    "collective", "size", "group", "ranks", "count", "transfer", "algorithm", "bus bandwidth", "slowest group",
)  # fmt: skip
SLOWEST = BANDWIDTH_HEADS[-1]


def show_bandwidths(report: Report) -> Section:
    """A row per kind, size and shape of group; of several groups, the one in the middle."""
    alike: dict[tuple[object, ...], list[BandwidthReport]] = {}
    for item in report.bandwidths:
        size = (item.least_bytes, item.most_bytes)
        key = (read_dimension(report, item.group), item.kind, *size, item.num_ranks, len(item.hosts))
        alike.setdefault(key, []).append(item)
    columns = make_columns(BANDWIDTH_HEADS, [_show_bandwidth(report, items) for items in alike.values()])
    return Section(
        key="bandwidths", title="bandwidth: of a transfer, by size of the whole buffer; as nccl-tests define it",
        columns=tuple(column for column in columns if column.head != SLOWEST or column.has_values()),
    )  # fmt: skip


def _show_bandwidth(report: Report, items: Sequence[BandwidthReport]) -> list[str]:
    first = items[0]
    name = name_groups(report, [item.group for item in items])
    return [
        first.kind, _show_size(first), name, f"{first.num_ranks:,}", f"{sum(item.count for item in items):,}",
        format_time(_median_of_known([item.transfer_ns for item in items])),
        format_bandwidth(_median_of_known([item.algorithm_bytes_per_s for item in items])),
        format_bandwidth(_median_of_known([item.bus_bytes_per_s for item in items])), _name_slowest(report, items),
    ]  # fmt: skip


def _show_size(item: BandwidthReport) -> str:
    least, most = format_bytes(item.least_bytes), format_bytes(item.most_bytes)
    return least if least == most else f"{least} to {most}"


def _median_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _name_slowest(report: Report, items: Sequence[BandwidthReport]) -> str:
    known = [item for item in items if item.bus_bytes_per_s is not None]
    if len(items) == 1 or not known:
        return "" if len(items) == 1 else NOT_MEASURED
    slowest = min(known, key=lambda item: item.bus_bytes_per_s or 0.0)
    return f"{name_groups(report, [slowest.group])}: {format_bandwidth(slowest.bus_bytes_per_s)}"
