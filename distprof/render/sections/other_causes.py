"""What a verdict says of the causes beside the largest: how many there are, what they cost, and what they hide."""

from __future__ import annotations

from distprof.render.sections.cause_words import find_told, list_named, name_cause, show_point, show_share
from distprof.report.report import Report
from distprof.report.wait_report import CauseReport, VerdictKind

NOTABLE_RATIO = 0.0005
"""Causes below this share of a step would be counted as costing 0.0 %, and are not."""
HIDDEN_FACTOR, HIDDEN_RATIO = 2.0, 0.01
"""A cause is hidden by others if it costs this many times as much without them, and more by this share of a step."""
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def _find_partners(report: Report) -> list[CauseReport]:
    """The other causes with a name that hide most of what the told one costs; none if they do not."""
    told = find_told(report)
    if told is None:
        return []
    if not is_hidden(told):
        return []
    return [cause for cause in list_named(report.causes) if cause is not told]


def is_hidden(cause: CauseReport) -> bool:
    """Whether other causes hide most of what a cause costs."""
    last, only = cause.saved_after_others_ratio.value, cause.saved_if_only_this_ratio.value
    return last >= HIDDEN_FACTOR * only and last - only >= HIDDEN_RATIO


def say_gain(report: Report, shorter: str) -> str:
    """What fixing the told cause gains, and what it gains with those that hide it.

    Of two causes, both together save what one saves first and the other afterwards.
    """
    told, partners = find_told(report), _find_partners(report)
    if told is None or not partners:
        return shorter
    if len(partners) == 1:
        other = partners[0].saved_after_others_ratio.value
        both = told.saved_if_only_this_ratio.value + other
        stays = f"as long as {name_cause(partners[0])} stays as it is"
        return f"{shorter} {stays}; fixing both makes them {show_point(both, 'shorter')}"
    more = show_share(told.saved_after_others_ratio)
    return f"{shorter} as long as the other causes stay, and {more} more once they are fixed"


def count_others(report: Report) -> str:
    """How many causes there are beside the one told about, and what they cost together; empty if nothing."""
    causes, told = report.causes, find_told(report)
    if causes is None or causes.step_ns <= 0 or report.verdict.lost_ratio is None:
        return ""
    partners = _find_partners(report)
    said = [told, *(partners if len(partners) == 1 else [])]
    if report.verdict.kind is VerdictKind.NONE:
        said += [cause for cause in causes.causes if cause.kind is VerdictKind.JITTER]
    rest = [
        cause for cause in causes.causes
        if not any(cause is item for item in said) and measure_cost(cause) >= NOTABLE_RATIO
    ]  # fmt: skip
    return _say_rest(rest, more=report.verdict.kind is not VerdictKind.NONE) if rest else ""


def measure_cost(cause: CauseReport) -> float:
    """What a cause costs, as a share of a step: what fixing it alone saves or, where others hide it, fixing it last."""
    return (cause.saved_after_others_ratio if is_hidden(cause) else cause.saved_if_only_this_ratio).value


def _say_rest(rest: list[CauseReport], *, more: bool) -> str:
    largest = max(rest, key=measure_cost)
    name, cost = name_cause(largest), show_point(measure_cost(largest), "of a step")
    if len(rest) == 1 and not more:
        return f"{name[:1].upper()}{name[1:]} costs another {cost}"
    critical = sum(cause.critical for cause in rest)
    number = COUNTS[len(rest)].capitalize() if len(rest) < len(COUNTS) else f"{len(rest):,}"
    start = f"{number} {'more ' if more else ''}cause{'' if len(rest) == 1 else 's'}"
    if len(rest) == 1:
        return f"{start}{', critical,' if critical else ''} costs {cost}: {name}"
    marked = f", {COUNTS[critical] if critical < len(COUNTS) else critical} of them critical" if critical else ""
    return f"{start}{marked}: the largest, {name}, costs {cost}"
