"""The report as one page: no script, nothing loaded, every name escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from distprof.render.markup import make_section, show, show_rows, tabulate
from distprof.render.overhead import describe_overhead
from distprof.render.silence import name_end
from distprof.render.svg import draw_phases, draw_steps
from distprof.render.terminal import describe_busiest, describe_ends
from distprof.render.terminal_tables import EVIDENCE_HEADS, WAIT_HEADS, WHAT_IF_HEADS, choose_rows, show_range
from distprof.render.trace_html import list_activity, show_findings
from distprof.render.trace_rows import is_traced
from distprof.render.units import (
    NOT_MEASURED,
    format_bytes,
    format_count,
    format_flops,
    format_flops_per_s,
    format_milliseconds,
    format_number,
    format_ratio,
    format_time,
)
from distprof.render.verdict import (
    describe_clocks,
    describe_stall,
    describe_verdict,
    list_evidence,
    list_waits,
    list_what_ifs,
)
from distprof.report.report import Report

COMMUNICATION_HEADS = (
    "collective", "count", "payload", "busy, host clock", "exposed", "overlapped", "busy, device clock",
    "exposed", "overlapped",
)  # fmt: skip
RANK_HEADS = (
    "rank", "host", "device", "name", "FLOP/s", "MFU", "memory peak", "busy", "power", "temp.", "last step", "ended",
)  # fmt: skip
MAX_NOTES = 200


def render_html(report: Report) -> str:
    """A page that holds everything it shows; at most a few megabytes, whatever the number of ranks and steps."""
    style = _read_style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = show(report.name)
    body = "\n".join(
        [
            f"<header><h1>{title}</h1><p>{_describe_job(report)}</p></header>",
            *(f'<p class="alert">{show(line)}</p>' for line in describe_ends(report)),
            _show_verdict(report),
            make_section("Headline", _tile_headline(report)),
            make_section("Findings", show_findings(report)),
            *_list_phases(report),
            *list_activity(report),
            make_section("Evidence, per step", tabulate(EVIDENCE_HEADS, show_rows(list_evidence(report.verdict)))),
            make_section("What if: the recorded steps, run again", _tabulate_what_ifs(report)),
            make_section("Waits, per collective", tabulate(WAIT_HEADS, show_rows(list_waits(report)), "wide names")),
            make_section("Step time", draw_steps(report)),
            make_section("Communication, per step and rank", _tabulate_communication(report)),
            make_section("Ranks", _tabulate_ranks(report)),
            make_section("Coverage", _list_coverage(report)),
            f"<details><summary>Configuration</summary><pre>{_show_config(report)}</pre></details>",
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} - distprof</title><style>{style}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _show_verdict(report: Report) -> str:
    sentence = describe_verdict(report)
    kind = "verdict critical" if report.verdict.critical else "verdict"
    return f'<p class="{kind}">{show(sentence)}</p>' if sentence else ""


def _tabulate_what_ifs(report: Report) -> str:
    table = tabulate(*_keep_told(report, WHAT_IF_HEADS, show_rows(list_what_ifs(report))))
    notes = dict.fromkeys((item.change, item.assumption) for item in report.what_if)
    told = "".join(f"<li>{show(change)}: {show(assumption)}</li>" for change, assumption in notes)
    return f"{table}<p>These are ceilings, and they do not add up.</p><ul>{told}</ul>" if table else ""


@cache
def _read_style() -> str:
    return (Path(__file__).with_name("report.css")).read_text(encoding="utf-8")


def _describe_job(report: Report) -> str:
    names = dict.fromkeys(rank.device_name for rank in report.ranks if rank.device_name)
    ranks = f"{report.world_size:,} rank" + ("s" if report.world_size != 1 else "")
    facts = [report.strategy, ranks, report.backend, *list(names)[:3], report.precision]
    told = ", ".join(show(fact) for fact in facts if fact is not None)
    return told + (f"; started {show(report.started_utc)}" if report.started_utc is not None else "")


def _tile_headline(report: Report) -> str:
    head = report.headline
    achieved = head.achieved_flops_per_s
    parameters = "" if report.flops is None else f"{format_count(report.flops.parameters)} parameters"
    flops = "" if report.flops is None else f"{format_flops(report.flops.model_flops_per_step)} per step and rank"
    notes = list(dict.fromkeys(rank.mfu_note for rank in report.ranks if rank.mfu_note))
    tiles = [
        ("step time", format_time(head.step_mean_ns), f"median {format_time(head.step_median_ns)}, {head.clock} clock"),
        ("throughput", f"{format_number(head.tokens_per_s)} tokens/s", parameters),
        ("FLOP/s per device", format_flops_per_s(achieved.median if achieved else None), flops),
        ("MFU", format_ratio(head.mfu_ratio), notes[0] if notes else f"HFU {format_ratio(head.hfu_ratio)}"),
        ("exposed communication", format_ratio(head.exposed_ratio), f"{format_time(head.exposed_ns)} per step"),
    ]
    if is_traced(report):  # what a trace cannot tell is not worth a tile
        tiles = [tile for tile in tiles if not tile[1].startswith(NOT_MEASURED)][: None if report.world_size > 1 else 1]
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{show(value)}</dd><small>{show(note)}</small></div>" for name, value, note in tiles
    )
    busiest = f"<p>Busiest: {show(describe_busiest(report))}</p>"
    if is_traced(report) and head.busiest is None:
        busiest = ""
    return f'<dl class="tiles">{cells}</dl>{busiest}' if cells else ""


def _list_phases(report: Report) -> Iterable[str]:
    for step in report.steps:
        phases = [phase for phase in report.phases if phase.clock == step.clock]
        if not phases:
            continue
        spreads = [(phase.phase, phase.spread_ns, phase.share_ratio) for phase in phases]
        rows = [
            [
                f'<i class="p-{name}"></i>{show(name)}' if name != "step" else "<b>step</b>",
                *(format_milliseconds(value) for value in (spread.min, spread.median, spread.max)),
                "n/a" if spread.max_rank is None else str(spread.max_rank),
                format_ratio(share),
            ]
            for name, spread, share in [*spreads, ("step", step.spread_ns, 1.0)]
        ]
        table = tabulate(["phase", "min, ms", "median, ms", "max, ms", "max on rank", "share"], rows)
        title = f"Phases by rank, {show(step.clock)} clock: mean per measured step"
        yield make_section(title, draw_phases(report, step.clock) + table)


def _tabulate_communication(report: Report) -> str:
    rows = [
        [
            show(kind.kind), show_range(kind.count_per_step, format_count),
            show_range(kind.bytes_per_step, format_bytes), show_range(kind.busy_host_ns, format_time),
            show_range(kind.exposed_host_ns, format_time), show_range(kind.overlapped_host_ns, format_time),
            show_range(kind.busy_device_ns, format_time), show_range(kind.exposed_device_ns, format_time),
            show_range(kind.overlapped_device_ns, format_time),
        ]
        for kind in report.communication
    ]  # fmt: skip
    return tabulate(COMMUNICATION_HEADS, rows)


def _tabulate_ranks(report: Report) -> str:
    positions = choose_rows(report)
    rows = [
        [
            str(rank.rank), show(rank.host), show(rank.device), show(rank.device_name or "n/a"),
            format_flops_per_s(rank.achieved_flops_per_s), format_ratio(rank.mfu_ratio),
            format_bytes(rank.memory_peak_bytes), format_ratio(rank.device_utilization_ratio),
            "n/a" if rank.device_power_w is None else f"{rank.device_power_w:.0f} W",
            "n/a" if rank.device_temperature_c is None else f"{rank.device_temperature_c:.0f} C",
            "n/a" if rank.last_step is None else str(rank.last_step), show(name_end(rank)),
        ]
        for rank in (report.ranks[position] for position in positions)
    ]  # fmt: skip
    left_out = len(report.ranks) - len(rows)
    note = f"<p>{left_out:,} other ranks are left out; report.json has them.</p>" if left_out else ""
    errors = [rank for rank in report.ranks if rank.traceback][:8]
    traces = "".join(
        f"<details><summary>Traceback of rank {rank.rank}</summary>"
        f"<pre>{_show_lines(rank.traceback or '')}</pre></details>"
        for rank in errors
    )
    return tabulate(*_keep_told(report, RANK_HEADS, rows), "wide names") + note + traces


def _keep_told(
    report: Report, heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Of a report on traces the columns that some row can tell, of any other all."""
    places = [*range(len(heads))]
    if is_traced(report) and rows:
        places = [place for place in places if any(row[place] != NOT_MEASURED for row in rows)]
    return [heads[place] for place in places], [[row[place] for place in places] for row in rows]


def _list_coverage(report: Report) -> str:
    facts = report.coverage
    lines = [
        f"{'complete' if facts.complete else 'partial'}: {len(facts.ranks_present):,} of {facts.world_size:,} ranks",
        f"{facts.steps_measured:,} steps measured, {facts.steps_warmup:,} of warm-up left out",
        *([] if is_traced(report) else [f"{facts.rows_lost:,} rows, {facts.segments_lost:,} segments lost"]),
        f"clocks: {', '.join(facts.clocks) or NOT_MEASURED}",
        *([] if is_traced(report) else [f"recording {describe_overhead(report.overhead)}"]),
        *([f"hosts' clocks {clocks}"] if (clocks := describe_clocks(report)) else []),
        *facts.sources,
        *(describe_stall(stall) for stall in report.stalls),
        *facts.notes[:MAX_NOTES],
    ]
    return f"<ul>{''.join(f'<li>{show(line)}</li>' for line in lines)}</ul>"


def _show_config(report: Report) -> str:
    return _show_lines(json.dumps(report.config, indent=2, default=str))


def _show_lines(text: str) -> str:
    """Several lines, each with its indentation."""
    lines = text[:100_000].splitlines()
    return "\n".join(" " * (len(line) - len(line.lstrip(" "))) + show(line) for line in lines)
