"""What is known about the clocks of a job, in a line each."""

from __future__ import annotations

from distprof.facts.rank_names import name_ranks
from distprof.render.sections.cause_words import NAME_LIMIT
from distprof.render.sections.trace_rows import is_traced
from distprof.render.units import clean_text, format_excess, format_time
from distprof.report.report import Report

MAX_RANGES = 8
"""Ranges of ranks that are named."""


def describe_clocks(report: Report) -> str:
    """Offsets and bounds of the hosts' clocks; empty if all ranks share one clock."""
    apart = [clock for clock in report.clocks if clock.bound_ns > 0]
    shown = [
        f"{clean_text(clock.host, NAME_LIMIT)} {format_excess(clock.offset_ns)} (within {format_time(clock.bound_ns)})"
        for clock in apart[:8]
    ]
    more = f" and {len(apart) - 8:,} more" if len(apart) > 8 else ""
    first = report.ranks[0].rank if is_traced(report) else 0
    return f"against rank {first}: {', '.join(shown)}{more}" if shown else ""


def describe_device_clocks(report: Report) -> str:
    """How well times of the ranks' devices can be compared; empty if no device's clock was read with its host's."""
    read = [item for item in report.device_clocks if item.anchors]
    if not read:
        return ""
    known = {item.rank: item.bound_ns for item in read if item.bound_ns is not None}
    least = min(item.anchors for item in read)
    bound_ns = max(known.values()) if known else max(item.host_bound_ns or 0.0 for item in read)
    against = "rank 0's host clock" if known else "the clocks of their own hosts, which were not compared,"
    parts = [f"within {format_time(bound_ns)} of {against} by {least:,} or more readings of each"]
    drifts = [abs(item.drift_ratio) for item in read if item.drift_ratio is not None]
    if drifts:
        parts.append(f"drift up to {1e6 * max(drifts):.1f} ppm")
    checked = [item for item in report.device_clocks if item.agrees is not None]
    if checked:
        contrary = [item.rank for item in checked if not item.agrees]
        parts.append(f"ends of common collectives {'contradict' if contrary else 'agree'}")
        if contrary:
            parts[-1] += f" those of {name_ranks(contrary, most=MAX_RANGES)}"
    unknown = [item.rank for item in report.device_clocks if item.rank not in known]
    if known and unknown:
        parts.append(f"not known: {name_ranks(unknown, most=MAX_RANGES)}")
    return "; ".join(parts)
