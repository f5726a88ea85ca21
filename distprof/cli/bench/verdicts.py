"""How often is the verdict right? Simulates jobs with a random slow rank, and as many without any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.analyze import analyze
from distprof.facts.run import Phase
from distprof.simulate import Delay, SimulatedJob, simulate

SLOWDOWNS = (0.0, 0.01, 0.02, 0.05, 0.10, 0.20)
PHASES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.OPTIMIZER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Results over many runs with the same slowdown."""

    strategy: str
    slowdown_ratio: float
    """Relative to the step; 0: no rank is delayed."""
    runs: int
    named: int
    """Runs in which a rank was named."""
    right: int
    """Runs in which the named rank and phase were the delayed ones."""
    lost_ratio: float | None
    """Mean real cost of the delay, relative to the step: jitter of the others hides a part. None: no delay."""
    error_ratio: float | None
    """Error of the lost time if the verdict was right: median |found - true| / true."""


def make_job(strategy: str, slowdown_ratio: float, draws: np.random.Generator) -> SimulatedJob:
    """8 ranks and 50 steps with 2 % of log-normal jitter on every phase, and one percent of each rank's steps three
    times as long; a random rank is delayed in a random phase."""
    assert strategy in ("ddp", "fsdp")
    plain = SimulatedJob(strategy="ddp" if strategy == "ddp" else "fsdp", tail_share_ratio=0.01)
    step_ns = sum(plain.phase_ns.values()) + plain.transfer_ns
    delay = Delay(rank=int(draws.integers(8)), phase=PHASES[draws.integers(5)], delay_ns=slowdown_ratio * step_ns)
    return SimulatedJob(
        strategy=plain.strategy, tail_share_ratio=plain.tail_share_ratio, delays=(delay,) if slowdown_ratio else ()
    )


def score_verdicts(
    strategy: str, slowdown_ratio: float, *, runs: int, seed: int = 0, tell: Callable[[int], None] = lambda done: None
) -> Score:
    """Simulates and analyses ``runs`` jobs.

    Args:
        strategy: "ddp" or "fsdp".
        slowdown_ratio: Relative to the step; 0: no rank is delayed.
        runs: The number of jobs.
        seed: Seed of the first job; the others count up.
        tell: Called after each job with the number of jobs done.
    """
    named, right, lost, errors = 0, 0, [], []
    for number in range(runs):
        job = make_job(strategy, slowdown_ratio, np.random.default_rng(seed + number))
        made = simulate(job, seed=seed + number, truth=slowdown_ratio > 0)
        verdict = analyze(made.run).verdict
        named += verdict.rank is not None
        true_ns = float((made.truth.step_ns - made.truth.without_delays_ns)[1:].mean())
        if job.delays:
            lost.append(true_ns / float(made.truth.step_ns[1:].mean()))
            if (verdict.rank, verdict.phase) == (job.delays[0].rank, job.delays[0].phase) and verdict.lost_ns:
                right += 1
                errors.append(abs(verdict.lost_ns.value - true_ns) / true_ns)
        tell(number + 1)
    return Score(
        strategy=strategy, slowdown_ratio=slowdown_ratio, runs=runs, named=named, right=right,
        lost_ratio=float(np.mean(lost)) if lost else None, error_ratio=float(np.median(errors)) if errors else None,
    )  # fmt: skip


def tabulate_scores(scores: Sequence[Score]) -> str:
    """The table as Markdown."""
    lines = [
        "| strategy | delay, of the step | it costs | a rank is named | rank and phase are right | error of the cost |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for score in scores:
        delayed = score.slowdown_ratio > 0
        lines.append(
            f"| {score.strategy} | {_show(score.slowdown_ratio) if delayed else 'nobody'} | {_show(score.lost_ratio)} "
            f"| {_show(score.named / score.runs)} | {_show(score.right / score.runs) if delayed else ''} "
            f"| {_show(score.error_ratio)} |"
        )
    return "\n".join(lines)


def _show(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.1f} %"
