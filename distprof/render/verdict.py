"""The verdict in a sentence that a tired person understands, and the rows of the tables behind it."""

from __future__ import annotations

from distprof.render.trace_rows import is_traced
from distprof.render.units import clean_text, format_bytes, format_excess, format_number, format_ratio, format_time
from distprof.report.report import Report
from distprof.report.wait_report import Cause, Estimate, Pattern, Stall, Verdict, VerdictKind, WaitReport

CAUSES = {
    Cause.INPUT: "its input pipeline", Cause.COMPUTE: "its compute", Cause.HOST: "its host, which launches too slowly",
    Cause.GRADIENT_NORM: "its gradient norm", Cause.OPTIMIZER: "its optimizer",
    Cause.OUTSIDE: "work outside the phases", Cause.NETWORK: "its network",
}  # fmt: skip
NAME_LIMIT = 80
TEXT_LIMIT = 300


def describe_verdict(report: Report) -> str:
    """One sentence; empty for a job of one rank and for traces without steps."""
    verdict = report.verdict
    if report.world_size == 1 or not (report.steps or report.activity is None):
        return ""
    mark = "critical: " if verdict.critical else ""
    if verdict.kind in (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST):
        return mark + _describe_late(report, verdict)
    if verdict.kind is VerdictKind.SLOW_LINK:
        return mark + _describe_link(verdict)
    if verdict.lost_ratio is None:
        return f"no verdict: {clean_text(verdict.reason, TEXT_LIMIT)}"
    costs = f"waiting for the last rank costs {_show_share(verdict.lost_ratio, 'of a step')}"
    if verdict.kind is VerdictKind.JITTER:
        return f"nobody in particular: now one rank is late, now another; {costs}"
    return f"nobody holds the others up: {clean_text(verdict.reason, TEXT_LIMIT)}; {costs}"


def _describe_late(report: Report, verdict: Verdict) -> str:
    late = format_time(verdict.late_ns)
    assert verdict.cause is not None
    often = (
        "every step" if verdict.pattern is Pattern.PERSISTENT else f"{format_ratio(verdict.held_ratio)} of the steps"
    )
    excess = next((item.rank_ns - item.others_ns for item in reversed(verdict.evidence)), None)
    hosts = [clean_text(host, NAME_LIMIT) for host in verdict.hosts]
    own = [rank for rank in report.ranks if rank.host in verdict.hosts] if hosts else [None]
    name = f"host {hosts[0]} ({len(own)} ranks)" if hosts else f"rank {verdict.rank}"
    others = len(report.coverage.ranks_present) - len(own)
    who = "the other rank waits" if others == 1 else f"the other {others:,} wait"
    together = "" if others == 1 else " together"
    doubt = "" if verdict.confirmed else f" ({clean_text(verdict.reason, TEXT_LIMIT)})"
    told = f"{name} is {late} late in {often}: {CAUSES[verdict.cause]} ({verdict.phase} {format_excess(excess)})"
    if verdict.lost_ratio is None:
        return f"{told}, compared with the ranks present; what fixing it would gain is not known{doubt}"
    return (
        f"{told}; {who} {format_time(verdict.waited_ns)} per step{together}; "
        f"fixing it makes steps {_show_share(verdict.lost_ratio, 'shorter')}{doubt}"
    )


def _describe_link(verdict: Verdict) -> str:
    assert verdict.lost_ratio is not None and verdict.needed_ns is not None
    hosts = [clean_text(host, NAME_LIMIT) for host in verdict.hosts]
    where = f"the link of {hosts[0]}" if len(hosts) == 1 else f"the link between {' and '.join(hosts)}"
    return (
        f"{where} holds every rank up: {clean_text(verdict.reason, TEXT_LIMIT)}, and the data of a step needs "
        f"{format_time(verdict.needed_ns)} at the link's probed speed; "
        f"if moving data took no time, steps would be {_show_share(verdict.lost_ratio, 'shorter')}"
    )


def _show_share(share: Estimate, what: str = "") -> str:
    """``19 % shorter (17 to 21 %)``; small shares get one more digit."""
    digits = 0 if share.value >= 0.1 else 1
    shown = (round(100 * number, digits) + 0.0 for number in (share.value, share.low, share.high))  # no -0.0
    value, low, high = (f"{number:.{digits}f}" for number in shown)
    told = f"{value} % {what}".rstrip()
    return told if low == high else f"{told} ({low} to {high} %)"


def list_evidence(verdict: Verdict) -> list[list[str]]:
    """A row per sign: its name, the rank's time, the others', and in how many steps this sign alone agrees."""
    return [
        [clean_text(item.sign, NAME_LIMIT), format_time(item.rank_ns), format_time(item.others_ns),
         format_ratio(item.agree_ratio)]
        for item in verdict.evidence
    ]  # fmt: skip


def list_what_ifs(report: Report) -> list[list[str]]:
    """A row per change: its name, the resulting step, what is saved, tokens/s, rank-hours a day."""
    return [
        [clean_text(item.change, NAME_LIMIT), format_time(item.step_ns), _show_share(item.saved_ratio),
         format_number(item.tokens_per_s), "" if item.rank_hours_per_day is None else f"{item.rank_hours_per_day:,.1f}"]
        for item in report.what_if
    ]  # fmt: skip


def list_waits(report: Report) -> list[list[str]]:
    """A row per kind of collective, group and phase: count, bytes, the ranks' waits, transfer, and who arrives last."""
    return [
        [
            clean_text(f"{item.kind} in {item.phase}", NAME_LIMIT), clean_text(item.group, 24),
            str(item.count_per_step), format_bytes(item.bytes_per_step), _show_waits(item),
            format_time(item.transfer_ns), _show_last(report, item),
        ]
        for item in report.waits
    ]  # fmt: skip


def _show_waits(item: WaitReport) -> str:
    """From the shortest wait of a rank to the longest; n/a if the clocks may be off by more. If members are missing, it
    is a lower limit."""
    known = [value for value in item.wait_ns if value is not None]
    low, high = format_time(min(known, default=None)), format_time(max(known, default=None))
    shown = low if low == high else f"{low} to {high}"
    return f"at least {shown}" if item.members_missing and known else shown


def _show_last(report: Report, item: WaitReport) -> str:
    """Who arrived last most often, and how often; n/a if members are missing, since one of them may have been last."""
    if item.members_missing:
        members = item.members_missing + sum(value is not None for value in item.exposed_ns)
        return f"n/a: {item.members_missing:,} of {members:,} missing"
    known = [(value, -position) for position, value in enumerate(item.last_ratio) if value is not None]
    share, position = max(known, default=(0.0, 0))
    return f"rank {report.ranks[-position].rank}: {format_ratio(share)}" if share > 0 else "n/a"


def describe_stall(stall: Stall) -> str:
    """An unusually long step, in a sentence."""
    who = f"rank {stall.rank}, {stall.phase}" if stall.rank is not None else f"no rank alone was late ({stall.phase})"
    return f"step {stall.step} took {format_time(stall.lost_ns)} longer than usual: {who}"


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
