"""The conclusions of a run: what ``report.json`` holds, and what every renderer shows.

Made by `distprof.analyze` from a `distprof.facts.run.Run`; holds plain numbers only, in the units the names say.
``None`` means *not measured*. ``report.schema.json`` beside this file documents the same structure for other programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from distprof.facts.presence import LastWrite
from distprof.report.trace_report import TraceReport
from distprof.report.wait_report import ClockReport, Stall, Verdict, WaitReport, WhatIf

SCHEMA = "distprof.report/1"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity across ranks: its middle, its ends, and who stands there."""

    median: float | None
    min: float | None
    min_rank: int | None
    max: float | None
    max_rank: int | None


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
    """Of the step: sum over ranks of the phase over sum over ranks of the step."""


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
class BusiestRank:
    """The rank with the most time outside exposed communication: whoever the others may be waiting for."""

    rank: int
    own_ns: float
    """Its mean step time less exposed communication."""
    excess_ns: float
    """``own_ns`` less the median of the other ranks'."""
    stands_out: bool
    """Whether the excess is large enough to name the rank: at least 5 % of the job's mean step."""
    phase: str | None
    """Where most of the excess is. None: in no phase is its own time above the others' median."""
    phase_excess_ns: float | None
    """Own time in that phase, waits inside it apart, against the median of the other ranks."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The job in a few numbers."""

    clock: str
    """The clock of every time here: device where every rank has it, else host."""
    step_mean_ns: float | None
    """Mean over steps of the slowest rank's step."""
    step_median_ns: float | None
    step_p95_ns: float | None
    tokens_per_s: float | None
    """All ranks together: tokens of the measured steps over their summed job step times."""
    achieved_flops_per_s: Spread | None
    """Model FLOP/s of one device."""
    mfu_ratio: float | None
    """Mean over ranks. None: peak unknown."""
    hfu_ratio: float | None
    exposed_ratio: float | None
    """Exposed communication (all_gather, all_reduce, waits inside other phases) over step time, all ranks together."""
    exposed_ns: float | None
    """The same in time per step, mean over ranks."""
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
    """Union of the kind's intervals on the host clock. None where only the device could tell."""
    exposed_host_ns: tuple[float | None, ...]
    """What the rank's compute waited for them, wherever the wait stands."""
    overlapped_host_ns: tuple[float | None, ...]
    """``busy_host_ns`` less ``exposed_host_ns``: what went on beside compute."""
    busy_device_ns: tuple[float | None, ...]
    """Union of the kind's kernels, of traces. None: no trace."""
    exposed_device_ns: tuple[float | None, ...]
    """What the compute stream waited for them, on the device clock; of traces, while nothing but collectives ran."""
    overlapped_device_ns: tuple[float | None, ...]
    """``busy_device_ns`` less ``exposed_device_ns``."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank: who, on what, and what it reached."""

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
    """Largest allocated device memory (CUDA) or resident set (CPU) seen up to the last step."""
    memory_bytes: float | None
    """The same, current, at the last step."""
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
    """Of a stream without an end. None: it has one, or the rank has no stream."""
    error: str | None
    traceback: str | None
    rows_lost: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlopsReport:
    """Arithmetic per optimizer step of one rank."""

    parameters: int
    model_flops_per_step: float | None
    hardware_flops_per_step: float | None
    analytic_flops_per_step: float | None
    analytic_error_ratio: float | None
    """|counted - analytic| / analytic, of the model FLOPs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverheadReport:
    """What recording costs: steps with instruments against the shadow steps between them, host clock."""

    ratio: float
    """Median step time with instruments over the median without, less 1; below 0 by noise only."""
    low_ratio: float
    """Lower end of the 95 % interval of the median; exact, whatever the noise."""
    high_ratio: float
    shadow_steps: int
    """Steps without instruments that it stands on."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What the numbers stand on."""

    complete: bool
    """Every rank is there, ended well and reported every step."""
    world_size: int
    ranks_present: tuple[int, ...]
    ranks_missing: tuple[int, ...]
    """No stream at all, or one that has no end although nobody is known to write it."""
    steps_measured: int
    """Steps that every rank present reported, warm-up left out: what the statistics use."""
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
    """Everything distprof concludes about a run."""

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
    verdict: Verdict
    headline: Headline
    steps: tuple[StepReport, ...]
    phases: tuple[PhaseReport, ...]
    """Every phase on every clock measured; phases that no rank spent time in are left out."""
    communication: tuple[CommunicationReport, ...]
    activity: TraceReport | None
    """What traces say of the devices, and the findings. None: there are no traces."""
    waits: tuple[WaitReport, ...]
    """Where the ranks recorded their collectives; empty elsewhere."""
    what_if: tuple[WhatIf, ...]
    stalls: tuple[Stall, ...]
    clocks: tuple[ClockReport, ...]
    """One per clock. Empty: not read."""
    flops: FlopsReport | None
    ranks: tuple[RankReport, ...]
    overhead: OverheadReport | None
    """None: too few shadow steps to tell."""
    step_times_ns: tuple[tuple[float | None, ...], ...]
    """The headline clock's step time ``[num_ranks][num_steps]``, warm-up included."""
    coverage: Coverage
    config: Mapping[str, Any]


def to_plain(report: Report) -> dict[str, Any]:
    """The report as JSON-ready containers."""
    return dataclasses.asdict(report)
