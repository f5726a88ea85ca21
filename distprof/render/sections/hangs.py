"""A job that hangs or hung: whom it waits for, in one sentence, and where all ranks stood."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.facts.run import Phase
from distprof.render.sections.rank_names import name_rank, name_several
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.units import clean_text
from distprof.report.hang_report import HangReport, PendingReport, RankStateReport
from distprof.report.report import Report

MOST_RANGES = 8
MOST_LISTED = 3
"""Places of absent ranks in the sentence; the section has all."""
MAX_ROWS = 16
TEXT_LIMIT = 120
HEADS = ("ranks", "stood in", "waited in", "at", "called from")
_HOLDS = "does not answer, in code that does not release Python's lock"
_UNSAID = ("stopped", "silent", "unknown", "gone", "missing")
"""How far such a rank is in its collectives is not known: it may have come to this one, and not left it."""
_STATES = {
    "stopped": "is stopped (SIGSTOP, or a debugger)",
    "silent": "does not answer (stopped, or in code that never releases Python's lock)",
    "unknown": "does not answer (killed, stopped, or in code that never releases Python's lock)",
    "gone": "is gone (killed, aborted, or left by os._exit)", "failed": "failed",
    "completed": "has left its training loop and completed", "terminated": "was terminated",
    "missing": "left no record",
}  # fmt: skip
_SEVERAL = (("does ", "do "), ("is ", "are "), ("was ", "were "), ("has ", "have "), (" its ", " their "))


def describe_hang(report: Report) -> str:
    """Which rank did not come to which collective, who waits for it, and where it stands. Empty: nothing hangs."""
    hang = report.hang
    if hang is None:
        return ""
    waiting, absent, where = _name(report, hang.waiting), _name(report, hang.absent), _describe_absent(report, hang)
    wait = "waits" if len(hang.waiting) == 1 else "wait"
    what = "" if hang.collective is None else _name_collective(hang.collective, hang.step, hang.inside)
    begun = any(place.step is not None for place in hang.states)
    waited = "no step had ended" if begun else "before their first steps ranks had waited"
    since = "" if hang.stalled_s is None else f"{waited} for {hang.stalled_s:,.3g} s: "
    if hang.suspected:
        since = f"a hang is suspected: {since}"
    if hang.waited_s is not None:
        since = f"stopped after a wait of {hang.waited_s:,.3g} s: "
    match hang.kind:
        case "absent" if hang.message is not None:
            missing = "sent what {} waits to receive" if hang.message == "recv" else "received what {} sends"
            return f"{since}{absent} has not {missing.format(waiting)}: {where}"
        case "absent" if {place.state for place in _list_absent(hang)} & {*_UNSAID}:
            return f"{since}{waiting} {wait} for {absent} in {what}: {where}"
        case "absent":
            return f"{since}{absent} did not come to {what}, which {waiting} {wait} for: {where}"
        case "circle":
            return f"{since}the ranks wait for each other: {_list_waits(report, hang.states)}"
        case "mismatch":
            places = [place for place in hang.states if {*place.ranks} & {*hang.waiting}]
            return f"{since}the ranks are in different collectives: {_list_waits(report, places)}"
        case "together":
            return f"{since}{waiting} {wait} in {what}, and none is missing: do sizes differ, or is a link broken?"
    return f"{since}no rank is known to wait in a collective; they stand: {_list_places(report, hang.states)}"


def show_states(report: Report, most: int = MAX_ROWS) -> Section:
    """Where all ranks stood, those at the same place together; at most so many places."""
    places = () if report.hang is None else report.hang.states
    rows = [
        (
            _name(report, place.ranks), _name_place(place), _name_waited(report, place),
            clean_text(place.where or "", TEXT_LIMIT),
            clean_text(" < ".join(frame for frame in place.stack if frame != place.where), 4 * TEXT_LIMIT),
        )
        for place in places[:most]
    ]  # fmt: skip
    more = len(places) - most
    return Section(
        key="stands", title="where ranks stood", columns=make_columns(HEADS, rows, HEADS, non_empty_only=True),
        notes=() if more <= 0 else (f"and {more:,} more places, in report.json",),
    )  # fmt: skip


def _name(report: Report, ranks: Sequence[int]) -> str:
    return name_several(report, ranks, most=MOST_RANGES)


def _name_collective(pending: PendingReport, step: int | None, inside: bool) -> str:
    kind = clean_text(pending.kind, TEXT_LIMIT)
    if inside and pending.in_step is not None:
        kind = f"{kind} {pending.in_step} of step {step}"
        return f"{kind} ({_name_group(pending)})"
    if inside:
        kind = f"{kind} before step {step}"
    elif step is not None:
        kind = f"{kind} after step {step}"
    return f"{kind} (number {pending.number} of the {_name_group(pending)})"


def _name_group(pending: PendingReport | None) -> str:
    if pending is None:
        return "an unknown group"
    if pending.group == "default":
        return "default group"
    return f"group {clean_text(pending.group.removeprefix('group '), TEXT_LIMIT)}"


def _describe_absent(report: Report, hang: HangReport) -> str:
    """Where the absent ranks stand."""
    places = _list_absent(hang)
    alone = len(places) == 1
    it = "they" if alone and len(places[0].ranks) > 1 else "it"
    parts = [
        f"{it if alone else _name(report, place.ranks)} {_describe(report, place)}" for place in places[:MOST_LISTED]
    ]
    more = len(places) - MOST_LISTED
    return "; ".join(parts) + (f"; and {more} more places" if more > 0 else "")


def _list_absent(hang: HangReport) -> list[RankStateReport]:
    return [place for place in hang.states if {*place.ranks} & {*hang.absent}]


def _describe(report: Report, place: RankStateReport) -> str:
    several = len(place.ranks) > 1
    if place.state == "stands":
        message = f", {_name_message(report, place)}" if place.message is not None else ""
        return f"{'stand' if several else 'stands'} {_name_step(place)}{message}{_name_line(place)}"
    words = _HOLDS if place.where is not None and place.state in ("silent", "unknown") else _STATES[place.state]
    if place.error is not None:
        words = f"{words} with {clean_text(place.error, TEXT_LIMIT)}"
    if several:
        for one, many in _SEVERAL:
            words = words.replace(one, many, 1)
    return words + ("" if place.state == "missing" else f"; last seen {_name_step(place)}{_name_line(place)}")


def _name_step(place: RankStateReport) -> str:
    if place.step is None and not place.inside:
        return "before the first step"
    phase = "outside its phases" if place.phase == Phase.OTHER else clean_text(place.phase or "")
    return f"{'in' if place.inside else 'after'} step {place.step}" + (f", {phase}" if phase else "")


def _name_place(place: RankStateReport) -> str:
    step = _name_step(place)
    return step if place.state == "stands" else f"{step}: {place.state}"


def _name_waited(report: Report, place: RankStateReport) -> str:
    if place.message is not None:
        return _name_message(report, place)
    return "" if place.pending is None else _name_collective(place.pending, place.step, place.inside)


def _name_message(report: Report, place: RankStateReport) -> str:
    peer = "any rank" if place.peer is None else name_rank(report, place.peer)
    return f"{place.message} {'to' if place.message == 'send' else 'from'} {peer}"


def _name_line(place: RankStateReport) -> str:
    return "" if place.where is None else f", at {clean_text(place.where, TEXT_LIMIT)}"


def _list_waits(report: Report, places: Sequence[RankStateReport]) -> str:
    """What ranks wait in, and on which line."""
    ranks_by_line: dict[str, list[int]] = {}
    for place in places:
        if _name_waited(report, place):
            ranks_by_line.setdefault(f"{_name_waited(report, place)}{_name_line(place)}", []).extend(place.ranks)
    shown = [f"{_name(report, sorted(ranks))} in {what}" for what, ranks in ranks_by_line.items()]
    return "; ".join(shown[:MOST_LISTED]) + ("; ..." if len(shown) > MOST_LISTED else "")


def _list_places(report: Report, places: Sequence[RankStateReport]) -> str:
    parts = [
        f"{_name(report, each.ranks)} {_name_step(each)}{_name_line(each) or ', at an unknown line'}" for each in places
    ]
    return "; ".join(parts[:MOST_LISTED]) + ("; ..." if len(parts) > MOST_LISTED else "")
