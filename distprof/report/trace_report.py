"""Conclusions from traces, as parts of a report: where the devices' time went, by rank, kernel and range, and findings.

Times are ns on the traces' clocks, over the window that `distprof.facts.trace_summary` defines.
"""

from __future__ import annotations

import dataclasses

from distprof.report.finding_report import Finding, NotChecked
from distprof.report.wait_report import Spread


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """One rank's device: per step if ``steps`` is above 0, else over the whole trace."""

    rank: int
    source: str
    """The tool, and the name of the file."""
    steps: int
    span_ns: float
    """``compute``, ``memory`` and the four kinds of ``idle`` add up to the span."""
    compute_ns: float
    memory_ns: float
    idle_communication_ns: float
    idle_host_ns: float
    idle_launch_ns: float
    idle_unknown_ns: float
    unobserved_ns: float
    """Before the device's first kernels, when it may have worked unseen; not in the span. Over the whole trace."""
    communication_busy_ns: float
    overlap_ratio: float | None
    """Share of communication that ran beside compute. None: there was none."""
    queue_mean: float | None
    queue_max: int | None
    queue_empty_ratio: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CategoryReport:
    """Kernels of one category, all ranks together."""

    category: str
    count: int
    total_ns: float
    share_ratio: float
    """Share of the sum over all kernels and copies."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """One kernel, all ranks together."""

    name: str
    category: str
    precision: str | None
    count: int
    total_ns: float
    share_ratio: float
    min_ns: float
    max_ns: float
    max_rank: int
    """The rank with the largest total."""
    max_rank_ns: float
    """Its total."""
    ranks: int
    """Number of ranks on which it ran."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RangeReport:
    """One named range, all ranks together. Host time and GPU time are on two clocks: neither is part of the other."""

    domain: str
    name: str
    count: int
    host_ns: float
    host_exclusive_ns: float
    gpu_ns: float | None
    gpu_exclusive_ns: float | None
    gpu_over_host_ratio: float | None
    """Far below 1: the host was busy or waiting; far above 1: the device worked long after the range was closed."""
    host_share_ratio: float | None
    """Share of the host's step time. None: no steps are known, or it was open longer than all of them together."""
    host_share_with_warmup_ratio: float | None
    """The same as a table of all instances has it, with warm-up in both the range and the steps. None: no instance ran
    in warm-up, or such a table would have no share either."""
    gpu_share_ratio: float | None
    """Share of the GPU time of everything launched in the steps."""
    open_count: int
    warmup_count: int
    outside_count: int
    """Instances that begin after the first measured step began but in no step: between two steps, or after the last."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedModule:
    """One module, with the ranks side by side.

    *Self* is what runs outside of its submodules, *total* includes them, each in forward, backward and recomputation
    together. Host times are in operators, device times those of kernels and copies other than collectives; the two
    clocks stand side by side, and neither is part of the other. No rank in a spread: not measured.
    """

    name: str
    """Dotted, as in the unwrapped model, "" being the model itself; or as torch.profiler names it, such as Linear_0."""
    kind: str
    """Its class. Empty: everything, of which self is what runs in no module: the loss, the optimizer, gradients."""
    parent: int | None
    """Position of the module that holds it."""
    calls: Spread
    """Of forward, recomputation left out."""
    self_host_ns: Spread
    total_host_ns: Spread
    self_device_ns: Spread
    total_device_ns: Spread
    forward_host_ns: Spread
    """Of ``total_host_ns``; so are the next two."""
    backward_host_ns: Spread
    recomputed_host_ns: Spread
    """In forward that backward repeats."""
    forward_device_ns: Spread
    """Of ``total_device_ns``; so are the next two."""
    backward_device_ns: Spread
    recomputed_device_ns: Spread

    @property
    def likeness(self) -> tuple[object, ...]:
        """The same for modules that differ in their names and times only."""
        return self.kind, self.calls


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedModules:
    """The modules of the model as the traces show them."""

    ranks: tuple[int, ...]
    """The ranks whose traces tell modules apart."""
    per_step: bool
    """Whether figures are means per step. If not, they are sums over the whole traces, which have no steps."""
    rows: tuple[TracedModule, ...]
    """Each before its submodules. The first is everything."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WindowCheck:
    """One phase of a kernel window: as the rank measured it live, and as its trace shows it."""

    rank: int
    phase: str
    """Or "step"."""
    clock: str
    """The clock of both figures."""
    live_ns: float
    """Mean per step of the window."""
    trace_ns: float
    difference_ratio: float | None
    """(trace - live) / live. None: live is 0."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """The conclusions from the traces."""

    devices: tuple[DeviceReport, ...]
    """One per rank that has a trace with device activity, ascending."""
    categories: tuple[CategoryReport, ...]
    """Longest first."""
    kernels: tuple[KernelReport, ...]
    """Longest first; at most 100."""
    ranges: tuple[RangeReport, ...]
    """Longest host time first; at most 200."""
    modules: TracedModules | None
    """Self and total time by module. None: no trace tells modules apart."""
    findings: tuple[Finding, ...]
    """What costs time first, then what makes the numbers misleading; in each the largest share first."""
    not_checked: tuple[NotChecked, ...]
    window_checks: tuple[WindowCheck, ...]
    """Empty unless there are live phases and a kernel window of the same steps."""
