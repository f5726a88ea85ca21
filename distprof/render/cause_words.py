"""Causes in words: their names, where and when they act, and the rows of their table."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.facts.run import Stretch
from distprof.render.units import clean_text, format_milliseconds, format_ratio, format_time
from distprof.report.report import Report
from distprof.report.wait_report import Cause, CauseReport, Causes, Estimate, Pattern, VerdictKind

CAUSES = {
    Cause.INPUT: "its input pipeline", Cause.COMPUTE: "its compute", Cause.HOST: "its host, which launches too slowly",
    Cause.GRADIENT_NORM: "its gradient norm", Cause.OPTIMIZER: "its optimizer",
    Cause.OUTSIDE: "work outside the phases", Cause.EVALUATION: "its evaluation",
    Cause.CHECKPOINT: "its saving of checkpoints", Cause.LOGGING: "its logging",
    Cause.BETWEEN: "its work between steps, outside profiler.step(), such as loading data or logging",
    Cause.NETWORK: "its network",
}  # fmt: skip
KINDS = {
    VerdictKind.SLOW_RANK: "slow rank", VerdictKind.SLOW_HOST: "slow host", VerdictKind.SLOW_LINK: "slow link",
    VerdictKind.UNEQUAL_DATA: "unequal data", VerdictKind.STALLS: "stalls",
    VerdictKind.COMMUNICATION: "communication", VerdictKind.JITTER: "jitter", VerdictKind.NONE: "nothing",
}  # fmt: skip
CAUSE_HEADS = ("cause", "where", "when", "late", "critical", "alone", "on top", "part, ms", "part")
CAUSE_NOTE = (
    "alone: how much shorter a step would be if only this were fixed; on top: the same once every other cause with a "
    "name is; the parts, the remainder and the ideal step add up to the step, with the time between steps"
)
NAME_LIMIT = 80
_UNNAMED = (VerdictKind.COMMUNICATION, VerdictKind.JITTER)
_WHERE = {
    Stretch.EVALUATION: "in evaluation", Stretch.CHECKPOINT: "while saving a checkpoint",
    Stretch.LOGGING: "while logging", Stretch.BETWEEN: "between steps",
}  # fmt: skip


def list_named(causes: Causes | None) -> list[CauseReport]:
    """The causes that somebody or something can be named for, the most expensive first."""
    return [] if causes is None else [cause for cause in causes.causes if cause.kind not in _UNNAMED]


def find_told(report: Report) -> CauseReport | None:
    """The cause that the verdict tells about, which is the first of its kind."""
    causes = () if report.causes is None else report.causes.causes
    return next((cause for cause in causes if cause.kind is report.verdict.kind), None)


def name_cause(cause: CauseReport, extra: str = "") -> str:
    """A few words: ``rank 5 (backward)``. ``extra`` stands behind the phase."""
    inside = " ".join(word for word in (cause.phase and clean_text(cause.phase), extra) if word)
    phase = f" ({inside})" if inside else ""
    if cause.kind is VerdictKind.SLOW_LINK:
        return name_link(cause.hosts)
    who = f"rank {cause.rank}" if cause.rank is not None else ""
    if cause.kind is VerdictKind.STALLS:
        return f"stalls of {who or 'no rank alone'}{phase}"
    if cause.kind is VerdictKind.SLOW_HOST and cause.hosts:
        who = f"host {clean_text(cause.hosts[0], NAME_LIMIT)}"
    late = cause.kind in (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST) and who
    return f"{who}{phase}" if late else KINDS[cause.kind]


def name_link(hosts: Sequence[str]) -> str:
    """A link by its ends."""
    names = [clean_text(host, NAME_LIMIT) for host in hosts]
    if not names:
        return "a link"
    return f"the link of {names[0]}" if len(names) == 1 else f"the link between {' and '.join(names)}"


def say_where(phase: str | None) -> str:
    """The phase or stretch, to stand behind a rank: ``in forward``; empty if it is not known."""
    if phase is None:
        return ""
    return next((words for stretch, words in _WHERE.items() if stretch == phase), f"in {clean_text(phase)}")


def find_ends(report: Report) -> tuple[int, int | None]:
    """The first and the last step in which a cause can act. Steps count from 0, and warm-up ones come first; a job that
    was resumed begins later, which costs no more than a wordier text. None: no step was recorded."""
    whole = next((cause for cause in report.causes.causes if cause.whole), None) if report.causes is not None else None
    if whole is not None:
        return whole.first_step, whole.last_step
    last = max((rank.last_step for rank in report.ranks if rank.last_step is not None), default=None)
    return report.coverage.steps_warmup + 1, last


def say_when(cause: CauseReport, report: Report) -> str:
    """Between which steps it acts; empty for a cause that always does."""
    if cause.whole:
        return ""
    first, last = find_ends(report)
    if cause.first_step <= first:
        return f"until step {cause.last_step:,}"
    if last is not None and cause.last_step >= last:
        return f"since step {cause.first_step:,}"
    if cause.first_step == cause.last_step:
        return f"at step {cause.first_step:,}"
    return f"from step {cause.first_step:,} to step {cause.last_step:,}"


def say_period(cause: CauseReport) -> str:
    """How regular stalls are: ``every 10th step``; empty if they are not, and for other causes."""
    return "" if cause.period is None else f"every {make_ordinal(cause.period)} step"


def make_ordinal(number: int) -> str:
    """``10th``, ``22nd``."""
    teens = number % 100 in (11, 12, 13)
    return f"{number:,}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def show_share(share: Estimate, what: str = "") -> str:
    """``19 % shorter (17 to 21 %)``; small shares get one more digit."""
    digits = 0 if share.value >= 0.1 else 1
    shown = (round(100 * number, digits) + 0.0 for number in (share.value, share.low, share.high))  # no -0.0
    value, low, high = (f"{number:.{digits}f}" for number in shown)
    told = f"{value} % {what}".rstrip()
    return told if low == high else f"{told} ({low} to {high} %)"


def show_point(share_ratio: float, what: str = "") -> str:
    """A share without an interval, with the digits of one that has one."""
    return show_share(Estimate(value=share_ratio, low=share_ratio, high=share_ratio), what)


def list_causes(report: Report) -> list[list[str]]:
    """A row per cause, then the remainder, the ideal step and the step, whose parts they are."""
    causes = report.causes
    if causes is None or causes.step_ns <= 0:
        return []
    rest = (("remainder", causes.remainder_ns), ("ideal step", causes.ideal_ns), ("step", causes.step_ns))
    return [
        *(_list_cause(cause, report, causes) for cause in causes.causes),
        *([name, *[""] * 6, *_show_part(part_ns, causes)] for name, part_ns in rest),
    ]


def _list_cause(cause: CauseReport, report: Report, causes: Causes) -> list[str]:
    named = cause.kind not in _UNNAMED
    what = KINDS[cause.kind]
    if cause.events is not None:
        what = "1 stall" if cause.events == 1 else f"{cause.events:,} stalls"
    return [
        what, _show_where(cause), _show_when(cause, report),
        "" if cause.late_ns is None else format_time(cause.late_ns), "yes" if cause.critical else "",
        show_share(cause.lost_ratio), show_point(cause.alone_ratio.value) if named else "",
        *_show_part(cause.joint_ns, causes),
    ]  # fmt: skip


def _show_where(cause: CauseReport) -> str:
    rank = [] if cause.rank is None else [f"rank {cause.rank}"]
    who = [" and ".join(clean_text(host, NAME_LIMIT) for host in cause.hosts)] if cause.hosts else rank
    phase = [] if cause.phase is None else [clean_text(cause.phase)]
    return ", ".join([*who, *phase]) or "all ranks"


def _show_when(cause: CauseReport, report: Report) -> str:
    if cause.period is not None:
        return say_period(cause)
    often = "some steps" if cause.pattern is Pattern.INTERMITTENT else "every step" if cause.whole else ""
    return ", ".join(text for text in (often, say_when(cause, report)) if text)


def _show_part(part_ns: float, causes: Causes) -> list[str]:
    return [format_milliseconds(part_ns), format_ratio(part_ns / causes.step_ns)]
