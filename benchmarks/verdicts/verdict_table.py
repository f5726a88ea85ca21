"""Shows the scores of ``python -m benchmarks verdicts``, or a single job of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.simulate import Delay, Simulated, SimulatedJob
from benchmarks.verdicts.pipeline_outcome import judge_pipeline
from benchmarks.verdicts.verdict_outcome import Outcome, Said, judge, list_said, list_true, play
from benchmarks.verdicts.verdict_rows import AnyRow, PipelineRow
from benchmarks.verdicts.verdicts import Score
from distprof.facts.run import OWN_PHASES, PHASE_CODE, Clock
from distprof.render.sections.operations_sections import describe_pipeline

MS = 1_000_000


def tabulate_scores(scores: Sequence[Score], steps: Sequence[int]) -> str:
    """The tables as Markdown, one per group of rows."""
    groups = dict.fromkeys(score.row.group for score in scores)
    return "\n\n".join([*(_tabulate_group(group, scores, steps) for group in groups), *_sum_up(scores)])


def _sum_up(scores: Sequence[Score]) -> list[str]:
    """How often intervals hold the true cost, of all jobs together."""
    holds = [item.holds for score in scores for item in score.outcomes if item.holds is not None]
    return [f"Intervals of {len(holds):,} costs hold {_show(float(np.mean(holds)))} of the true ones."] if holds else []


def _tabulate_group(group: str, scores: Sequence[Score], steps: Sequence[int]) -> str:
    rows = [_tabulate(score, steps) for score in scores if score.row.group == group]
    return "\n".join([f"**{group[0].upper()}{group[1:]}**", "", *_head(steps), *rows])


def _head(steps: Sequence[int]) -> list[str]:
    names = [
        "jobs of", "jobs", "delay", "true cost", *(f"falsely named, {count} steps" for count in steps),
        *(f"right, {count} steps" for count in steps), "all listed", "interval holds", "cost off by",
        "cost off by, other rules",
    ]  # fmt: skip
    return ["| " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) - 1)]


def _tabulate(score: Score, steps: Sequence[int]) -> str:
    parts = [score.of_steps(count) for count in steps]
    delays = [ratio for item in score.outcomes for ratio in item.delay_ratios]
    blamed = [item for item in score.outcomes if item.blamed]
    cells = [
        score.row.name, str(len(score.outcomes)), _show_range(delays),
        _show(float(np.median([item.cost_ratio for item in blamed])) if blamed else None),
        *(_show(part.false_ratio) for part in parts), *(_show(part.right_ratio) for part in parts),
        _show(score.listed_ratio), _show(score.holds_ratio), _show(score.find_error("simple")),
        _show(score.find_error("shared")),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _show(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.1f} %"


def _show_range(ratios: list[float]) -> str:
    return f"{100 * min(ratios):.0f} to {100 * max(ratios):.0f} %" if ratios else ""


def list_wrong(scores: Sequence[Score]) -> str:
    """A line for each job that the report is wrong about, and how to see all of it."""
    wrong = [item for score in scores for item in score.outcomes if item.wrong]
    return "\n".join(
        f"--row {item.row} --seed {item.seed} --steps {item.num_steps} --show   {item.told}"
        for item in sorted(wrong, key=lambda item: (item.row, item.num_steps, item.seed))
    )


def show_job(row: AnyRow, seed: int, num_steps: int, *, whole: bool) -> str:
    """One job: whether the report is right about it and, on demand, its causes and their true costs, what the report
    says, and how late each rank is."""
    if isinstance(row, PipelineRow):
        return _show_pipeline(row, seed, num_steps, whole=whole)
    job, made, report = play(row, seed, num_steps)
    outcome = judge(row, seed, job, made, report)
    if not whole:
        return f"{_judge(outcome)}\n{outcome.told}"
    step_ns = float(made.truth.step_ns[1:].mean())
    where = f"{job.num_ranks} ranks on {job.num_hosts} hosts, {num_steps} steps of {step_ns / MS:.2f} ms"
    lines = [f"{row.name}, seed {seed}: {job.strategy}, {where}, {job.rules} rules", *_describe_job(job), ""]
    lines.append("True causes (ms per step, share of the step):")
    for cause in list_true(job, made):
        who = f"rank {cause.rank}" if cause.kind == "rank" else cause.host or ""
        lines.append(
            f"  {cause.kind:<5} {who:<9} {cause.phase or '':<14} costs {_cost(cause.lost_ns, step_ns)}, "
            f"alone {_cost(cause.alone_ns, step_ns)}"
        )
    lost_ns = float((made.truth.step_ns - made.truth.without_faults_ns)[1:].mean())
    lines.append(f"  all together {_cost(lost_ns, step_ns)}")
    lines += [
        "",
        f"Verdict: {_format_said(report.verdict)}",
        f"  {report.verdict.reason}",
        "",
        "Causes that the report lists:",
    ]
    lines += [f"  {_format_said(item)}" for item in list_said(report)]
    lines += ["", _judge(outcome), "", *_list_lateness(made)]
    return "\n".join(lines)


def _show_pipeline(row: PipelineRow, seed: int, num_steps: int, *, whole: bool) -> str:
    outcome, report = judge_pipeline(row, seed, num_steps)
    lines = [_judge(outcome), outcome.told]
    if whole:
        lines = [str(row.draw(seed, num_steps)), describe_pipeline(report), *map(str, report.causes), *lines]
    return "\n".join(lines)


def _describe_job(job: SimulatedJob) -> list[str]:
    plain = SimulatedJob()
    fields = (
        "num_buckets", "transfer_ns", "jitter_ratio", "autocorrelation", "speed_ratio", "speed_autocorrelation",
        "pareto_ratio", "tail_share_ratio",
        "token_spread_ratio", "data_between", "between", "slow_hosts", "slow_from_step", "shard_size",
    )  # fmt: skip
    told = [f"  {name} = {getattr(job, name)}" for name in fields if getattr(job, name) != getattr(plain, name)]
    return told + [f"  {_describe_delay(delay)}" for delay in job.delays]


def _describe_delay(delay: Delay) -> str:
    who = f"rank {delay.rank}" if delay.host is None else f"host-{delay.host}"
    parts = [f"delay: {who}, {delay.phase}, {delay.delay_ns / MS:+.2f} ms"]
    plain = Delay(rank=None, phase=delay.phase)
    names = ("factor", "first_step", "last_step", "every", "count", "share_ratio", "piece")
    parts += [f"{name} {getattr(delay, name)}" for name in names if getattr(delay, name) != getattr(plain, name)]
    return ", ".join(parts)


def _cost(cost_ns: float, step_ns: float) -> str:
    return f"{cost_ns / MS:.3f} ({100 * cost_ns / step_ns:.2f} %)"


def _format_said(said: Said) -> str:
    parts = [said.kind.value]
    parts += [] if said.rank is None else [f"rank {said.rank}"]
    parts += [word for word in (said.phase, ", ".join(said.hosts), said.pattern) if word]
    for name in ("late_ns", "lost_ns", "saved_if_only_this_ns", "saved_after_others_ns", "joint_ns"):
        value = getattr(said, name, None)
        if value is None:
            continue
        number = value if isinstance(value, float) else value.value
        interval = "" if isinstance(value, float) else f" [{value.low / MS:.3f}, {value.high / MS:.3f}]"
        parts.append(f"{name[:-3]} {number / MS:.3f}{interval}")
    for name in ("first_step", "last_step", "events", "period", "held_ratio"):
        if (value := getattr(said, name, None)) is not None:
            parts.append(f"{name} {value:.3g}")
    return ", ".join([*parts, "critical"] if said.critical else parts)


def _judge(outcome: Outcome) -> str:
    marks = {"large": outcome.large, "right": outcome.right, "listed": outcome.listed, "false": outcome.false}
    error = "" if outcome.error_ratio is None else f", cost off by {100 * outcome.error_ratio:.1f} %"
    return "Judged: " + ", ".join(f"{name}={mark}" for name, mark in marks.items()) + error


def _list_lateness(made: Simulated) -> list[str]:
    """Median own time of each rank in each phase less that of all ranks, ms: what a reader would look at first."""
    run = made.run
    own_ns = np.stack([run.phase_ns(Clock.HOST)[:, :, PHASE_CODE[phase]] for phase in OWN_PHASES], axis=2)
    own_ns = own_ns - np.nan_to_num(run.wait_ns(Clock.HOST))
    late_ns = np.median(own_ns - np.median(own_ns, axis=0), axis=1) / MS
    shown = np.argsort(-np.abs(late_ns).max(axis=1))[:8]
    head = "  ".join(f"{phase:>10}" for phase in OWN_PHASES)
    rows = [
        f"  {rank:>4}  " + "  ".join(f"{value:>10.3f}" for value in late_ns[rank]) for rank in sorted(shown.tolist())
    ]
    title = "Median of own time less the median rank's, ms (the eight ranks with the largest):"
    return [title, f"  rank  {head}", *rows]
