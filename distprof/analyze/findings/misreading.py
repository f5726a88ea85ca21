"""How could one misread these traces?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from distprof.analyze.findings.evidence import NO_DEVICE, NO_STEPS, Result, divide, name_some, say_untraced
from distprof.analyze.findings.wording import say_count, say_factor, say_name, say_share, say_time
from distprof.analyze.traced_time import measure_busy_ns, sum_all_steps_ns, sum_steps_ns
from distprof.facts.run import Run
from distprof.facts.trace_summary import TraceSummary
from distprof.report.trace_report import Figure, Finding, NotChecked

APART_RATIO = 0.1
"""Points by which one of two ranges leads on the host, and the other on the GPU: a tenth of the step."""
WARMUP_FACTOR = 1.2
"""By how much warm-up shifts a mean, or a share, before a ranking of ranges by it is another one."""
ERROR_RATIO = 0.05
"""Of the step: what warm-up must make of a range's share at least, for a conclusion to change."""
WHOLE_RATIO = 0.95
"""Of the step on the host: a range of that length, or one whose instances are as long, is the step, and no part."""
MAX_SHOWN = 5
NO_RANGES = "no named ranges were traced"


@dataclass(slots=True, kw_only=True)
class _Merged:
    """One range, all ranks together; times in ns."""

    name: str
    ranks: set[int]
    steps_ns: float = 0.0
    """Of the ranks that have the range, measured steps on the host; 0: not known."""
    all_steps_ns: float = 0.0
    """The same with warm-up steps."""
    num_steps: int = 0
    """Measured ones of the ranks that have the range."""
    work_ns: int = 0
    """Of the ranks that have the range and saw their device: computing and copying, collectives apart."""
    host_ns: int = 0
    gpu_ns: int | None = None
    """Collectives apart, which wait for other ranks more than they work."""
    count: int = 0
    warmup_count: int = 0
    warmup_ns: int = 0

    @property
    def host_ratio(self) -> float:
        """Of the steps on the host."""
        return divide(self.host_ns, self.steps_ns)

    @property
    def gpu_ratio(self) -> float:
        """Of everything that the devices worked on."""
        return divide(self.gpu_ns or 0, self.work_ns)

    @property
    def is_step(self) -> bool:
        """Whether it is as long as a step, as the steps' own ranges are and what wraps them."""
        instance_ratio = divide(divide(self.host_ns, self.count), divide(self.steps_ns, self.num_steps))
        return max(self.host_ratio, instance_ratio) >= WHOLE_RATIO

    @property
    def table_ratio(self) -> float:
        """What a table of all instances gives for `host_ratio`: warm-up in the range, and in the steps."""
        return divide(self.host_ns + self.warmup_ns, self.all_steps_ns)

    @property
    def mean_factor(self) -> float:
        """Mean over all instances, warm-up too, over the mean of the measured ones."""
        return divide((self.host_ns + self.warmup_ns) / (self.count + self.warmup_count), self.host_ns / self.count)

    @property
    def share_factor(self) -> float:
        """By how much a table of all instances overstates the share of the step."""
        return divide(self.table_ratio, self.host_ratio)

    @property
    def error_ratio(self) -> float:
        """How far off the range's share of the step is, or would be by a mean that is off."""
        by_mean = abs(1 - min(self.mean_factor, 1 / self.mean_factor)) * self.host_ratio
        return min(1.0, max(abs(self.table_ratio - self.host_ratio), by_mean))


def check_host_is_not_gpu(run: Run) -> Result:
    """Ranges of which one takes longer on the host, and another on the GPU."""
    rule = "host_is_not_gpu"
    ranges = _merge_ranges(run)
    if not any(part.count for part in ranges):
        return NotChecked(rule=rule, why=NO_RANGES)
    if not any(measure_busy_ns(item) for item in run.activity):
        return _judge_without_device(run, ranges)
    known = [
        part for part in ranges if part.gpu_ns is not None and part.steps_ns and part.work_ns >= max(part.gpu_ns, 1)
    ]  # what runs on behind the steps is no share of them
    if not known:
        steps = any(part.steps_ns for part in ranges)
        return NotChecked(rule=rule, why="what the ranges launched is not in the trace" if steps else NO_STEPS)
    swaps = _find_swaps([part for part in known if not part.is_step])
    if not swaps:
        return None
    long, short = swaps[0]
    concerned = {id(part): part for pair in swaps for part in pair}.values()
    return Finding(
        rule=rule,
        title=f"Host times rank ranges the other way round than GPU times: {long.name} is {say_share(long.host_ratio)} "
        f"of the step on the host and {say_share(long.gpu_ratio)} of GPU work (collectives apart), {short.name} "
        f"{say_share(short.host_ratio)} and {say_share(short.gpu_ratio)}",
        share_ratio=min(1.0, _measure_swap(long, short)),
        evidence=tuple(
            Figure(
                what=part.name,
                value=f"host {say_share(part.host_ratio)} of the step, GPU {say_share(part.gpu_ratio)} of its work",
                where=name_some(part.ranks),
            )
            for part in list(concerned)[:MAX_SHOWN]
        ),
        consequence="A range's host time is how long the host took to launch its work, or waited in it for room in the "
        "queue; a table of host times (nvtx_sum) ranks the launching, not the device's work.",
        remedy="Read the GPU times beside the host times under 'ranges', and judge what to make faster by them.",
    )


def _find_swaps(parts: list[_Merged]) -> list[tuple[_Merged, _Merged]]:
    """Pairs of which the first leads on the host, and the second on the GPU; those farthest apart first.

    Of two nested ranges the outer one leads on both.
    """
    long = [part for part in parts if part.host_ratio > APART_RATIO]
    heavy = [part for part in parts if part.gpu_ratio > APART_RATIO]
    pairs = [(first, second) for first in long for second in heavy if _measure_swap(first, second) > APART_RATIO]
    return sorted(pairs, key=lambda pair: -_measure_swap(*pair))


def _measure_swap(first: _Merged, second: _Merged) -> float:
    """The smaller of both leads; it is not positive where the ranges do not change places."""
    return min(first.host_ratio - second.host_ratio, second.gpu_ratio - first.gpu_ratio)


def _judge_without_device(run: Run, ranges: list[_Merged]) -> Result:
    if _is_cpu_job(run):
        return None
    if not any(_has_device(item) for item in run.activity):
        return NotChecked(rule="host_is_not_gpu", why=NO_DEVICE)
    return _say_host_only(run, ranges)


def _say_host_only(run: Run, ranges: list[_Merged]) -> Finding:
    largest = sorted(ranges, key=lambda part: -part.host_ns)[:MAX_SHOWN]
    return Finding(
        rule="host_is_not_gpu",
        title=f"The times and shares of all {len(ranges):,} ranges are host times only: {say_untraced(run, NO_DEVICE)}",
        share_ratio=1.0,
        evidence=tuple(
            Figure(
                what=part.name,
                value=f"{say_time(part.host_ns)} on the host"
                + (f", {say_share(part.host_ratio)} of the steps" if part.steps_ns else "")
                + "; GPU not known",
                where=name_some(part.ranks),
            )
            for part in largest
        ),
        consequence="Of a job on a GPU they are the time of launching and waiting, and say nothing of what the device "
        "worked on; of a job on the CPU they are the time itself."
        + (" Calls of the device's API were traced, so a GPU was in use." if _has_calls(run) else ""),
        remedy="If the job uses a GPU, capture its activity: nsys profile -t cuda,nvtx, or ProfilerActivity.CUDA.",
    )


def _is_cpu_job(run: Run) -> bool:
    """Whether the job itself said that it ran on the CPU: then host times are the times."""
    said = [info for info in run.ranks if info.source != "trace"]
    return bool(said) and all(info.device == "cpu" for info in said)


def _has_device(item: TraceSummary) -> bool:
    """Whether anything tells of a GPU: without that the host's times may be all there is."""
    head = item.head
    return item.calls_ns is not None or head.device_name is not None or "nccl" in (head.backend or "")


def _has_calls(run: Run) -> bool:
    return any(item.calls_ns is not None for item in run.activity)


def check_warmup_in_statistics(run: Run) -> Result:
    """Ranges whose mean or share of the step, by a table of all instances, is far from that of the measured ones."""
    rule = "warmup_in_statistics"
    if run.traced_rows is not None:  # a kernel window of our own, whose first step is dropped on purpose
        return None
    ranges = _merge_ranges(run)
    if not ranges:
        return NotChecked(rule=rule, why=NO_RANGES)
    if not any(item.num_steps for item in run.activity):
        return NotChecked(rule=rule, why=NO_STEPS)
    both = [part for part in ranges if part.count and part.warmup_count and part.host_ns and part.steps_ns]
    shifted = [
        part for part in both
        if part.error_ratio >= ERROR_RATIO and (_is_off(part.mean_factor) or _is_off(part.share_factor))
    ]  # fmt: skip
    if not shifted:
        return None
    shifted.sort(key=lambda part: -part.error_ratio)
    first = shifted[0]
    return Finding(
        rule=rule,
        title=f"Counting warm-up, {_say_error(first)}",
        share_ratio=first.error_ratio,
        evidence=tuple(_show_instances(part) for part in shifted[:MAX_SHOWN]),
        consequence=f"A table of all instances (nvtx_sum) misleads about {len(shifted):,} of {len(ranges):,} ranges: "
        "first calls allocate memory, choose algorithms and load kernels. The tables here leave warm-up out.",
        remedy="Compare measured instances only, or capture after the warm-up (launch/nsys.sh does).",
    )


def _is_off(factor: float) -> bool:
    return not 1 / WARMUP_FACTOR < factor < WARMUP_FACTOR


def _say_error(part: _Merged) -> str:
    if _is_off(part.share_factor):
        return (
            f"{part.name} comes out at {say_share(part.table_ratio)} of the step instead of "
            f"{say_share(part.host_ratio)} ({say_factor(part.share_factor)})"
        )
    return f"the mean of {part.name} comes out at {say_factor(part.mean_factor)} its value"


def _show_instances(part: _Merged) -> Figure:
    everything_ns, everything = part.host_ns + part.warmup_ns, part.count + part.warmup_count
    whole = f"all {say_count(everything)} instances {say_time(everything_ns)}, {say_share(part.table_ratio)} of a step"
    measured = f"the {say_count(part.count)} measured {say_time(part.host_ns)}, {say_share(part.host_ratio)}"
    mean = f"mean {say_factor(part.mean_factor)} that of the measured"
    return Figure(what=part.name, value=f"{whole}; {measured}; {mean}", where=name_some(part.ranks))


def _merge_ranges(run: Run) -> list[_Merged]:
    merged: dict[tuple[str, str], _Merged] = {}
    lacks_steps: dict[tuple[str, str], bool] = defaultdict(bool)
    for item in run.activity:
        steps_ns, all_steps_ns = sum_steps_ns(run, item), sum_all_steps_ns(run, item)
        work_ns = 0 if item.device is None else item.device.compute_ns + item.device.memory_ns
        for part in item.ranges:
            key = part.domain, part.name
            into = merged.setdefault(key, _Merged(name=say_name(part.name, part.domain), ranks=set()))
            into.ranks.add(item.rank)
            into.host_ns += part.host_ns
            into.count += part.count
            into.num_steps += item.num_steps
            into.warmup_count += part.warmup_count
            into.warmup_ns += part.warmup_host_ns
            into.steps_ns += steps_ns or 0.0
            into.all_steps_ns += all_steps_ns or 0.0
            lacks_steps[key] |= not steps_ns
            if part.gpu_ns is not None and part.count:
                into.gpu_ns = (into.gpu_ns or 0) + part.gpu_ns - (part.gpu_communication_ns or 0)
                into.work_ns += work_ns
    for key, whole in merged.items():
        if lacks_steps[key]:
            whole.steps_ns = 0.0  # the steps of some ranks are not the steps of all
    return list(merged.values())
