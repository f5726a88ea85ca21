"""Which host times of named ranges are easy to misread?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from distprof.analyze.traces.findings.evidence import (
    Result,
    Rule,
    divide,
    fits_steps,
    has_strange,
    measure_busy_ns,
    sum_steps_ns,
)
from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, RangeTotal, TraceSummary
from distprof.report.finding_report import EvidenceItem, Finding, MissingData, NotChecked

APART_RATIO = 0.1
"""By this much one of two ranges leads on the host, and the other on the GPU: a tenth of the step."""
UNLIKE_FACTOR = 1.2
"""Between the two shares of a range: with less, its host time does not mislead about it."""
HOST_ONLY = "host only"
"""Trait: there are host times only."""
NOT_UNDERSTOOD = "not understood"
"""Trait: the traces hold events that could not be interpreted."""
CALLS_TRACED = "calls traced"
"""Trait: the device's API was called."""
WHOLE_RATIO = 0.95
"""Of the step on the host: a range this long, or one whose instances are, is the step itself and not a part of it."""
MAX_SHOWN = 5


class _Merged(Struct, kw_only=True):
    """One range, all ranks together."""

    name: str
    ranks: set[int]
    loads: bool
    """Whether the range loads data: nobody expects that on the GPU."""
    steps_ns: float = 0.0
    """Measured steps on the host, of the ranks that have the range; 0: unknown, or the range outlasts them."""
    num_steps: int = 0
    """Measured steps of the ranks that have the range."""
    work_ns: int = 0
    """Computing and copying, without collectives, of the ranks that have the range and device activity."""
    host_ns: int = 0
    gpu_ns: int | None = None
    """Without collectives, which wait for other ranks more than they work."""
    count: int = 0

    @property
    def host_ratio(self) -> float:
        """Of the steps on the host."""
        return divide(self.host_ns, self.steps_ns)

    @property
    def gpu_ratio(self) -> float:
        """Of all the work of the devices."""
        return divide(self.gpu_ns or 0, self.work_ns)

    @property
    def is_unlike(self) -> bool:
        """Whether its share on the host is not its share on the GPU."""
        least, most = sorted((self.host_ratio, self.gpu_ratio))
        return most >= UNLIKE_FACTOR * least

    @property
    def is_step(self) -> bool:
        """Whether it is as long as a step: the step's own range, or one around it."""
        instance_ratio = divide(divide(self.host_ns, self.count), divide(self.steps_ns, self.num_steps))
        return max(self.host_ratio, instance_ratio) >= WHOLE_RATIO

    def make_figure(self, numbers: Mapping[str, float]) -> EvidenceItem:
        """Some of its numbers, under its name."""
        return EvidenceItem(label="range", name=self.name, ranks=tuple(sorted(self.ranks)), numbers=numbers)


def check_host_is_not_gpu(run: Run) -> Result:
    """Pairs of ranges of which one takes longer on the host and the other on the GPU."""
    rule = "host_is_not_gpu"
    ranges = _merge_ranges(run)
    if not any(part.count for part in ranges):
        return NotChecked(rule=rule, lack=MissingData.NO_RANGES)
    if not any(measure_busy_ns(item) for item in run.activity):
        return _judge_without_device(run, ranges)
    # work that runs on after the steps is no share of them
    known = [
        part for part in ranges if part.gpu_ns is not None and part.steps_ns and part.work_ns >= max(part.gpu_ns, 1)
    ]
    if not known:
        steps = any(part.steps_ns for part in ranges)
        return NotChecked(rule=rule, lack=MissingData.NO_RANGE_LAUNCHES if steps else MissingData.NO_STEPS)
    swaps = _list_swaps([part for part in known if part.is_unlike and not part.is_step and not part.loads])
    if not swaps:
        return None
    concerned = list({id(part): part for pair in swaps for part in pair}.values())
    return Finding(
        rule=rule,
        share_ratio=min(1.0, _measure_swap(*swaps[0])),
        ranks=_list_ranks(swaps[0]),
        ranks_checked=len(run.activity),
        figures=tuple(
            part.make_figure({"host_ratio": part.host_ratio, "gpu_ratio": part.gpu_ratio})
            for part in concerned[:MAX_SHOWN]
        ),
    )


def _list_ranks(parts: Iterable[_Merged]) -> tuple[int, ...]:
    return tuple(sorted({rank for part in parts for rank in part.ranks}))


def _list_swaps(parts: list[_Merged]) -> list[tuple[_Merged, _Merged]]:
    """Pairs of which the first leads on the host and the second on the GPU, the farthest apart first.

    Nested ranges make no pair: the outer one leads on both.
    """
    long = [part for part in parts if part.host_ratio > APART_RATIO]
    heavy = [part for part in parts if part.gpu_ratio > APART_RATIO]
    pairs = [(first, second) for first in long for second in heavy if _measure_swap(first, second) > APART_RATIO]
    return sorted(pairs, key=lambda pair: -_measure_swap(*pair))


def _measure_swap(first: _Merged, second: _Merged) -> float:
    """The smaller of the two leads; above 0 only where the ranges change places."""
    return min(first.host_ratio - second.host_ratio, second.gpu_ratio - first.gpu_ratio)


def _judge_without_device(run: Run, ranges: list[_Merged]) -> Result:
    if _is_cpu_job(run):
        return None
    if not any(_has_device(item) for item in run.activity):
        return NotChecked(rule="host_is_not_gpu", lack=MissingData.NO_DEVICE)
    traits = {HOST_ONLY: True, NOT_UNDERSTOOD: has_strange(run), CALLS_TRACED: _has_calls(run)}
    return Finding(
        rule="host_is_not_gpu",
        share_ratio=1.0,
        ranks=_list_ranks(ranges),
        ranks_checked=len(run.activity),
        facts={"ranges_count": len(ranges)},
        traits=tuple(trait for trait, holds in traits.items() if holds),
        figures=tuple(_measure_host(part) for part in sorted(ranges, key=lambda part: -part.host_ns)[:MAX_SHOWN]),
    )


def _measure_host(part: _Merged) -> EvidenceItem:
    numbers: dict[str, float] = {"host_total_ns": part.host_ns}
    if part.steps_ns:
        numbers["host_ratio"] = part.host_ratio
    return part.make_figure(numbers)


def _is_cpu_job(run: Run) -> bool:
    """Whether the job itself recorded that it ran on the CPU: then host times are all there is."""
    said = [info for info in run.ranks if info.source != "trace"]
    return bool(said) and all(info.device == "cpu" for info in said)


def _has_device(item: TraceSummary) -> bool:
    """Whether anything points to a GPU; if nothing does, host times may be all there is."""
    head = item.head
    return item.calls_ns is not None or head.device_name is not None or "nccl" in (head.backend or "")


def _has_calls(run: Run) -> bool:
    return any(item.calls_ns is not None for item in run.activity)


def _merge_ranges(run: Run) -> list[_Merged]:
    merged: dict[tuple[str, str], _Merged] = {}
    lacks_steps: dict[tuple[str, str], bool] = defaultdict(bool)
    for item in run.activity:
        steps_ns = sum_steps_ns(run, item)
        work_ns = 0 if item.device is None else item.device.compute_ns + item.device.memory_ns
        for part in item.ranges:
            key = part.domain, part.name
            into = merged.setdefault(key, _Merged(name=_name(part), ranks=set(), loads=part.loads))
            into.ranks.add(item.rank)
            into.host_ns += part.host_ns
            into.count += part.count
            into.num_steps += item.num_steps
            into.steps_ns += steps_ns or 0.0
            lacks_steps[key] |= not steps_ns
            if part.gpu_ns is not None and part.count:
                into.gpu_ns = (into.gpu_ns or 0) + part.gpu_ns - (part.gpu_communication_ns or 0)
                into.work_ns += work_ns
    for key, whole in merged.items():
        # the steps of some of the ranks are no base for a share over all, nor are steps that the range outlasts
        if lacks_steps[key] or not fits_steps(whole.host_ns, whole.count, whole.steps_ns):
            whole.steps_ns = 0.0
    return list(merged.values())


def _name(part: RangeTotal) -> str:
    return (f"{part.domain}:{part.name}" if part.domain else part.name)[:LONGEST_NAME]


RULES = (
    Rule(
        name="host_is_not_gpu",
        check=check_host_is_not_gpu,
        looks_at="ranges' shares of the step on the host against their shares of the GPU's work without collectives",
        threshold="one range leads another by more than {apart_ratio} of the step on the host, and the other leads "
        "by as much on the GPU, so host times name the wrong one; or a GPU whose activity was not traced",
        thresholds={"apart_ratio": APART_RATIO},
        needs="named ranges; steps",
        costs_time=False,
        traits=(
            HOST_ONLY,
            NOT_UNDERSTOOD,
            CALLS_TRACED,
        ),
    ),
)
