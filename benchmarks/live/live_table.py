"""Outcomes of the bench ``live`` in words: a line per job, and a Markdown table."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence

from benchmarks.live.live_job import LiveJob
from benchmarks.live.live_score import LiveOutcome, Named, holds_truth
from distprof.render.units import NOT_MEASURED, format_time

_HEADS = (
    "loop", "delay, of the step", "jobs", "rank and phase are right", "rank is right", "something is named", "critical",
    "cost known", "error of the cost", "interval holds",
)  # fmt: skip


def describe_job(job: LiveJob) -> str:
    """What was done to a job."""
    text = f"{job.loop}, {job.num_ranks} ranks"
    if job.delay is None:
        return f"{text}, nobody delayed"
    delay = job.delay
    often = "" if delay.every == 1 else f" every {delay.every} steps"
    if delay.stalls:
        often = f" in one of {delay.every} steps, at random"
    manner = "computes" if delay.spins else "sleeps"
    return f"{text}, {_show(job.size_ratio)}: rank {delay.rank} {manner} in {delay.place}{often}"


def describe_outcome(outcome: LiveOutcome) -> str:
    """One line: what was done, what it cost, and what the report said."""
    said = "; ".join(map(_describe_named, outcome.named)) or "nobody"
    if outcome.own:
        said += f"; of the loop itself: {'; '.join(map(_describe_named, outcome.own))}"
    if outcome.replay_ratio is not None:
        said += f"; replay off by {_show(outcome.replay_ratio, 2)}"
    if outcome.job.delay is None:
        return f"{describe_job(outcome.job)}: {'right' if outcome.is_right else 'FALSE ALARM'}, named: {said}"
    judgement = "right" if outcome.hit else "right rank" if outcome.rank_is_right else "WRONG"
    cost = NOT_MEASURED
    if outcome.cost is not None:
        low, high = (format_time(end) for end in (outcome.cost.low, outcome.cost.high))
        cost = f"{format_time(outcome.cost.value)} ({low} to {high})"
    hidden = ", hidden" if outcome.hidden else ""
    return f"{describe_job(outcome.job)}, costs {cost}{hidden}: {judgement}, named: {said}"


def tabulate_outcomes(outcomes: Sequence[LiveOutcome], failed: int) -> str:
    """A row per loop and size, and totals per size.

    Args:
        outcomes: Of all jobs that ended.
        failed: Number of jobs that did not.
    """
    lines = [f"| {' | '.join(_HEADS)} |", f"| {' | '.join(['---', *['---:'] * (len(_HEADS) - 1)])} |"]
    loops = [*dict.fromkeys(outcome.job.loop for outcome in outcomes), None]
    kinds = sorted({_name_kind(outcome.job) for outcome in outcomes})
    for loop, kind in itertools.product(loops, kinds):
        chosen = [
            each for each in outcomes if each.job.loop == (loop or each.job.loop) and _name_kind(each.job) == kind
        ]
        if chosen:
            lines.append(_write_row(loop or "all", kind[2], chosen))
    hidden = sum(outcome.hidden for outcome in outcomes)
    notes = [f"Left out: {hidden} jobs in which at most a quarter of the delay reached the step."] if hidden else []
    if replays := [outcome.replay_ratio for outcome in outcomes if outcome.replay_ratio is not None]:
        middle, worst = (_show(ratio, 2) for ratio in (statistics.median(replays), max(replays)))
        notes.append(f"Replay: off by {middle} of a step in the median of {len(replays)} jobs, {worst} in the worst.")
    if failed:
        notes.append(f"Failed: {failed} jobs, which did not end.")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _name_kind(job: LiveJob) -> tuple[bool, float, str]:
    """What tells kinds of jobs apart, in their order, and the name of this one."""
    name = _show(job.size_ratio) if job.size_ratio else "nobody"
    return job.stalls, job.size_ratio, f"{name}, in random steps" if job.stalls else name


def _write_row(loop: str, kind: str, outcomes: Sequence[LiveOutcome]) -> str:
    shown = [outcome for outcome in outcomes if not outcome.hidden]
    errors = [outcome.error_ratio for outcome in shown if outcome.error_ratio is not None]
    delayed = outcomes[0].job.delay is not None
    cells = [
        loop, kind, str(len(shown)),
        _share(outcome.hit for outcome in shown) if delayed else "",
        _share(outcome.rank_is_right for outcome in shown) if delayed else "",
        _share(bool(outcome.named) for outcome in shown),
        _share(any(item.critical for item in outcome.named) for outcome in shown),
        str(len(errors)) if delayed else "",
        (_show(statistics.median(errors)) if errors else NOT_MEASURED) if delayed else "",
        _share(held for held in map(holds_truth, shown) if held is not None) if delayed else "",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _describe_named(named: Named) -> str:
    answer = named.answer
    who = answer.kind.replace("_", " ") if answer.rank is None else f"rank {answer.rank}"
    what = "" if answer.phase is None else f" {answer.phase}"
    return f"{who}{what} {format_time(named.lost_ns)}{' critical' if named.critical else ''}"


def _share(answers: Iterable[bool]) -> str:
    values = list(answers)
    return _show(sum(values) / len(values)) if values else NOT_MEASURED


def _show(ratio: float, digits: int = 1) -> str:
    return f"{100 * ratio:.{digits}f} %"
