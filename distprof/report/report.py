"""The conclusions about a run: the content of ``report.json``, which every renderer shows.

Made by `distprof.analyze` from a `distprof.facts.run.Run`; plain numbers only, in the units that the names give.
``None`` means *not measured*. ``report.schema.json`` beside this file documents the same structure for other programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from distprof.facts.presence import LastWrite
from distprof.report.bandwidth_report import BandwidthReport
from distprof.report.device_clock_report import DeviceClockReport
from distprof.report.forecast_report import ForecastReport
from distprof.report.hang_report import HangReport
from distprof.report.job_modules import JobModules
from distprof.report.overhead_report import OverheadReport
from distprof.report.spread import Spread
from distprof.report.trace_report import TraceReport
from distprof.report.wait_report import Causes, ClockReport, Stall, Verdict, WaitReport, WhatIf

SCHEMA = "distprof.report/2"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport:
    """One phase on one clock. Means over the measured steps, which add up to the step."""

    phase: str
    clock: str
    mean_ns: tuple[float | None, ...]
    """Mean time per step, by position in ``Report.ranks``."""
    median_ns: tuple[float | None, ...]
    """Median time per step, by position in ``Report.ranks``."""
    spread_ns: Spread
    """Of ``mean_ns`` across ranks."""
    share_ratio: float | None
    """The phase summed over ranks, over the step summed over ranks: of the ranks that measured every phase here."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The step on one clock."""

    clock: str
    mean_ns: tuple[float | None, ...]
    """Mean step time, by position in ``Report.ranks``."""
    spread_ns: Spread
    identity_error_ratio: float | None
    """Largest |sum of phases - step| / step over all ranks and steps."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BetweenPart:
    """One part of the time between steps."""

    part: str
    """A stretch of its own time, "data between steps" (getting the next batch), or "waits between steps" (in
    collectives). "between steps" is the measured rest; where the parts were not recorded, it is all."""
    mean_ns: tuple[float | None, ...]
    """Mean time per step, by position in ``Report.ranks``."""
    spread_ns: Spread
    """Of ``mean_ns`` across ranks."""
    share_ratio: float | None
    """The part summed over ranks, over the cycle summed over ranks."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BetweenReport:
    """The time from the end of each step to the begin of the next, host clock: no part of any step."""

    parts: tuple[BetweenPart, ...]
    """They add up to the time between; parts that no rank spent time in are left out."""
    cycle_mean_ns: tuple[float | None, ...]
    """Mean step on the host clock and the mean time between steps, by position in ``Report.ranks``."""
    cycle_spread_ns: Spread
    between_ratio: float | None
    """All parts, over the cycle, summed over ranks."""
    parts_known: bool
    """Whether own time, waits and stretches are told apart."""
    steps_used: int
    """Measured steps that follow a measured one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BusiestRank:
    """The rank with the most own time, which is time outside exposed communication; the others may wait for it."""

    rank: int
    own_ns: float
    """Its mean step time less exposed communication."""
    excess_ns: float
    """``own_ns`` less the median of the other ranks'."""
    stands_out: bool
    """Whether the excess is large enough to name the rank: at least 5 % of the job's mean step."""
    phase: str | None
    """The phase with most of the excess. None: in no phase is its own time above the others' median."""
    phase_excess_ns: float | None
    """Own time in that phase, without waits inside it, less the median of the other ranks'."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The job in a few numbers."""

    clock: str
    """The clock of every time here: device if every rank has it, else host."""
    step_mean_ns: float | None
    """Elapsed time over steps: from the begin of the first measured step to the end of the last, over their number,
    mean over ranks. Time between steps is in it, and steps that do not count are not, with the time around them."""
    step_median_ns: float | None
    step_p95_ns: float | None
    between_ratio: float | None
    """Share of the mean step time that lies between steps."""
    tokens_per_s: float | None
    """All ranks together: tokens of the measured steps over the time elapsed."""
    achieved_flops_per_s: Spread | None
    """Model FLOP/s of one device."""
    mfu_ratio: float | None
    """Mean over ranks. None: peak unknown."""
    hfu_ratio: float | None
    exposed_ratio: float | None
    """Exposed communication (all_gather, all_reduce, waits inside other phases) over step time, summed over ranks."""
    exposed_ns: float | None
    """Exposed communication per step, mean over ranks."""
    busiest: BusiestRank | None
    """None with fewer than two ranks."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationReport:
    """One kind of collective, per step, by position in ``Report.ranks``."""

    kind: str
    count_per_step: tuple[float | None, ...]
    bytes_per_step: tuple[float | None, ...]
    """Payload: the buffer reduced or, for gathers and scatters, the whole unsharded buffer."""
    busy_host_ns: tuple[float | None, ...]
    """Union of the kind's intervals on the host clock. None: only the device could tell."""
    exposed_host_ns: tuple[float | None, ...]
    """How long the rank's compute waited for them, in whichever phase."""
    overlapped_host_ns: tuple[float | None, ...]
    """``busy_host_ns`` less ``exposed_host_ns``: what ran beside compute."""
    busy_device_ns: tuple[float | None, ...]
    """Union of the kind's intervals on the device, in the steps in which collectives were timed there; of a trace, of
    its kernels. None: not known."""
    exposed_device_ns: tuple[float | None, ...]
    """How long the compute stream waited for them on the device clock; in traces, while only collectives ran."""
    overlapped_device_ns: tuple[float | None, ...]
    """``busy_device_ns`` less ``exposed_device_ns``."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank: what it ran on, what it reached, and how it ended."""

    rank: int
    host: str
    pid: int | None
    device: str | None
    device_name: str | None
    device_memory_total_bytes: int | None
    device_memory_used_bytes: int | None
    device_utilization_ratio: float | None
    device_power_w: float | None
    device_temperature_c: float | None
    device_processes: int | None
    memory_peak_bytes: float | None
    """Largest allocated device memory (CUDA) or resident set (CPU) up to the last step."""
    memory_bytes: float | None
    """The same at the last step."""
    achieved_flops_per_s: float | None
    mfu_ratio: float | None
    """None: peak unknown, or the result would be above 1 (see ``mfu_note``)."""
    hfu_ratio: float | None
    mfu_note: str | None
    peak_flops_per_s: float | None
    peak_source: str
    own_ns: float | None
    """Mean step less exposed communication on the headline clock. None: not measured."""
    exposed_ns: float | None
    """Mean exposed communication per step on the headline clock. None: not measured."""
    steps_recorded: int
    last_step: int | None
    source: Literal["recorded", "trace"]
    """Whether distprof recorded its steps, or a trace is all there is."""
    ended: str | None
    """"completed", "failed", "terminated". None: not known (of a trace), or the stream has no end."""
    last_write: LastWrite | None
    """When a stream without an end was last written. None: it has an end, or the rank has no stream."""
    error: str | None
    traceback: str | None
    rows_lost: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlopsReport:
    """FLOPs per optimizer step of one rank."""

    parameters: int
    model_flops_per_step: float | None
    hardware_flops_per_step: float | None
    analytic_flops_per_step: float | None
    analytic_error_ratio: float | None
    """|counted - analytic| / analytic, of the model FLOPs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What the numbers are based on."""

    complete: bool
    """Every rank is present, ended well and reported every step."""
    world_size: int
    ranks_present: tuple[int, ...]
    ranks_missing: tuple[int, ...]
    """Ranks without a stream, or whose stream has no end although no process is known to write it."""
    steps_measured: int
    """Steps that every rank present reported, without warm-up: those that the statistics use."""
    steps_warmup: int
    steps_planned: int | None
    rows_lost: int
    segments_lost: int
    clocks: tuple[str, ...]
    sources: tuple[str, ...]
    """Where each kind of number comes from."""
    notes: tuple[str, ...]
    """What was shortened, damaged or not measured, and why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that distprof concludes about a run."""

    schema: str
    distprof_version: str
    run_id: str
    name: str
    started_utc: str | None
    world_size: int
    backend: str | None
    device_type: str | None
    strategy: str | None
    precision: str | None
    hang: HangReport | None
    """Who waits for whom in a job whose steps stopped ending. None: they did not."""
    verdict: Verdict
    causes: Causes | None
    """Everything that makes steps longer than they need be. None: too little is known for a verdict."""
    headline: Headline
    steps: tuple[StepReport, ...]
    phases: tuple[PhaseReport, ...]
    """Every phase on every measured clock; phases that no rank spent time in are left out."""
    between: BetweenReport | None
    """None: not measured, because no two measured steps follow each other."""
    communication: tuple[CommunicationReport, ...]
    activity: TraceReport | None
    """The devices' time according to traces, and the findings. None: there are no traces."""
    modules: JobModules | None
    """What the modules of the model hold, compute and take on the ranks. None: they were not profiled."""
    waits: tuple[WaitReport, ...]
    """Empty if the ranks did not record their collectives."""
    bandwidths: tuple[BandwidthReport, ...]
    """How fast collectives move data. Empty if none was timed on a device."""
    what_if: tuple[WhatIf, ...]
    forecasts: ForecastReport | None
    """What other settings would do. None: nothing to replay, or the job has none of those settings."""
    stalls: tuple[Stall, ...]
    clocks: tuple[ClockReport, ...]
    """One per clock. Empty: not read."""
    device_clocks: tuple[DeviceClockReport, ...]
    """One per rank. Empty: no device's clock was read together with its host's."""
    flops: FlopsReport | None
    ranks: tuple[RankReport, ...]
    overhead: OverheadReport | None
    """None: too few shadow steps."""
    step_times_ns: tuple[tuple[float | None, ...], ...]
    """The headline clock's step time ``[num_ranks][num_steps]``, warm-up included."""
    coverage: Coverage
    config: Mapping[str, Any]


def to_plain(report: Report) -> dict[str, Any]:
    """The report as JSON-ready containers."""
    return dataclasses.asdict(report)
