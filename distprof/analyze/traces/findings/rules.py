"""All rules, and what they find in a run."""

from __future__ import annotations

from msgspec.structs import replace

from distprof.analyze.traces.findings import host, idle, kernels, products, ranges
from distprof.analyze.traces.findings.evidence import Result, Rule, has_strange
from distprof.analyze.traces.findings.without_profiler import count_most_idle, remove_profiler
from distprof.facts.run import Run
from distprof.report.finding_report import Finding, MissingData, NotChecked

RULES = (*products.RULES, *kernels.RULES, *idle.RULES, *host.RULES, *ranges.RULES)
LEAST_RATIO = 0.01
"""Share of the step: what concerns less is not worth reading, whatever its rule counts."""
_NOT_UNDERSTOOD = {
    MissingData.NO_DEVICE: MissingData.DEVICE_NOT_UNDERSTOOD,
    MissingData.NO_CALLS: MissingData.CALLS_NOT_UNDERSTOOD,
}


def check_rules(run: Run, step_ns: float | None = None) -> tuple[tuple[Finding, ...], tuple[NotChecked, ...]]:
    """What the rules find in a run with traces: findings in order, and the rules that lacked their data.

    What costs time comes first, then what makes the numbers misleading; in each the larger share of the step first.
    Findings that concern less than `LEAST_RATIO` of the step are left out.

    Args:
        run: With traces.
        step_ns: Mean time from step to step without the profiler that made them. None: not known.
    """
    profiled = run
    if step_ns is not None:
        run = replace(run, activity=tuple(remove_profiler(item, step_ns) for item in run.activity))
    found: list[tuple[bool, float, int, Finding]] = []
    lacking: list[NotChecked] = []
    for index, rule in enumerate(RULES):
        result = rule.check(run)
        if idle.AT_MOST in rule.traits and run.activity != profiled.activity:
            result = _doubt(rule, result, run, profiled)
        if isinstance(result, Finding):
            if result.share_ratio >= LEAST_RATIO or not rule.has_share:
                found.append((not rule.costs_time, -result.share_ratio, index, result))
        elif result is not None:
            strange = has_strange(run)
            lacking.append(replace(result, lack=_NOT_UNDERSTOOD.get(result.lack, result.lack)) if strange else result)
    return tuple(item[-1] for item in sorted(found, key=lambda item: item[:-1])), tuple(lacking)


def _doubt(rule: Rule, result: Result, run: Run, profiled: Run) -> Result:
    """What a rule about idle time says of steps without the profiler: nothing, if only that made the device idle."""
    if isinstance(result, Finding):
        return replace(result, traits=(*result.traits, idle.AT_MOST))
    if result is None and isinstance(rule.check(profiled), Finding):
        most = max(count_most_idle(item.device) for item in run.activity if item.device is not None)
        return NotChecked(rule=rule.name, lack=MissingData.PROFILER, share_ratio=most)
    return result
