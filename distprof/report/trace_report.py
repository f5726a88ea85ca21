"""Conclusions from traces, as parts of a report: where the devices' time went, by rank, kernel and range, and findings.

Times are ns on the traces' clocks, over the window that `distprof.facts.trace_summary` defines.
"""

from __future__ import annotations

from msgspec import Struct

from distprof.report.finding_report import Finding, NotChecked
from distprof.report.wait_report import Spread


class DeviceReport(Struct, frozen=True, kw_only=True):
    """One rank's device: per step if ``steps`` is above 0, else over the whole trace."""

    rank: int
    """The global rank."""
    source: str
    """The tool, and the name of the file."""
    steps: int
    """Measured steps in the trace, by which the times are divided; 0: none are known, and the times are of the whole
    trace."""
    span_ns: float
    """``compute``, ``memory`` and the four kinds of ``idle`` add up to the span."""
    compute_ns: float
    """Union of the kernels that are not collectives."""
    memory_ns: float
    """Copies and memsets while nothing computed."""
    idle_communication_ns: float
    """Only collectives ran: exposed communication."""
    idle_host_ns: float
    """Nothing ran because the host was late: the next activity had not been launched."""
    idle_launch_ns: float
    """Nothing ran although the next activity had been launched: launch latency and dependencies."""
    idle_unknown_ns: float
    """Nothing ran, and the trace has no next activity or not its launch."""
    unobserved_ns: float
    """Before the device's first kernels, when it may have worked unseen; not in the span. Over the whole trace."""
    communication_busy_ns: float
    """Union of the collectives, exposed or not."""
    overlap_ratio: float | None
    """Share of communication that ran beside compute. None: there was none."""
    queue_mean: float | None
    """Activities launched and not finished, mean over time. None: no launch is known."""
    queue_max: int | None
    """The most of them at any time. None: no launch is known."""
    queue_empty_ratio: float | None
    """Share of the time in which no launched activity was unfinished. None: no launch is known."""


class CategoryReport(Struct, frozen=True, kw_only=True):
    """Kernels of one category, all ranks together."""

    category: str
    """What the kernels are for, according to their names."""
    count: int
    """How many ran."""
    total_ns: float
    """Their summed device time."""
    share_ratio: float
    """Share of the sum over all kernels and copies."""


class KernelReport(Struct, frozen=True, kw_only=True):
    """One kernel, all ranks together."""

    name: str
    """The kernel's name, cut after 1000 characters; in parentheses, the sum of rarer ones."""
    category: str
    """What the kernel is for, according to its name."""
    precision: str | None
    """Of matrix products and attention, such as "fp32", "tf32", "bf16". None: another kernel, or not in its name."""
    count: int
    """How often it ran."""
    total_ns: float
    """Its summed device time."""
    share_ratio: float
    """Of the sum over all kernels and copies of all ranks."""
    min_ns: float
    """The shortest one."""
    max_ns: float
    """The longest one."""
    max_rank: int
    """The rank with the largest total."""
    max_rank_ns: float
    """The total of that rank."""
    ranks: int
    """Number of ranks on which it ran."""


class RangeReport(Struct, frozen=True, kw_only=True):
    """One named range, all ranks together. Host time and GPU time are on two clocks: neither is part of the other."""

    domain: str
    """The NVTX domain; empty is the default one."""
    name: str
    """The range's name, cut after 1000 characters."""
    count: int
    """Instances in the measured time that were closed; the times are theirs."""
    host_ns: float
    """How long it was open on the host, summed."""
    host_exclusive_ns: float
    """The same less the ranges nested in it."""
    gpu_ns: float | None
    """Device time of everything launched in it, nested ranges included. None: not known."""
    gpu_exclusive_ns: float | None
    """Device time of what was launched in it and in no range nested in it. None: not known."""
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
    """Instances that were never closed; not in any sum."""
    warmup_count: int
    """Instances before the first measured step; not in any sum."""
    outside_count: int
    """Instances that begin after the first measured step began but in no step: between two steps, or after the last."""


class TracedModule(Struct, frozen=True, kw_only=True):
    """One module, with the ranks side by side.

    *Self* is what runs outside of its submodules, *total* includes them, each in forward, backward and recomputation
    together. Host times are in operators, device times those of kernels and copies other than collectives; the two
    clocks stand side by side, and neither is part of the other. No rank in a spread: not measured.
    """

    name: str
    """Dotted, as in the unwrapped model, "" being the model itself; or as torch.profiler names it, such as Linear_0."""
    kind: str
    """The class of the module. Empty: everything, whose self is what runs in no module: loss, optimizer, gradients."""
    parent: int | None
    """Position of the module that holds it."""
    calls: Spread
    """Of forward, recomputation left out."""
    self_host_ns: Spread
    """Time in operators outside of its submodules: forward, backward and recomputation together."""
    total_host_ns: Spread
    """The same with its submodules."""
    self_device_ns: Spread
    """Time of kernels and copies, other than collectives, that were launched outside of its submodules."""
    total_device_ns: Spread
    """The same with its submodules."""
    forward_host_ns: Spread
    """Of ``total_host_ns``; so are the next two."""
    backward_host_ns: Spread
    """The part of total_host_ns in backward."""
    recomputed_host_ns: Spread
    """In forward that backward repeats."""
    forward_device_ns: Spread
    """Of ``total_device_ns``; so are the next two."""
    backward_device_ns: Spread
    """The part of total_device_ns in backward."""
    recomputed_device_ns: Spread
    """The part of total_device_ns in forward that backward repeats."""

    @property
    def likeness(self) -> tuple[object, ...]:
        """The same for modules that differ in their names and times only."""
        return self.kind, self.calls


class TracedModules(Struct, frozen=True, kw_only=True):
    """The modules of the model as the traces show them."""

    ranks: tuple[int, ...]
    """The ranks whose traces tell modules apart."""
    per_step: bool
    """Whether figures are means per step. If not, they are sums over the whole traces, which have no steps."""
    rows: tuple[TracedModule, ...]
    """Each before its submodules. The first is everything."""


class WindowCheck(Struct, frozen=True, kw_only=True):
    """One phase of a kernel window: as the rank measured it live, and as its trace shows it."""

    rank: int
    """The global rank."""
    phase: str
    """The phase, or "step" for the whole step."""
    clock: str
    """The clock of both figures."""
    live_ns: float
    """Mean per step of the window."""
    trace_ns: float
    """Mean per step of the same steps in the trace."""
    difference_ratio: float | None
    """(trace - live) / live. None: live is 0."""


class TraceReport(Struct, frozen=True, kw_only=True):
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
    """Rules that could not be checked for lack of data."""
    window_checks: tuple[WindowCheck, ...]
    """Empty unless there are live phases and a kernel window of the same steps."""
