"""What to do about a verdict, in one sentence: what a person looks at next, and where."""

from __future__ import annotations

from distprof.render.finding_texts import describe_finding
from distprof.render.sections.cause_words import name_hosts
from distprof.render.sections.hangs import describe_hang
from distprof.render.units import clean_text
from distprof.report.report import Report
from distprof.report.wait_report import Cause, Verdict, VerdictKind

TEXT_LIMIT = 300
NOTABLE_RATIO = 0.05
"""Share of a step from which communication or jitter is worth an effort."""
_BY_CAUSE = {
    Cause.INPUT: "compare {who}'s input with the others': its storage, its loader's workers, the size of its samples",
    Cause.COMPUTE: "compare {who}'s clock rates, temperature and processes (distprof doctor)",
    Cause.HOST: "see what else runs on the processor of {who}, and launch less there (torch.compile, CUDA graphs)",
    Cause.GRADIENT_NORM: "compare what {who} clips with the others: parameters per rank, and syncs such as .item()",
    Cause.OPTIMIZER: "compare what {who}'s optimizer updates with the others: parameters per rank, fused or not",
    Cause.OUTSIDE: "look for code that only {who} runs inside the step: logging, .item(), garbage collection",
    Cause.EVALUATION: "let {who} evaluate less often, or all ranks share the evaluation",
    Cause.CHECKPOINT: "save checkpoints asynchronously or from all ranks; {who} saves while the others wait",
    Cause.LOGGING: "let {who} log less often, or on a thread",
    Cause.SPEED: "see what else runs on {who}'s cores; compare its clock rates and throttling (distprof doctor)",
    Cause.BETWEEN: "look at what {who} does between steps: loading, logging, garbage collection",
}  # fmt: skip


def describe_next(report: Report) -> str:
    """One sentence; empty where nothing is known that would help."""
    if describe_hang(report):
        return "look at the line where the absent ranks stand; py-spy dump --pid shows a process that still hangs"
    verdict = report.verdict
    if (named := _advise_named(report, verdict)) is not None:
        return named
    if report.activity is not None and report.activity.findings:
        return clean_text(describe_finding(report.activity.findings[0]).remedy, TEXT_LIMIT)
    if report.coverage.ranks_missing:
        return "find out why ranks are missing; their files under ranks/ and the launcher's output say how they ended"
    return _advise_unnamed(report)


def _advise_named(report: Report, verdict: Verdict) -> str | None:
    match verdict.kind:
        case VerdictKind.SLOW_RANK | VerdictKind.SLOW_HOST:
            who = f"host {name_hosts(verdict.hosts)}" if verdict.hosts else f"rank {verdict.rank}"
            if verdict.module is not None:
                return f"profile {clean_text(verdict.module.name)} on {who}, where most of the time is lost"
            text = None if verdict.cause is None else _BY_CAUSE.get(verdict.cause)
            return (text or "compare {who} with the others").format(who=who)
        case VerdictKind.SLOW_LINK:
            return (
                f"test the link by itself (nccl-tests, iperf) and look for other traffic: {name_hosts(verdict.hosts)}"
            )
        case VerdictKind.UNEQUAL_DATA:
            return (
                "give ranks equal amounts of data: bucket samples by length, or pack them to a fixed number of tokens"
            )
        case VerdictKind.STALLS:
            who = "all ranks" if verdict.rank is None else f"rank {verdict.rank}"
            return f"look at what {who} did in the steps that --details lists as stalls: checkpoints, logs, the data"
    return None


def _advise_unnamed(report: Report) -> str:
    costs = {} if report.causes is None else {
        cause.kind: cause.saved_if_only_this_ratio.value for cause in report.causes.causes
    }  # fmt: skip
    moving, jitter = costs.get(VerdictKind.COMMUNICATION, 0.0), costs.get(VerdictKind.JITTER, 0.0)
    if max(moving, jitter) >= NOTABLE_RATIO:
        if moving >= jitter:
            return "overlap or shrink communication: more micro-steps, other bucket sizes, bf16 gradients"
        return "look for what disturbs all ranks in turn: shared processors, the data's variation, garbage collection"
    phases = [phase for phase in report.phases if phase.clock == report.headline.clock and phase.share_ratio]
    if not phases:
        return ""
    largest = max(phases, key=lambda phase: phase.share_ratio or 0.0)
    how = "profile=kernels shows its kernels" if report.device_type == "cuda" else "profile=modules shows its modules"
    return f"make {largest.phase} faster, the largest phase; {how}"
