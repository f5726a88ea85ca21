"""Causes in words: their names, where and when they act, and the rows of their table."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.facts.run import FORWARDS_ONLY, Clock, Phase, Stretch
from distprof.render.sections.cause_times import UNNAMED, format_period, format_when
from distprof.render.sections.rank_names import describe_pipeline_place, describe_place, name_rank
from distprof.render.units import clean_text, format_milliseconds, format_ratio, format_steps, format_time
from distprof.report.late_reasons import UnmarkedPlace
from distprof.report.loader_report import LoaderLimit, SlowLoader
from distprof.report.report import DATA_BETWEEN, Report
from distprof.report.scheduling_report import OffCpu, OffCpuReason
from distprof.report.wait_report import (
    Cause,
    CauseReport,
    Causes,
    Estimate,
    Pattern,
    Stall,
    Verdict,
    VerdictKind,
)

CAUSES = {
    Cause.INPUT: "its input pipeline", Cause.COMPUTE: "its compute", Cause.HOST: "its host, which launches too slowly",
    Cause.GRADIENT_NORM: "its gradient norm", Cause.OPTIMIZER: "its optimizer",
    Cause.OUTSIDE: "its time outside the recognised phases", Cause.CHECKPOINT: "its saving of checkpoints",
    Cause.EVALUATION: "its evaluation, or other forwards between steps", Cause.LOGGING: "its logging",
    Cause.FORWARDS: "its forwards without gradients between steps, such as rollouts",
    Cause.BETWEEN: "its work between steps, such as loading data or logging",
    Cause.OFF_CPU: "its training thread was off the CPU",
    Cause.NETWORK: "its network", Cause.SPEED: "its speed, which makes nearly all that it does longer in proportion",
}  # fmt: skip
KINDS = {
    VerdictKind.SLOW_RANK: "slow rank", VerdictKind.SLOW_HOST: "slow host", VerdictKind.SLOW_LINK: "slow link",
    VerdictKind.UNEQUAL_DATA: "unequal data", VerdictKind.UNEQUAL_SEQUENCES: "unequal sequences",
    VerdictKind.GARBAGE_COLLECTION: "Python's garbage collector", VerdictKind.RECOMPILATION: "compiling",
    VerdictKind.SLOW_LOADER: "slow data loader",
    VerdictKind.UNEVEN_STAGE: "uneven stage", VerdictKind.SLOW_REPLICA: "slow replica", VerdictKind.STALLS: "stalls",
    VerdictKind.COMMUNICATION: "communication", VerdictKind.JITTER: "jitter", VerdictKind.NONE: "nothing",
}  # fmt: skip
FIX_ONLY, FIX_LAST = "fix only this", "fix last"
CAUSE_HEADS = ("cause", "where", "when", "late", "critical", FIX_ONLY, FIX_LAST, "part, ms", "part")
CAUSE_NOTE = (
    "fix only this: step time saved by fixing this cause alone; fix last: saved by fixing it after all others with a "
    "name; then: of the steps in which it acts; the parts, the remainder and the ideal step add up to the step time, "
    "time between steps included"
)
NAME_LIMIT = 80
MAX_HOSTS = 4
NOTABLE_OTHERS_RATIO = 0.1
"""Of what a thread waits for a core: if others wait for as long, that is said, too."""
NOBODY = (*UNNAMED, VerdictKind.NONE)
"""Verdicts that name no rank, host, link or data."""
MAX_LARGER = 3
"""Causes without a name that come before one with a name in the sentence, or in its place."""
EVERY_RATIO = 0.8
"""Share of the steps in which a rank's own time must point at it for it to be late in every one; else it is in most."""
ONE_RANK = (VerdictKind.SLOW_RANK, VerdictKind.STALLS)
_WHERE = {
    Stretch.EVALUATION: "in evaluation", FORWARDS_ONLY: "in forwards without gradients",
    Stretch.CHECKPOINT: "while saving a checkpoint",
    Stretch.LOGGING: "while logging", Stretch.BETWEEN: "between steps",
}  # fmt: skip


def describe_off_cpu(off_cpu: OffCpu, inside: str, *, host: bool) -> str:
    """How long threads of ranks waited for a core, and why, if that is known; ``inside`` follows in the brackets."""
    whose = "its ranks' training threads were" if host else "its training thread was"
    text = f"{whose} off the CPU for {format_time(off_cpu.wait_ns)} of each step"
    if off_cpu.others_ns >= NOTABLE_OTHERS_RATIO * off_cpu.wait_ns:
        text += f", the others {format_time(off_cpu.others_ns)}"
    cores = "cores" if off_cpu.cores is None else f"{off_cpu.cores:,.3g} core{'' if off_cpu.cores == 1 else 's'}"
    of = "" if off_cpu.ranks == 1 else f" of {off_cpu.ranks:,} ranks"
    why = {
        OffCpuReason.THREADS: f"{off_cpu.threads or 0:,} threads{of} on {cores}",
        OffCpuReason.QUOTA: f"its cgroup's quota of {cores} is used up",
        OffCpuReason.STEAL: "other guests of its machine take its host's cores",
        OffCpuReason.OTHERS: f"other processes run on its {cores}", None: "",
    }[off_cpu.reason]  # fmt: skip
    brackets = "; ".join(words for words in (why, inside) if words)
    return f"{text} ({brackets})" if brackets else text


def describe_loader(loader: SlowLoader, whose: str) -> str:
    """What takes a loader so long: ``its 2 workers need 18.3 ms for a batch``."""
    if loader.batch_ns is None:
        return f"{whose} {count_workers(loader.workers)} do not have batches in time"
    took = format_time(loader.batch_ns)
    if not loader.workers:
        text = f"without workers, the training process needs {took} for a batch"
    else:
        text = f"{whose} {count_workers(loader.workers)} need{'s' * (loader.workers == 1)} {took} for a batch"
    if loader.collate_ns is not None and loader.collate_ns >= NOTABLE_OTHERS_RATIO * loader.batch_ns:
        text += f" ({format_time(loader.collate_ns)} of it to collate)"
    if loader.others_batch_ns is not None:
        text += f", the others {format_time(loader.others_batch_ns)}"
    elif round(loader.batches_per_step) > 1:
        text += f", of which a step takes {loader.batches_per_step:,.3g}"
    return text + {
        LoaderLimit.CORES: ", and the cores have no room for more workers",
        LoaderLimit.ORDER: f", and on average {loader.ready or 0:,.2g} others are ready when the next in order is not",
        LoaderLimit.PINNING: ", and batches wait to be copied into pinned memory",
    }.get(loader.limit or LoaderLimit.WORKERS, "")  # fmt: skip


def count_workers(workers: int) -> str:
    """``1 worker``, ``4 workers``."""
    return f"{workers:,} worker{'' if workers == 1 else 's'}"


def list_named(causes: Causes | None) -> list[CauseReport]:
    """The causes that somebody or something can be named for, the most expensive first."""
    return [] if causes is None else [cause for cause in causes.causes if cause.kind not in UNNAMED]


def look_up_verdict_cause(report: Report) -> CauseReport | None:
    """The cause that the verdict tells about."""
    verdict, causes = report.verdict, () if report.causes is None else report.causes.causes
    same = [cause for cause in causes if cause.kind is verdict.kind and cause.hosts == verdict.hosts]
    same = [cause for cause in same if cause.kind not in ONE_RANK or cause.rank == verdict.rank]
    return min(same, key=lambda cause: cause.phase != verdict.phase, default=None)


def name_often(verdict: Verdict) -> str:
    """In how many steps something acts that always does, as far as the rank's own time shows."""
    agrees = [item.agree_ratio for item in verdict.evidence[:1]]
    always = not agrees or agrees[0] >= EVERY_RATIO
    if verdict.round_steps > 1:
        return f"{'every round' if always else 'most rounds'} of {verdict.round_steps:,} steps"
    return "every step" if always else "most steps"


def name_cause(cause: CauseReport, extra: str = "", report: Report | None = None) -> str:
    """A few words: ``rank 5 (backward)``. ``extra`` stands behind the phase, and the rank's coordinates before it."""
    inside = " ".join(word for word in (name_part(cause), extra) if word)
    place = "" if report is None or cause.rank is None else describe_place(report, cause.rank)
    inside = "; ".join(words for words in (place, inside) if words)
    phase = f" ({inside})" if inside else ""
    if cause.rank is None and (stage := _place_in_pipeline(cause, report)):
        return f"{KINDS[cause.kind]} ({stage})"
    if cause.kind is VerdictKind.SLOW_LINK:
        return name_link(cause.hosts)
    who = f"rank {cause.rank}" if cause.rank is not None else ""
    if cause.kind is VerdictKind.STALLS:
        return f"stalls of {who or ('all ranks' if phase else 'no particular rank')}{phase}"
    if cause.kind is VerdictKind.SLOW_HOST and cause.hosts:
        who = f"host {clean_text(cause.hosts[0], NAME_LIMIT)}"
    late = cause.kind in (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST) and who
    return f"{who}{phase}" if late else KINDS[cause.kind]


def name_part(cause: CauseReport) -> str:
    """The phase or stretch in which time is lost, or its speed if that is nearly all of them; empty: not known."""
    if cause.cause is Cause.SPEED:
        return "speed"
    if cause.cause is Cause.OFF_CPU:
        return ", ".join(word for word in (clean_text(cause.phase or ""), "off the CPU") if word)
    return "" if cause.phase is None else clean_text(cause.phase)


def name_link(hosts: Sequence[str]) -> str:
    """A link by its ends, or a network by its hosts."""
    if len(hosts) == 1:
        return f"the link of {name_hosts(hosts)}"
    return f"the {'link' if len(hosts) == 2 else 'network'} between {name_hosts(hosts) or 'hosts'}"


def name_hosts(hosts: Sequence[str]) -> str:
    """A few hosts by their names, of many the number."""
    names = [clean_text(host, NAME_LIMIT) for host in hosts[:MAX_HOSTS]]
    if (more := len(hosts) - MAX_HOSTS) > 0:
        names.append(f"{more:,} more")
    return " and ".join(text for text in (", ".join(names[:-1]), *names[-1:]) if text)


def format_where(phase: str | None) -> str:
    """The phase or stretch, to stand behind a rank: ``in forward``; empty if it is not known."""
    if phase is None:
        return ""
    return next((words for stretch, words in _WHERE.items() if stretch == phase), f"in {clean_text(phase)}")


def describe_unmarked(place: UnmarkedPlace | None) -> str:
    """Between which phases it lies, to stand behind how long it is; empty if that is not known."""
    if place is None or (place.after is None and place.before is None):
        return ""
    after, before = (clean_text(phase or "") for phase in (place.after, place.before))
    if not after or not before:
        return f", before {before}" if before else f", after {after}"
    return f", between one {after} and the next" if after == before else f", between {after} and {before}"


def may_get_batches(report: Report) -> bool:
    """Whether what lies outside the phases, or between steps, may be a function of the loop's own that gets batches:
    ranks were seen to compute and not to take batches, and a forward pass follows, in no closure of an optimizer."""
    place = report.verdict.unmarked
    if place is not None and (place.before != Phase.FORWARD or place.after in (Phase.FORWARD, Phase.OPTIMIZER)):
        return False
    shares = [(phase.phase, phase.share_ratio) for phase in report.phases]
    parts = () if report.between is None else report.between.parts
    shares += [(Phase.DATA.value, part.share_ratio) for part in parts if "data" in part.part]
    seen = {name for name, share in shares if share is None or share >= NOTABLE_RATIO}
    return Phase.FORWARD in seen and Phase.DATA not in seen


def show_share(share: Estimate, what: str = "") -> str:
    """``19 % shorter (17 to 21 %)``; small shares get one more digit."""
    digits = 0 if share.value >= 0.1 else 1
    shown = (round(100 * number, digits) + 0.0 for number in (share.value, share.low, share.high))  # no -0.0
    value, low, high = (f"{number:.{digits}f}" for number in shown)
    text = f"{value} % {what}".rstrip()
    return text if low == high else f"{text} ({low} to {high} %)"


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


def is_partial(cause: CauseReport, report: Report) -> bool:
    """Whether it begins or ends within the run, so that it costs more in its steps than in the mean step."""
    return cause.stretch_saved_if_only_this_ratio is not None and bool(format_when(cause, report))


def _show_saved(cause: CauseReport, report: Report) -> tuple[str, str]:
    """What fixing only this saves, and fixing it last; of what begins or ends within the run, then: its part of the
    whole job stands beside."""
    only, last = cause.stretch_saved_if_only_this_ratio, cause.stretch_saved_after_others_ratio
    if only is None or last is None or not is_partial(cause, report):
        return show_share(cause.saved_if_only_this_ratio), show_point(cause.saved_after_others_ratio.value)
    return f"{show_share(only)} then", f"{show_point(last.value)} then"


def show_saved_beside(cause: CauseReport, report: Report) -> str:
    """What fixing only this saves, where nothing says what part of the whole job that is."""
    then = cause.stretch_saved_if_only_this_ratio
    if then is None or not is_partial(cause, report):
        return _show_saved(cause, report)[0]
    return f"{show_point(then.value)} then, {show_point(cause.saved_if_only_this_ratio.value)} in all"


def _list_cause(cause: CauseReport, report: Report, causes: Causes) -> list[str]:
    uneven = report.verdict.received is not None and cause is look_up_verdict_cause(report)
    what = "unequal experts" if uneven else KINDS[cause.kind]
    if cause.events is not None:
        what = "1 stall" if cause.events == 1 else f"{cause.events:,} stalls"
    place = [what, _show_where(cause, report), _show_when(cause, report)]
    if is_everybodys(cause):
        place = [name_part(cause), "all ranks", format_period(cause) or format_steps(cause.events or 0)]
    return [
        *place, "" if cause.late_ns is None else format_time(cause.late_ns), "yes" if cause.critical else "",
        *_show_saved(cause, report), *_show_part(cause.joint_ns, causes),
    ]  # fmt: skip


def is_everybodys(cause: CauseReport) -> bool:
    """Whether it is what all ranks do now and then between steps, such as an evaluation: far longer, and no stall."""
    return cause.kind is VerdictKind.STALLS and cause.rank is None and cause.phase is not None


def _show_where(cause: CauseReport, report: Report) -> str:
    who = name_hosts(cause.hosts) or ("" if cause.rank is None else name_rank(report, cause.rank))
    who = who or _place_in_pipeline(cause, report)
    return ", ".join(text for text in (who, name_part(cause)) if text) or "all ranks"


def _place_in_pipeline(cause: CauseReport, report: Report | None) -> str:
    """The stage or replica that it is about; empty: of no pipeline, or all over."""
    if cause.pipeline_cause is None or report is None or report.pipeline is None:
        return ""
    return describe_pipeline_place(report.pipeline.causes[cause.pipeline_cause])


def _show_when(cause: CauseReport, report: Report) -> str:
    often = format_period(cause)
    if cause.kind is VerdictKind.STALLS:
        often = often or (f"step {cause.first_step:,}" if cause.events == 1 else "single steps")
    elif cause.pattern is Pattern.INTERMITTENT:
        often = often or "some steps"
    always = name_often(report.verdict) if cause is look_up_verdict_cause(report) else "every step"
    return ", ".join(text for text in (often, format_when(cause, report)) if text) or always


def _show_part(part_ns: float, causes: Causes) -> list[str]:
    return [format_milliseconds(part_ns), format_ratio(part_ns / causes.step_ns)]


NOTABLE_RATIO = 0.0005
"""Causes below this share of a step would be counted as costing 0.0 %, and are not."""
HIDDEN_FACTOR, HIDDEN_RATIO = 2.0, 0.01
"""A cause is hidden by others if it costs this many times as much without them, and more by this share of a step."""
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def _list_partners(report: Report) -> list[CauseReport]:
    """The other causes with a name that hide most of what the verdict's costs; none if they do not."""
    verdict_cause = look_up_verdict_cause(report)
    if verdict_cause is None or not is_hidden(verdict_cause):
        return []
    return [cause for cause in list_named(report.causes) if cause is not verdict_cause]


def is_hidden(cause: CauseReport) -> bool:
    """Whether other causes hide most of what a cause costs."""
    last, only = cause.saved_after_others_ratio.value, cause.saved_if_only_this_ratio.value
    return last >= HIDDEN_FACTOR * only and last - only >= HIDDEN_RATIO


def format_shorter_steps(report: Report, lost: Estimate) -> str:
    """What fixing the verdict's cause does to steps: ``steps 19 % shorter``; if it begins or ends within the run,
    what it does to the steps in which it acts, and to the whole job."""
    verdict_cause, then = look_up_verdict_cause(report), report.verdict.stretch_lost_ratio
    if verdict_cause is None or then is None or not is_partial(verdict_cause, report) or _list_partners(report):
        return f"steps {format_gain(report, show_share(lost, 'shorter'))}"
    return f"these steps {show_share(then, 'shorter')}, and the whole job {show_point(lost.value)}"


def format_gain(report: Report, shorter: str) -> str:
    """What fixing the verdict's cause gains, and what it gains with those that hide it.

    Of two causes, both together save what one saves first and the other afterwards.
    """
    verdict_cause, partners = look_up_verdict_cause(report), _list_partners(report)
    if verdict_cause is None or not partners:
        return shorter
    if len(partners) == 1:
        other = partners[0].saved_after_others_ratio.value
        both = verdict_cause.saved_if_only_this_ratio.value + other
        stays = f"as long as {name_cause(partners[0], report=report)} stays as it is"
        return f"{shorter} {stays}; fixing both makes them {show_point(both, 'shorter')}"
    more = show_share(verdict_cause.saved_after_others_ratio)
    return f"{shorter} as long as the other causes stay, or {more} once they are fixed"


def list_larger(report: Report) -> list[CauseReport]:
    """The causes that no rank can be named for and that cost more than the verdict's, the largest first; all of them
    where the verdict names none."""
    verdict = report.verdict
    if report.causes is None or report.causes.step_ns <= 0 or verdict.lost_ratio is None:
        return []
    least, named = NOTABLE_RATIO, look_up_verdict_cause(report)
    if verdict.kind not in NOBODY:
        if named is None:
            return []
        least = max(named.saved_if_only_this_ratio.value, named.saved_after_others_ratio.value)
    costs = [
        (read_cost(report, cause).value, position) for position, cause in enumerate(report.causes.causes)
        if not has_name(cause) and (cause is not named or verdict.kind in NOBODY)
    ]  # fmt: skip
    larger = sorted((-cost, position) for cost, position in costs if cost > least)[:MAX_LARGER]
    return [report.causes.causes[position] for _, position in larger]


def has_name(cause: CauseReport) -> bool:
    """Whether a rank, host, link or the data is to blame for it."""
    return cause.kind not in UNNAMED and (cause.kind is not VerdictKind.STALLS or cause.rank is not None)


def read_cost(report: Report, cause: CauseReport) -> Estimate:
    """What a cause costs, as a share of a step: what fixing only this saves. A slow link is a part of what moving data
    costs, and beside it the rest counts."""
    rest = cause.kind is VerdictKind.COMMUNICATION and has_slow_link(report.causes)
    return cause.saved_after_others_ratio if rest else cause.saved_if_only_this_ratio


def has_slow_link(causes: Causes | None) -> bool:
    """Whether a slow link is among the causes."""
    return any(cause.kind is VerdictKind.SLOW_LINK for cause in list_named(causes))


def name_beside(report: Report, cause: CauseReport) -> str:
    """A cause that is not the verdict's: ``communication``, ``2 stalls of no particular rank``."""
    rest = "the rest of " * (cause.kind is VerdictKind.COMMUNICATION and has_slow_link(report.causes))
    number = "" if cause.events is None else f"{cause.events:,} "
    if is_everybodys(cause):
        return f"{name_part(cause)} of all ranks in {format_steps(cause.events or 0)}"
    name = name_cause(cause, report=report)
    name = name if cause.events != 1 else name.replace("stalls", "stall", 1)
    inside = _list_nobodys_stalls(report, cause)
    places = {(stall.rank, stall.phase) for stall in inside}
    if 1 < len(inside) == cause.events and len(places) == 1 and inside[0].rank is not None:
        where = format_where(inside[0].phase)
        return f"{number}stalls of {name_rank(report, inside[0].rank)}" + (f" ({where})" if where else "")
    if (longest := find_longest_stall(report, cause)) is not None:
        who, step = name_rank(report, longest.rank), f"step {longest.step:,}"
        name = f"stall ({who}, {step})" if cause.events == 1 else f"{name} (the longest, in {step}, is {who}'s)"
    return f"{rest}{number}{name}"


def find_longest_stall(report: Report, cause: CauseReport) -> Stall | None:
    """Of stalls that no rank, host or part has in common, the one that takes more than all others together, if one rank
    made that. None: there is none."""
    inside = _list_nobodys_stalls(report, cause)
    longest = max(inside, key=lambda stall: stall.lost_ns, default=None)
    if longest is None or longest.rank is None or 2 * longest.lost_ns <= sum(stall.lost_ns for stall in inside):
        return None
    return longest


def _list_nobodys_stalls(report: Report, cause: CauseReport) -> list[Stall]:
    """Those of a cause that no rank, host or part is to blame for; none of another cause."""
    if cause.kind is not VerdictKind.STALLS or cause.rank is not None or cause.hosts or cause.phase is not None:
        return []
    common = {item.phase for item in list_named(report.causes) if is_everybodys(item)}
    return [
        stall for stall in report.stalls
        if cause.first_step <= stall.step <= cause.last_step and (stall.rank is not None or stall.phase not in common)
    ]  # fmt: skip


def format_costs(costs: Sequence[tuple[str, Estimate]], most: str = "") -> str:
    """A clause: ``communication costs 59 % of a step (57 to 61 %), and jitter 19 % (17 to 21 %)``."""
    (first, share), *rest = costs
    verb = "cost" if " stalls" in first else "costs"
    text = f"{first} {verb} {most}{show_share(share, 'of a step')}"
    for position, (name, share) in enumerate(rest, start=1):
        text += f", {'and ' if position == len(rest) else ''}{name} {show_share(share)}"
    return text


def count_others(report: Report) -> str:
    """How many causes there are beside those in the sentence, and what the largest costs; empty if nothing."""
    causes, verdict_cause = report.causes, look_up_verdict_cause(report)
    if causes is None or causes.step_ns <= 0 or report.verdict.lost_ratio is None:
        return ""
    partners = _list_partners(report)
    said = [verdict_cause, *(partners if len(partners) == 1 else []), *list_larger(report)]
    if report.verdict.kind in NOBODY:
        said += [cause for cause in causes.causes if cause.kind is VerdictKind.JITTER]
    rest = [
        cause for cause in causes.causes
        if not any(cause is item for item in said)
        and (read_cost(report, cause).value >= NOTABLE_RATIO or is_hidden(cause))
    ]  # fmt: skip
    return _format_rest(report, rest) if rest else ""


def measure_data_share(report: Report) -> float:
    """Share of a step that ranks spend on getting batches, in the step or before it; 0 where that is not measured."""
    clock, between = report.headline.clock, report.headline.between_ratio or 0.0
    inside = [phase.share_ratio for phase in report.phases if (phase.phase, phase.clock) == (Phase.DATA, clock)]
    parts = () if report.between is None or clock != Clock.HOST else report.between.parts
    before = [part.share_ratio for part in parts if part.part == DATA_BETWEEN]
    return sum(share * (1 - between) for share in inside if share) + sum(share for share in before if share)


def _format_rest(report: Report, rest: list[CauseReport]) -> str:
    largest = max(rest, key=lambda cause: read_cost(report, cause).value)
    name, cost = name_beside(report, largest), show_share(read_cost(report, largest), "of a step")
    if is_hidden(largest):
        cost += f", or {show_point(largest.saved_after_others_ratio.value)} once the others are fixed"
    critical = sum(cause.critical for cause in rest)
    number = COUNTS[len(rest)].capitalize() if len(rest) < len(COUNTS) else f"{len(rest):,}"
    if len(rest) == 1:
        return f"{number} more cause{', critical,' if critical else ''} costs {cost}: {name}"
    marked = f", {COUNTS[critical] if critical < len(COUNTS) else critical} of them critical" if critical else ""
    return f"{number} more causes{marked}: the largest, {name}, costs {cost}"
