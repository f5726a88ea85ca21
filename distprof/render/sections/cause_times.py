"""Causes in words: in which steps they act, as sentences and tables say it."""

from __future__ import annotations

import math

from distprof.render.units import make_ordinal
from distprof.report.report import Report
from distprof.report.wait_report import LASTING_KINDS, CauseReport, VerdictKind

UNNAMED = (VerdictKind.COMMUNICATION, VerdictKind.JITTER)
EDGE_RATIO = 0.02
"""Where a cause begins and ends is known to this share of the run."""
MOST_APART = 5
"""Mean distances that two of what comes now and then may lie apart by chance (1 %)."""
MIN_UNSEEN = 3
"""Steps that were not recorded before a cause was seen to act, or after it: fewer make no difference to when it began
or ended."""


def read_step_range(report: Report) -> tuple[int, int]:
    """The first and the last step in which a cause can act: those of jitter and communication, which always do, or
    those of the recorded steps. Steps count from 0, and warm-up ones come first; a job that was resumed begins later,
    which costs no more than a wordier text."""
    causes = () if report.causes is None else report.causes.causes
    always = next((cause for cause in causes if cause.kind in UNNAMED), None)
    if always is not None:
        return always.first_step, always.last_step
    last = max((rank.last_step for rank in report.ranks if rank.last_step is not None), default=0)
    return report.coverage.steps_warmup, last


def format_when(cause: CauseReport, report: Report) -> str:
    """Between which steps it acts, if it began or ended within the run: empty for a cause that always acts, or now
    and then all along."""
    if cause.whole or cause.kind not in (*LASTING_KINDS, VerdictKind.STALLS):
        return ""
    first, last = read_step_range(report)
    apart = cause.period or MOST_APART * (cause.last_step - cause.first_step) / (cause.events or math.inf)
    blur = 1 + max(EDGE_RATIO * (last - first), apart)
    begin = _name_step(cause.first_step, -cause.unseen_before)
    end = _name_step(cause.last_step, cause.unseen_after)
    if cause.first_step <= first + blur:
        return "" if cause.last_step >= last - blur else f"until {end}"
    if cause.last_step >= last - blur:
        return f"since {begin}"
    exact = max(cause.unseen_before, cause.unseen_after) < MIN_UNSEEN
    return f"from {begin} to {end}" if exact else f"since {begin}, until {end}"


def _name_step(step: int, unseen: int) -> str:
    """A step, or one of those before (below 0) or after it that were not recorded."""
    first, last = sorted((step, step + unseen))
    return f"a step from {first:,} to {last:,}" if abs(unseen) >= MIN_UNSEEN else f"step {step:,}"


def format_period(cause: CauseReport) -> str:
    """How regular stalls are, or the steps in which a rank is late: ``every 10th step``; empty if they are not."""
    return "" if cause.period is None else f"every {make_ordinal(cause.period)} step"
