"""A job that hangs or hung: whom it waits for, in one sentence, and where all ranks stood."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.facts.rank_names import name_ranks
from distprof.render.section_types import Section, make_columns
from distprof.render.units import clean_text
from distprof.report.hang_report import HangReport, PendingReport, StandReport
from distprof.report.report import Report

MOST_RANGES = 8
MOST_TOLD = 3
"""Places of absent ranks that the sentence tells; the section has all."""
MAX_ROWS = 16
TEXT_LIMIT = 120
HEADS = ("ranks", "stood in", "waited in", "at", "called from")
_STATES = {
    "silent": "does not answer (stopped, or in code that never releases Python's lock)",
    "unknown": "does not answer (killed, stopped, or in code that never releases Python's lock)",
    "gone": "is gone (killed?)", "completed": "has left its training loop and completed", "failed": "failed",
    "terminated": "was terminated", "missing": "left no record",
}  # fmt: skip
_SEVERAL = (("does ", "do "), ("is ", "are "), ("was ", "were "), ("has ", "have "), (" its ", " their "))


def describe_hang(report: Report) -> str:
    """Which rank did not come to which collective, who waits for it, and where it stands. Empty: nothing hangs."""
    hang = report.hang
    if hang is None:
        return ""
    waiting = _name(hang.waiting)
    wait = "waits" if len(hang.waiting) == 1 else "wait"
    what = "" if hang.collective is None else _name_collective(hang.collective, hang.step, hang.inside)
    since = "" if hang.stalled_s is None else f"no step had ended for {hang.stalled_s:,.3g} s: "
    match hang.kind:
        case "absent":
            return f"{since}{_name(hang.absent)} did not come to {what}, which {waiting} {wait} for: {_tell(hang)}"
        case "circle":
            return f"{since}the ranks wait for each other: {waiting} {wait} in {what}, to which others do not come"
        case "mismatch":
            return (
                f"{since}the ranks are in different collectives ({_name_group(hang.collective)}): {_list_kinds(hang)}"
            )
        case "together":
            return f"{since}{waiting} {wait} in {what}, where nobody is missing: do sizes differ, or is it the link?"
    return f"{since}no rank is known to wait in a collective; they stand {_list_places(hang.stands)}"


def show_stands(report: Report) -> Section:
    """Where all ranks stood, those at the same place together."""
    places = () if report.hang is None else report.hang.stands
    rows = [
        (
            _name(place.ranks), _name_place(place), _name_waited(place), clean_text(place.where or "", TEXT_LIMIT),
            clean_text(" < ".join(frame for frame in place.stack if frame != place.where), 4 * TEXT_LIMIT),
        )
        for place in places[:MAX_ROWS]
    ]  # fmt: skip
    more = len(places) - MAX_ROWS
    return Section(
        key="stands", title="where ranks stood", columns=make_columns(HEADS, rows, HEADS, told_only=True),
        notes=() if more <= 0 else (f"and {more:,} more places, in report.json",),
    )  # fmt: skip


def _name(ranks: Sequence[int]) -> str:
    return clean_text(name_ranks(ranks, most=MOST_RANGES))


def _name_collective(pending: PendingReport, step: int | None, inside: bool) -> str:
    kind = clean_text(pending.kind, TEXT_LIMIT)
    if inside and pending.in_step is not None:
        kind = f"{kind} {pending.in_step} of step {step}"
    elif inside:
        kind = f"{kind} before step {step}"
    elif step is not None:
        kind = f"{kind} after step {step}"
    else:
        kind = f"{kind} before the first step"
    return f"{kind} ({_name_group(pending)})"


def _name_group(pending: PendingReport | None) -> str:
    if pending is None:
        return "an unknown group"
    return "default group" if pending.group == "default" else f"group {clean_text(pending.group, TEXT_LIMIT)}"


def _tell(hang: HangReport) -> str:
    """Where the absent ranks stand."""
    places = [place for place in hang.stands if {*place.ranks} & {*hang.absent}]
    alone = len(places) == 1
    told = [
        f"{'it' if alone and len(place.ranks) == 1 else 'they' if alone else _name(place.ranks)} {_describe(place)}"
        for place in places[:MOST_TOLD]
    ]
    more = len(places) - MOST_TOLD
    return "; ".join(told) + (f"; and {more} more places" if more > 0 else "")


def _describe(place: StandReport) -> str:
    several = len(place.ranks) > 1
    if place.state == "stands":
        at = "" if place.where is None else f", at {clean_text(place.where, TEXT_LIMIT)}"
        return f"{'stand' if several else 'stands'} {_name_step(place)}{at}"
    words = _STATES[place.state]
    if several:
        for one, many in (
            ("does ", "do "),
            ("is ", "are "),
            ("was ", "were "),
            ("has ", "have "),
            (" its ", " their "),
        ):
            words = words.replace(one, many, 1)
    return words + ("" if place.state == "missing" else f"; last seen {_name_step(place)}")


def _name_step(place: StandReport) -> str:
    if place.step is None:
        return "before the first step"
    if not place.inside:
        return f"after step {place.step}"
    return f"in step {place.step}" + (f", {clean_text(place.phase)}" if place.phase else "")


def _name_place(place: StandReport) -> str:
    step = _name_step(place)
    return step if place.state == "stands" else f"{step}: {place.state}"


def _name_waited(place: StandReport) -> str:
    return "" if place.pending is None else _name_collective(place.pending, place.step, place.inside)


def _list_kinds(hang: HangReport) -> str:
    waiting = {*hang.waiting}
    ranks: dict[str, list[int]] = {}
    for place in hang.stands:
        if place.pending is not None and {*place.ranks} & waiting:
            ranks.setdefault(_name_collective(place.pending, place.step, place.inside), []).extend(place.ranks)
    return ", ".join(f"{_name(each)} in {kind.rpartition(' (')[0]}" for kind, each in ranks.items())


def _list_places(stands: Sequence[StandReport]) -> str:
    told = [f"{_name_step(each)}, at {each.where or 'an unknown line'} ({_name(each.ranks)})" for each in stands]
    return clean_text("; ".join(told[:MOST_TOLD]), 6 * TEXT_LIMIT) + ("; ..." if len(told) > MOST_TOLD else "")
