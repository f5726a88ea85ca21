"""All rules, and what they find in a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from distprof.analyze.traces.findings.attention import check_eager_attention
from distprof.analyze.traces.findings.evidence import Result, has_strange
from distprof.analyze.traces.findings.host_calls import check_copies_in_step, check_sync_in_step
from distprof.analyze.traces.findings.idle import check_exposed_communication, check_host_bound, check_launch_gaps
from distprof.analyze.traces.findings.matmul import check_fp32_matmul, check_matmul_share
from distprof.analyze.traces.findings.memory import check_memory_limit
from distprof.analyze.traces.findings.misreading import check_host_is_not_gpu, check_warmup_in_statistics
from distprof.analyze.traces.findings.older_kernels import check_older_kernels
from distprof.analyze.traces.findings.siblings import check_unlike_siblings
from distprof.analyze.traces.findings.small_kernels import check_small_elementwise
from distprof.facts.run import Run
from distprof.report.finding_report import Finding, Lack, NotChecked, RuleName


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule; `distprof.render.sections.rule_table` documents it, and `distprof.render.finding_texts` words what it
    finds."""

    name: RuleName
    check: Callable[[Run], Result]
    costs_time: bool = True
    """False: what it finds costs nothing, but makes the numbers misleading."""
    has_share: bool = True
    """False: what it finds is no part of the step's time."""


RULES: tuple[Rule, ...] = (
    Rule(name=RuleName.MATMUL_SHARE, check=check_matmul_share),
    Rule(name=RuleName.FP32_MATMUL, check=check_fp32_matmul),
    Rule(name=RuleName.EAGER_ATTENTION, check=check_eager_attention),
    Rule(name=RuleName.OLDER_KERNELS, check=check_older_kernels),
    Rule(name=RuleName.SMALL_ELEMENTWISE, check=check_small_elementwise),
    Rule(name=RuleName.HOST_BOUND, check=check_host_bound),
    Rule(name=RuleName.LAUNCH_GAPS, check=check_launch_gaps),
    Rule(name=RuleName.EXPOSED_COMMUNICATION, check=check_exposed_communication),
    Rule(name=RuleName.COPIES_IN_STEP, check=check_copies_in_step),
    Rule(name=RuleName.SYNC_IN_STEP, check=check_sync_in_step),
    Rule(name=RuleName.UNLIKE_SIBLINGS, check=check_unlike_siblings),
    Rule(name=RuleName.MEMORY_LIMIT, check=check_memory_limit, has_share=False),
    Rule(name=RuleName.HOST_IS_NOT_GPU, check=check_host_is_not_gpu, costs_time=False),
    Rule(name=RuleName.WARMUP_IN_STATISTICS, check=check_warmup_in_statistics, costs_time=False),
)
LEAST_RATIO = 0.01
"""Of the step: what touches less is not worth reading, whatever its rule counts."""
_NOT_UNDERSTOOD = {Lack.NO_DEVICE: Lack.DEVICE_NOT_UNDERSTOOD, Lack.NO_CALLS: Lack.CALLS_NOT_UNDERSTOOD}


def find_findings(run: Run) -> tuple[tuple[Finding, ...], tuple[NotChecked, ...]]:
    """What the rules find in a run with traces: findings in order, and the rules that lacked their data.

    What costs time comes first, then what makes the numbers misleading; in each the larger share of the step first.
    Findings that touch less than `LEAST_RATIO` are left out.
    """
    found: list[tuple[bool, float, int, Finding]] = []
    lacking: list[NotChecked] = []
    for index, rule in enumerate(RULES):
        result = rule.check(run)
        if isinstance(result, Finding):
            if result.share_ratio >= LEAST_RATIO or not rule.has_share:
                found.append((not rule.costs_time, -result.share_ratio, index, result))
        elif result is not None:
            strange = has_strange(run)
            lacking.append(replace(result, lack=_NOT_UNDERSTOOD.get(result.lack, result.lack)) if strange else result)
    return tuple(item[-1] for item in sorted(found, key=lambda item: item[:-1])), tuple(lacking)
