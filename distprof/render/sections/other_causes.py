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
    last, only = told.saved_after_others_ratio.value, told.saved_if_only_this_ratio.value
    if last < HIDDEN_FACTOR * only or last - only < HIDDEN_RATIO:
        return []
    return [cause for cause in list_named(report.causes) if cause is not told]


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
        if not any(cause is item for item in said) and cause.joint_ns >= NOTABLE_RATIO * causes.step_ns
    ]  # fmt: skip
    return _say_rest(rest, causes.step_ns, more=report.verdict.kind is not VerdictKind.NONE) if rest else ""


def _say_rest(rest: list[CauseReport], step_ns: float, *, more: bool) -> str:
    cost = show_point(sum(cause.joint_ns for cause in rest) / step_ns, "of a step")
    largest = name_cause(max(rest, key=lambda cause: cause.joint_ns))
    if len(rest) == 1 and not more:
        return f"{largest[:1].upper()}{largest[1:]} costs {cost}"
    critical = sum(cause.critical for cause in rest)
    number = COUNTS[len(rest)].capitalize() if len(rest) < len(COUNTS) else f"{len(rest):,}"
    start = f"{number} {'more ' if more else ''}cause{'' if len(rest) == 1 else 's'}"
    if len(rest) == 1:
        return f"{start}{', critical,' if critical else ''} costs {cost}: {largest}"
    marked = f", {COUNTS[critical] if critical < len(COUNTS) else critical} of them critical," if critical else ""
    return f"{start}{marked} cost {cost} together, the largest {largest}"
