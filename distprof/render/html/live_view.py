"""What the page of a running job shows, as texts and numbers for JSON."""

from __future__ import annotations

from distprof.facts.run import PHASES
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.progress import (
    choose_ranks,
    describe_end,
    describe_freshness,
    describe_progress,
    describe_times,
    list_urgent,
    show_ranks,
)
from distprof.render.summary.screen import describe_advice
from distprof.render.units import clean_text, format_age
from distprof.report.progress import Progress
from distprof.report.report import Report

MOST_RANKS = 64
MOST_TIMES = 250
"""Columns of the picture of step times; of more steps, each column is the longest of a few."""
TEXT_LIMIT = 300


def describe_live(progress: Progress, report: Report | None, *, report_age_s: float, problem: str) -> dict[str, object]:
    """What the page gets; bounded, however large the job is.

    Args:
        progress: How far the job is.
        report: The report so far. None: there is none yet.
        report_age_s: How old the report is.
        problem: What keeps the report from being made; empty: nothing.
    """
    ranks = show_ranks(progress, MOST_RANKS)
    chosen = choose_ranks(progress, MOST_RANKS)
    codes = [code for code in range(len(PHASES)) if any(rank.phase_ns[code] for rank in chosen)]
    bars = [[round(rank.phase_ns[code] or 0.0) for code in codes] for rank in chosen]
    rows = [list(row) for row in zip(*(column.cells for column in ranks.columns), strict=True)]
    times_ns = progress.step_times_ns
    each = -(-len(times_ns) // MOST_TIMES) or 1
    facts = [("done", describe_progress(progress)), ("ranks", describe_freshness(progress) or describe_end(progress))]
    judged = problem
    if report is not None and not problem:
        steps = report.coverage.steps_measured
        judged = f"judged by {steps:,} measured steps, {format_age(report_age_s)} ago"
    return {
        "title": f"{clean_text(progress.name)}: {progress.world_size:,} rank" + "s" * (progress.world_size != 1),
        "facts": [fact for fact in facts if fact[1]],
        "urgent": [] if report is None else list_urgent(progress, report),
        "verdict": "" if report is None else describe_verdict(report),
        "critical": report is not None and report.verdict.critical,
        "next": (describe_advice(report) if report is not None else "") or "",
        "judged": clean_text(judged, TEXT_LIMIT),
        "times": [round(max(times_ns[at : at + each])) for at in range(len(times_ns) % each, len(times_ns), each)],
        "span": describe_times(progress),
        "ranks": {
            "heads": [column.head for column in ranks.columns], "rows": rows,
            "phases": [PHASES[code] for code in codes],
            "bars": bars + [[0] * len(codes)] * (len(rows) - len(bars)),
        },
    }  # fmt: skip
