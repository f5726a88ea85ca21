"""All rules, and what they find in a run."""

from __future__ import annotations

from dataclasses import replace

from distprof.analyze.traces.findings import host, idle, kernels, products, ranges
from distprof.analyze.traces.findings.evidence import has_strange
from distprof.facts.run import Run
from distprof.report.finding_report import Finding, MissingData, NotChecked

RULES = (*products.RULES, *kernels.RULES, *idle.RULES, *host.RULES, *ranges.RULES)
LEAST_RATIO = 0.01
"""Share of the step: what concerns less is not worth reading, whatever its rule counts."""
_NOT_UNDERSTOOD = {
    MissingData.NO_DEVICE: MissingData.DEVICE_NOT_UNDERSTOOD,
    MissingData.NO_CALLS: MissingData.CALLS_NOT_UNDERSTOOD,
}


def check_rules(run: Run) -> tuple[tuple[Finding, ...], tuple[NotChecked, ...]]:
    """What the rules find in a run with traces: findings in order, and the rules that lacked their data.

    What costs time comes first, then what makes the numbers misleading; in each the larger share of the step first.
    Findings that concern less than `LEAST_RATIO` of the step are left out.
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
