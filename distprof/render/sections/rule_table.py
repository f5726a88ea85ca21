"""The rules of the findings as the documentation lists them: what each looks at, from when it reports, and why."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.analyze.traces.findings import (
    attention,
    host_calls,
    idle,
    matmul,
    memory,
    misreading,
    older_kernels,
    siblings,
    small_kernels,
)
from distprof.render.units import format_time
from distprof.report.finding_report import RuleName
from distprof.traces.reduce.kernels import SMALL_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleText:
    """One row of the table."""

    looks_at: str
    threshold: str
    """From when it reports, and why then."""
    needs: str


def _percent(ratio: float) -> str:
    return f"{ratio * 100:g} %"


_DEVICE_AND_LAUNCHES = "device activity and the calls that launched it"

RULE_TEXTS: dict[RuleName, RuleText] = {
    RuleName.MATMUL_SHARE: RuleText(
        looks_at="share of matrix products, attention and convolutions in compute",
        threshold=f"below {_percent(matmul.LEAST_PRODUCTS_RATIO)}: everything else takes longer than they do "
        f"(not checked below {_percent(matmul.ANY_PRODUCTS_RATIO)}: the workload is of another kind)",
        needs="kernels whose names tell what they are for",
    ),
    RuleName.FP32_MATMUL: RuleText(
        looks_at="share of fp32 matrix products and convolutions in GPU time, on devices with tensor or matrix cores",
        threshold=f"{_percent(matmul.WORTH_RATIO)}: with less there is nothing to gain",
        needs="kernels whose names tell the precision; the device's name or capability, or kernels made for it",
    ),
    RuleName.EAGER_ATTENTION: RuleText(
        looks_at="share of softmax kernels in GPU time, without those of losses and of the choice of experts",
        threshold=f"{_percent(attention.WORTH_RATIO)}: fused attention saves them, and about as much in the products "
        "beside them",
        needs="kernels",
    ),
    RuleName.OLDER_KERNELS: RuleText(
        looks_at="share of matrix products in GPU time, without fp32, that run in kernels made for an older generation "
        "of devices",
        threshold=f"{_percent(older_kernels.WORTH_RATIO)}: with less there is nothing to gain",
        needs="kernels whose names tell what they were made for; the device's capability",
    ),
    RuleName.SMALL_ELEMENTWISE: RuleText(
        looks_at=f"element-wise kernels shorter than {format_time(SMALL_NS)}, which cost more to launch than to run",
        threshold=f"{small_kernels.MANY_PER_STEP} per step and {_percent(small_kernels.LAUNCH_RATIO)} of all launches, "
        f"if they take {_percent(small_kernels.TIME_RATIO)} of the step or the device waits for the host "
        f"{_percent(small_kernels.IDLE_RATIO)} of it: fewer change little",
        needs="kernels",
    ),
    RuleName.HOST_BOUND: RuleText(
        looks_at="share of the step in which the device is idle because the host has not launched what comes next, and "
        "what the host was in meanwhile: loading data, in calls that wait, in the optimizer, launching, or in nothing "
        "that the trace shows",
        threshold=f"{_percent(idle.IDLE_RATIO)}: a step varies by less than that anyway; from "
        f"{_percent(idle.MOST_RATIO)} of that time on, what the host was in is named as the cause",
        needs=_DEVICE_AND_LAUNCHES,
    ),
    RuleName.LAUNCH_GAPS: RuleText(
        looks_at="share of the step in which the device is idle although what comes next has been launched; how long "
        "such gaps are, and what ends the ten longest",
        threshold=f"{_percent(idle.IDLE_RATIO)}: as above",
        needs=_DEVICE_AND_LAUNCHES,
    ),
    RuleName.EXPOSED_COMMUNICATION: RuleText(
        looks_at="share of the step in which nothing but collectives runs, mean over ranks",
        threshold=f"{_percent(idle.IDLE_RATIO)}: as above",
        needs="device activity with collectives, more than one rank",
    ),
    RuleName.COPIES_IN_STEP: RuleText(
        looks_at="copies from the host inside the step; those from pageable memory separately",
        threshold=f"{_percent(host_calls.COPY_RATIO)} of the step: the token numbers of a batch take far less",
        needs="device activity and steps",
    ),
    RuleName.SYNC_IN_STEP: RuleText(
        looks_at="calls inside the step in which the host waits for the device",
        threshold=f"{host_calls.SYNCS_PER_STEP} per step and {_percent(host_calls.SYNC_RATIO)} of its time: nobody "
        "would notice less; ranked by how long the device then waits for the host, which is all it can cost",
        needs="API calls and steps",
    ),
    RuleName.UNLIKE_SIBLINGS: RuleText(
        looks_at="ranges whose names differ in one number only (layer_0, layer_1, ...): GPU time, else host time",
        threshold=f"{siblings.MIN_SIBLINGS} siblings or more; off their median by {_percent(siblings.APART_RATIO)} and "
        f"by more than {siblings.CHANCE[0]:g} + {siblings.CHANCE[1]:g}/n robust deviations, which chance does in fewer "
        f"than 1 of 100 families; at most {_percent(siblings.MAX_ODD_RATIO)} of them, or there are two kinds",
        needs="named ranges",
    ),
    RuleName.MEMORY_LIMIT: RuleText(
        looks_at="peak use of the device's memory",
        threshold=f"{_percent(memory.NEAR_RATIO)}: the CUDA context, NCCL and fragmentation take some percent more",
        needs="the device's memory and the allocator's peak",
    ),
    RuleName.HOST_IS_NOT_GPU: RuleText(
        looks_at="ranges' shares of the step on the host against their shares of the GPU's work without collectives",
        threshold=f"one range leads another by more than {misreading.APART_RATIO * 100:g} points on the host, and the "
        "other leads by as much on the GPU, so host times name the wrong one; or a GPU whose activity was not traced",
        needs="named ranges; steps",
    ),
    RuleName.WARMUP_IN_STATISTICS: RuleText(
        looks_at="ranges' shares of the step and means over all instances, against those over the measured ones",
        threshold=f"a factor of {misreading.WARMUP_FACTOR:g}, and {_percent(misreading.ERROR_RATIO)} of the step: from "
        "there on, a ranking of ranges changes",
        needs="named ranges; steps, some of them warm-up",
    ),
}


def write_table() -> str:
    """The rules as a Markdown table."""
    rows = [
        ("rule", "looks at", "reports from, and why", "needs"), ("---",) * 4,
        *((f"`{name}`", rule.looks_at, rule.threshold, rule.needs) for name, rule in RULE_TEXTS.items()),
    ]  # fmt: skip
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
