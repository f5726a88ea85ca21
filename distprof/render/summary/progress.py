"""A running job in words: how far it is, how fresh what is known of its ranks is, and what they do just now."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from distprof.facts.run import PHASES, name_ranks
from distprof.render.sections.ends import describe_ends
from distprof.render.sections.hangs import describe_hang
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.units import clean_text, format_age, format_milliseconds, format_steps, format_time
from distprof.report.progress import Progress, RankProgress
from distprof.report.report import Report

BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
STALE_S = 10.0
"""From so long without a step on, it is said; and where steps take long, from so many of them on."""
STALE_STEPS = 10.0
LEAST_RANGE = 0.25
FEW = 8
MOST_ENDS = 4
STANDS = "stands in step"
_SEVERITY = {"gone": 3, "failed": 2, "terminated": 1}
NAMES_LIMIT = 60


def describe_progress(progress: Progress) -> str:
    """``step 120 of 410, 105.2 ms a step, 31 s left``."""
    total = "" if progress.steps_total is None else f" of {progress.steps_total:,}"
    parts = [f"step {progress.steps_done:,}{total}"]
    if progress.interval_ns is not None:
        parts.append(f"{format_time(progress.interval_ns)} a step")
    if progress.eta_s is not None and not progress.over:
        parts.append(f"{format_age(progress.eta_s)} left")
    return ", ".join(parts)


def describe_freshness(progress: Progress) -> str:
    """How old the last rows are, and whose are the oldest; of ranks that have not ended."""
    ranks = _list_open(progress)
    if not ranks:
        return ""
    oldest = max(ranks, key=lambda rank: (rank.fresh_s, -rank.rank))
    latest = min(rank.fresh_s for rank in ranks)
    if is_stale(progress, latest) and not progress.over:
        text = f"no rank has ended a step for {format_age(latest)}"
    elif is_stale(progress, oldest.fresh_s):
        stale = [rank.rank for rank in ranks if is_stale(progress, rank.fresh_s)]
        text = f"{clean_text(name_ranks(stale, most=4), NAMES_LIMIT)}: no step for {format_age(oldest.fresh_s)}"
    else:
        text = f"last rows {format_age(oldest.fresh_s)} old or younger"
    missing = progress.world_size - len(progress.ranks)
    return text + (f"; {missing:,} of {progress.world_size:,} ranks have written nothing" if missing > 0 else "")


def is_stale(progress: Progress, fresh_s: float) -> bool:
    """Whether rows as old as this are conspicuous."""
    return fresh_s > max(STALE_S, STALE_STEPS * (progress.interval_ns or 0.0) / 1e9)


def describe_end(progress: Progress) -> str:
    """How the job ended, in a few words; empty while it runs."""
    if not progress.over:
        return ""
    by_state: dict[str, list[int]] = {}
    for rank in progress.ranks:
        by_state.setdefault(rank.state, []).append(rank.rank)
    if [*by_state] == ["completed"] and len(progress.ranks) == progress.world_size:
        return f"the job has completed {format_steps(progress.steps_done)}"
    words = {"gone": "gone without an end (killed?)", "unknown": "silent"}
    ends = [f"{clean_text(name_ranks(ranks, most=4))} {words.get(state, state)}" for state, ranks in by_state.items()]
    return f"the job has ended: {', '.join(ends)}"


def draw_times(progress: Progress, width: int, *, plain: bool) -> str:
    """Step times as bars, a column per step or, beyond the width, for the longest of a few.

    The lowest bar is the shortest time, and the highest what few exceed, at least `LEAST_RANGE` more: what every job
    varies by looks level.

    Args:
        progress: What is shown.
        width: Columns at most.
        plain: ASCII alone.
    """
    times_ns = progress.step_times_ns
    each = max(-(-len(times_ns) // max(width, 1)), 1)
    shown = [max(times_ns[at : at + each]) for at in range(len(times_ns) % each, len(times_ns), each)]
    if not shown:
        return ""
    bars, low_ns = PLAIN_BARS if plain else BARS, min(shown)
    range_ns = max(sorted(shown)[-1 - len(shown) // 20] - low_ns, LEAST_RANGE * low_ns, 1.0)
    return "".join(bars[min(int((time_ns - low_ns) / range_ns * len(bars)), len(bars) - 1)] for time_ns in shown)


def describe_times(progress: Progress) -> str:
    """What the bars span."""
    times_ns = progress.step_times_ns
    if not times_ns:
        return ""
    return f"{format_time(min(times_ns))} to {format_time(max(times_ns))} in the last {format_steps(len(times_ns))}"


def show_ranks(progress: Progress, most: int) -> Section:
    """Ranks by phases, means of the last steps; of more ranks than ``most`` a few, the worst first, and the median."""
    ranks, chosen = progress.ranks, choose_ranks(progress, most)
    codes = [code for code in range(len(PHASES)) if any(rank.phase_ns[code] for rank in ranks)]
    heads = ["ms", "step", "own", *(PHASES[code] for code in codes), "last step", "seen", STANDS]
    stale = any(is_stale(progress, rank.fresh_s) for rank in _list_open(progress)) and not progress.over
    rows = [
        [f"rank {rank.rank}", *_show_times(rank, codes), "" if rank.last_step is None else f"{rank.last_step:,}",
         _show_seen(rank), _show_place(rank) if stale else ""]
        for rank in chosen
    ]  # fmt: skip
    if len(chosen) < len(ranks):
        rows.append([f"median of {len(ranks):,}", *_show_median(ranks, codes), "", "", ""])
    columns = make_columns(heads, rows, (STANDS,))
    return Section(key="watch_ranks", title="", columns=columns if stale else columns[:-1])


def choose_ranks(progress: Progress, most: int) -> Sequence[RankProgress]:
    """All ranks, or of more than ``most`` a few, the worst first."""
    return progress.ranks if len(progress.ranks) <= most else _choose_worst(progress, min(most - 1, FEW))


def list_urgent(progress: Progress, report: Report) -> Sequence[str]:
    """How ranks ended, or whom the job waits for; while it runs, that is all that is urgent."""
    if progress.over:
        return describe_ends(report)[:MOST_ENDS]
    quiet = all(is_stale(progress, rank.fresh_s) for rank in progress.ranks)
    return [hang for hang in [describe_hang(report)] if hang and quiet]


def _show_times(rank: RankProgress, codes: Sequence[int]) -> list[str]:
    return [format_milliseconds(value) for value in (rank.step_ns, rank.own_ns, *(rank.phase_ns[at] for at in codes))]


def _show_median(ranks: Sequence[RankProgress], codes: Sequence[int]) -> list[str]:
    columns = zip(*((rank.step_ns, rank.own_ns, *(rank.phase_ns[at] for at in codes)) for rank in ranks), strict=True)
    known = [[value for value in column if value is not None] for column in columns]
    return [format_milliseconds(statistics.median(values) if values else None) for values in known]


def _show_place(rank: RankProgress) -> str:
    if rank.place is None:
        return ""
    return f"after {rank.place.step}" if not rank.place.inside else f"{rank.place.step}, {rank.place.phase or 'in it'}"


def _show_seen(rank: RankProgress) -> str:
    return f"{format_age(rank.fresh_s)} ago" if rank.state in ("running", "unknown") else rank.state


def _choose_worst(progress: Progress, most: int) -> list[RankProgress]:
    """Ranks that ended badly first, then silent ones, then those that take longest by themselves."""

    def badness(rank: RankProgress) -> tuple[int, float, float]:
        stale_s = rank.fresh_s if rank.state in ("running", "unknown") and is_stale(progress, rank.fresh_s) else 0.0
        return _SEVERITY.get(rank.state, 0), stale_s, rank.own_ns or 0.0

    return sorted(progress.ranks, key=badness, reverse=True)[:most]


def _list_open(progress: Progress) -> list[RankProgress]:
    return [rank for rank in progress.ranks if rank.state in ("running", "unknown")]
