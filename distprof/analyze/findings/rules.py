"""All rules in one table: what each looks at, from when it speaks and why then, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from distprof.analyze.findings import host_calls, idle, memory, siblings, small_kernels
from distprof.analyze.findings import matmul as products
from distprof.analyze.findings import misreading as reading
from distprof.analyze.findings.evidence import NO_CALLS, NO_DEVICE, Result, say_untraced
from distprof.analyze.findings.wording import say_time
from distprof.facts.run import Run
from distprof.report.trace_report import Finding, NotChecked
from distprof.traces.reduce.kernels import SMALL_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule as the README's table has it."""

    name: str
    looks_at: str
    threshold: str
    """From when it speaks, and why then."""
    needs: str
    check: Callable[[Run], Result]
    costs_time: bool = True
    """False: what it finds costs nothing, and misleads whoever reads the numbers."""


def _percent(ratio: float) -> str:
    return f"{ratio * 100:g} %"


RULES: tuple[Rule, ...] = (
    Rule(
        name="matmul_share",
        looks_at="matrix products, attention and convolutions, of compute",
        threshold=f"below {_percent(products.LEAST_PRODUCTS_RATIO)}: what does not multiply takes longer than what "
        f"does (below {_percent(products.ANY_PRODUCTS_RATIO)}: no load of this kind)",
        needs="kernels whose names tell what they are for",
        check=products.check_matmul_share,
    ),
    Rule(
        name="fp32_matmul",
        looks_at="fp32 matrix products on devices with tensor or matrix cores, of GPU time",
        threshold=f"{_percent(products.WORTH_RATIO)}: with less there is nothing to gain",
        needs="kernels whose names tell the precision; the device's name or capability, or kernels made for it",
        check=products.check_fp32_matmul,
    ),
    Rule(
        name="small_elementwise",
        looks_at=f"element-wise kernels shorter than {say_time(SMALL_NS)}, which cost more to launch than to run",
        threshold=f"{small_kernels.MANY_PER_STEP} a step and {_percent(small_kernels.LAUNCH_RATIO)} of all launches, "
        f"where they run {_percent(small_kernels.TIME_RATIO)} of the step or the device waits for the host "
        f"{_percent(small_kernels.IDLE_RATIO)} of it: fewer change little",
        needs="kernels",
        check=small_kernels.check_small_elementwise,
    ),
    Rule(
        name="host_bound",
        looks_at="the device idle because the host has not launched what comes next, of the step",
        threshold=f"{_percent(idle.IDLE_RATIO)}: a step varies by less than that anyway",
        needs="device activity and the calls that launched it",
        check=idle.check_host_bound,
    ),
    Rule(
        name="launch_gaps",
        looks_at="the device idle though what comes next has been launched, of the step",
        threshold=f"{_percent(idle.IDLE_RATIO)}: as above",
        needs="device activity and the calls that launched it",
        check=idle.check_launch_gaps,
    ),
    Rule(
        name="exposed_communication",
        looks_at="time in which nothing but collectives runs, of the step, mean over ranks",
        threshold=f"{_percent(idle.IDLE_RATIO)}: as above",
        needs="device activity with collectives, more than one rank",
        check=idle.check_exposed_communication,
    ),
    Rule(
        name="copies_in_step",
        looks_at="copies from the host inside the step, of pageable memory apart",
        threshold=f"{_percent(host_calls.COPY_RATIO)} of the step: the token numbers of a batch take far less",
        needs="device activity and steps",
        check=host_calls.check_copies_in_step,
    ),
    Rule(
        name="sync_in_step",
        looks_at="calls inside the step in which the host waits for the device",
        threshold=f"{host_calls.SYNCS_PER_STEP} a step and {_percent(host_calls.SYNC_RATIO)} of its time: less than "
        "that nobody would notice; ranked by what the device then waits for the host, which is all it can cost",
        needs="API calls and steps",
        check=host_calls.check_sync_in_step,
    ),
    Rule(
        name="unlike_siblings",
        looks_at="ranges whose names differ in one number only (layer_0, layer_1, ...): GPU time, else host time",
        threshold=f"{siblings.MIN_SIBLINGS} siblings or more; off their median by {_percent(siblings.APART_RATIO)} and "
        f"by more than {siblings.CHANCE[0]:g} + {siblings.CHANCE[1]:g}/n robust deviations, which chance does in less "
        f"than 1 family in 100; not more than {_percent(siblings.MAX_ODD_RATIO)} of them, or they are of two kinds",
        needs="named ranges",
        check=siblings.check_unlike_siblings,
    ),
    Rule(
        name="memory_limit",
        looks_at="most memory in use, of the device's",
        threshold=f"{_percent(memory.NEAR_RATIO)}: context, NCCL and fragmentation take some percent on top",
        needs="the device's memory and the allocator's peak",
        check=memory.check_memory_limit,
    ),
    Rule(
        name="host_is_not_gpu",
        looks_at="ranges' shares of the step on the host against their shares of the GPU's work, collectives apart",
        threshold=f"one range leads another by more than {reading.APART_RATIO * 100:g} points on the host, and the "
        "other one as far on the GPU: then host times name the wrong one; or a GPU whose activity was not traced",
        needs="named ranges; steps",
        check=reading.check_host_is_not_gpu,
        costs_time=False,
    ),
    Rule(
        name="warmup_in_statistics",
        looks_at="ranges' shares of the step and means over all instances, against those over the measured ones",
        threshold=f"a factor of {reading.WARMUP_FACTOR:g}, and {_percent(reading.ERROR_RATIO)} of the step: from there "
        "a ranking of ranges changes",
        needs="named ranges; steps, some of them warm-up",
        check=reading.check_warmup_in_statistics,
        costs_time=False,
    ),
)


def find_findings(run: Run) -> tuple[tuple[Finding, ...], tuple[NotChecked, ...]]:
    """What the rules say of a run with traces: findings in order, and the rules that lacked their data.

    What costs time comes first, then what misleads; within each the larger share of the step first.
    """
    found: list[tuple[bool, float, int, Finding]] = []
    lacking: list[NotChecked] = []
    for place, rule in enumerate(RULES):
        result = rule.check(run)
        if isinstance(result, Finding):
            found.append((not rule.costs_time, -result.share_ratio, place, result))
        elif result is not None:
            said = result.why in (NO_DEVICE, NO_CALLS)
            lacking.append(replace(result, why=say_untraced(run, result.why)) if said else result)
    return tuple(item[-1] for item in sorted(found, key=lambda item: item[:-1])), tuple(lacking)


def write_table() -> str:
    """The rules as a Markdown table."""
    rows = [
        ("rule", "looks at", "speaks from, and why", "needs"), ("---",) * 4,
        *((f"`{rule.name}`", rule.looks_at, rule.threshold, rule.needs) for rule in RULES),
    ]  # fmt: skip
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
