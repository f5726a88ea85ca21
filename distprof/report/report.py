"""The conclusions about a run: the content of ``report.json``, which every renderer shows.

Made by `distprof.analyze` from a `distprof.facts.run.Run`; plain numbers only, in the units that the names give.
``None`` means *not measured*. The docstrings of the fields are the descriptions in the schema that ``distprof report
--schema`` prints for other programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from distprof.facts.writer_liveness import LastWrite
from distprof.report.generation_report import GenerationReport
from distprof.report.gpu_report import GpusReport
from distprof.report.hang_report import HangReport
from distprof.report.job_modules import JobModules
from distprof.report.pipeline_report import PipelineReport
from distprof.report.probe_report import ProbeReport
from distprof.report.scheduling_report import SchedulingReport
from distprof.report.step_timeline import LongStep, StepTimeline
from distprof.report.trace_report import TraceReport
from distprof.report.wait_report import (
    Causes,
    ClockReport,
    Forecast,
    OverheadReport,
    ReplayError,
    Spread,
    Stall,
    Verdict,
    WaitReport,
    WhatIf,
)

DATA_BETWEEN, WAITS_BETWEEN = "data between steps", "waits between steps"
"""Parts of the time between steps that are no stretches of it: getting the next batch, and waits in collectives."""
SCHEMA = "distprof.report/2"


class DeviceClockReport(Struct, frozen=True, kw_only=True):
    """A rank's device clock compared with its host's, and with rank 0's host clock."""

    rank: int
    """Global rank."""
    anchors: int
    """Readings of both clocks that are used. 0: times of this device are not compared with others."""
    anchors_left_out: int
    """Readings that contradict the others."""
    drift_ratio: float | None
    """How much faster it runs than its host's clock. None: fewer than two anchors."""
    host_bound_ns: float | None
    """How wrong a time of the device, on the clock of its own host, can be at most in this run. None: no anchors."""
    bound_ns: float | None
    """The same on rank 0's host clock: the bound of the hosts' clocks is added, and ``end_gap_ns`` takes its place
    where it disagrees. None: not known, also because the hosts' clocks were not compared."""
    against: int | None
    """The lower rank that it was checked against, by the ends of common collectives. None: not checked."""
    end_gap_ns: float | None
    """Median of its ends less the other rank's; nearly 0 if the clocks are right."""
    agrees: bool | None
    """Whether that gap is within both ranks' bounds and the skew of such ends, 20 us."""


class BandwidthReport(Struct, frozen=True, kw_only=True):
    """Collectives of one kind and size in one process group, on the device clock; bandwidth as nccl-tests define it."""

    group: str
    """Name of the process group."""
    kind: str
    """The collective operation, as it was issued."""
    least_bytes: int | None
    """The whole buffer. It differs from ``most_bytes`` only where a group moves so many sizes that they share rows by
    powers of two. None, like the next: not known on some rank."""
    most_bytes: int | None
    """As least_bytes."""
    num_ranks: int
    """Of the group, present or not."""
    hosts: tuple[str, ...]
    """Where the members are that have facts."""
    count: int
    """Collectives whose transfer is known; 0: nothing below is."""
    transfer_ns: float | None
    """Median. Of each, the time of the member that took the shortest, because it came last. None, here and below: ends
    were not seen, members are missing, or not all members stay until the end, as those of a broadcast do not."""
    algorithm_bytes_per_s: float | None
    """Bytes over transfer, median."""
    bus_bytes_per_s: float | None
    """``algorithm_bytes_per_s`` times what of the buffer a rank of n sends at best: 2 (n - 1) / n for an all-reduce,
    (n - 1) / n for a gather, scatter or exchange. Comparable with the hardware, whatever n."""
    members_missing: int
    """Number of ranks of the group whose collectives were not recorded."""


class PhaseReport(Struct, frozen=True, kw_only=True):
    """One phase on one clock. Means over the measured steps, which add up to the step."""

    phase: str
    """What the ranks were doing. all_reduce is exposed gradient synchronisation, whatever collective does it;
    all_gather is exposed gathering of sharded parameters; other is the measured remainder of the step."""
    clock: str
    """host: monotonic clock of the process. device: CUDA events on the compute stream. The two are never added."""
    mean_ns: tuple[float | None, ...]
    """Mean time per step, by position in ``Report.ranks``."""
    median_ns: tuple[float | None, ...]
    """Median time per step, by position in ``Report.ranks``."""
    spread_ns: Spread
    """Of ``mean_ns`` across ranks."""
    share_ratio: float | None
    """The phase summed over ranks, over the step summed over ranks: of the ranks that measured every phase here."""


class StepReport(Struct, frozen=True, kw_only=True):
    """The step on one clock."""

    clock: str
    """The clock of every time here."""
    mean_ns: tuple[float | None, ...]
    """Mean step time, by position in ``Report.ranks``."""
    spread_ns: Spread
    """Of mean_ns across ranks, in ns."""
    identity_error_ratio: float | None
    """Largest |sum of phases - step| / step over all ranks and steps."""


class BetweenPart(Struct, frozen=True, kw_only=True):
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


class BetweenReport(Struct, frozen=True, kw_only=True):
    """The time from the end of each step to the begin of the next, host clock: no part of any step."""

    parts: tuple[BetweenPart, ...]
    """They add up to the time between; parts that no rank spent time in are left out."""
    cycle_mean_ns: tuple[float | None, ...]
    """Mean step on the host clock and mean time between steps, over the same steps, by position in ``Report.ranks``."""
    cycle_spread_ns: Spread
    """Of cycle_mean_ns across ranks, in ns."""
    between_ratio: float | None
    """All parts, over the cycle, summed over ranks."""
    parts_known: bool
    """Whether own time, waits and stretches were recorded separately."""
    steps_used: int
    """Measured steps that follow a measured one."""


class BusiestRank(Struct, frozen=True, kw_only=True):
    """The rank with the most own time, which is time outside exposed communication; the others may wait for it."""

    rank: int
    """Its global rank."""
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


class Headline(Struct, frozen=True, kw_only=True):
    """The job in a few numbers."""

    clock: str
    """The clock of every time here: device if every rank has it, else host."""
    step_mean_ns: float | None
    """Elapsed time over steps: from the begin of the first measured step to the end of the last, over their number,
    mean over ranks. Time between steps is in it, and so are steps that ran without instruments; warm-up, failed and
    window steps are not, with the time around them."""
    step_median_ns: float | None
    """Median of the job's step time, in ns."""
    step_p95_ns: float | None
    """95th percentile of the job's step time, linearly interpolated, in ns."""
    recorded_mean_ns: float | None
    """As step_mean_ns, of the recorded steps alone: what the phases and the time between steps add up to."""
    between_ratio: float | None
    """Share of recorded_mean_ns that lies between steps."""
    tokens_per_s: float | None
    """All ranks together: tokens over the time elapsed, of the steps of step_mean_ns."""
    achieved_flops_per_s: Spread | None
    """Model FLOP/s of one device."""
    mfu_ratio: float | None
    """Mean over ranks. None: peak unknown."""
    hfu_ratio: float | None
    """Hardware FLOPs utilisation: as mfu_ratio, with the FLOPs of recomputation counted too."""
    exposed_ratio: float | None
    """Exposed communication (all_gather, all_reduce, waits inside other phases) over step time, summed over ranks."""
    exposed_ns: float | None
    """Exposed communication per step, mean over ranks."""
    busiest: BusiestRank | None
    """None with fewer than two ranks."""


class CommunicationReport(Struct, frozen=True, kw_only=True):
    """One kind of collective, per step, by position in ``Report.ranks``."""

    kind: str
    """The collective operation, as it was issued."""
    count_per_step: tuple[float | None, ...]
    """Number of collectives."""
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


class RankReport(Struct, frozen=True, kw_only=True):
    """One rank: what it ran on, what it reached, and how it ended."""

    rank: int
    """Global rank."""
    host: str
    """Name of its host."""
    pid: int | None
    """Process id on that host; None: the trace does not tell."""
    device: str | None
    """"cpu", "cuda:N" as the process numbers it, or "cuda" of a trace; None: the trace does not show it."""
    device_name: str | None
    """Name of the device as its driver or the operating system gives it; None: not measured."""
    device_memory_total_bytes: int | None
    """Memory of the device before the first step, in bytes; None: not measured."""
    device_memory_used_bytes: int | None
    """Memory in use on the device before the first step, by any process, in bytes; None: not measured."""
    device_utilization_ratio: float | None
    """Share of the driver's last sample period before the first step in which the device was busy, 0 to 1; None: not
    measured."""
    device_power_w: float | None
    """Power drawn before the first step, in watts; None: not measured."""
    device_temperature_c: float | None
    """Temperature before the first step, in degrees Celsius; None: not measured."""
    device_processes: int | None
    """Number of processes with memory on the device before the first step; None: not measured."""
    memory_peak_bytes: float | None
    """Largest allocated device memory (CUDA) or resident set (CPU) up to the last step."""
    memory_bytes: float | None
    """The same at the last step."""
    achieved_flops_per_s: float | None
    """Model FLOPs per step over mean step time on the headline clock, in FLOP/s; None: not measured."""
    mfu_ratio: float | None
    """None: peak unknown, or the result would be above 1 (see ``mfu_note``)."""
    hfu_ratio: float | None
    """Hardware FLOPs utilisation: as mfu_ratio, with the FLOPs of recomputation counted too."""
    mfu_note: str | None
    """Why mfu_ratio or hfu_ratio is None, and how to get it; None: neither is."""
    peak_flops_per_s: float | None
    """The peak FLOP/s of the device in the precision of the run; None: unknown."""
    peak_source: str
    """Where the peak comes from, or how to supply one."""
    own_ns: float | None
    """Mean step less exposed communication on the headline clock. None: not measured."""
    exposed_ns: float | None
    """Mean exposed communication per step on the headline clock. None: not measured."""
    scheduling: SchedulingReport | None = None
    """How its training thread got a core. None: not read, or too few times."""
    steps_recorded: int
    """Steps with a row of this rank, warm-up and failed ones too."""
    last_step: int | None
    """Number of the last step with a row, counted from 0; None: there is none."""
    apart: str | None
    """What it did, if it does not train as most ranks do; its steps are then in no statistic. None: it does."""
    source: Literal["recorded", "trace"]
    """Whether distprof recorded its steps, or a trace is all there is."""
    ended: str | None
    """"completed", "failed", "terminated". None: not known (of a trace), or the stream has no end."""
    last_write: LastWrite | None
    """When a stream without an end was last written. None: it has an end, or the rank has no stream."""
    error: str | None
    """The last line of the error; None: there was none."""
    traceback: str | None
    """The whole traceback; None: none was kept."""
    rows_lost: int
    """Steps measured and not written, because the writer fell behind or the disk was full."""


class DimensionReport(Struct, frozen=True, kw_only=True):
    """Process groups of one size that do not overlap and do the same for different ranks."""

    name: str
    """As the script names them, such as "tp"; or in words how their ranks lie, such as "2 neighbours"."""
    given: bool
    """Whether the script has given that name."""
    num_ranks: int
    """Ranks of each group."""
    num_groups: int
    """Number of groups."""


class MeshReport(Struct, frozen=True, kw_only=True):
    """How the ranks are grouped, and where each of them is."""

    axes: tuple[str, ...]
    """Names of the dimensions that coordinates count along, the outermost first. Empty: none has a name."""
    coordinates: tuple[tuple[int, ...] | None, ...]
    """The rank's place within its group of each axis, by position in ``Report.ranks``. None: it has none."""
    dimensions: tuple[DimensionReport, ...]
    """Every dimension that is known: those of the axes, products of them, and those without a name."""


class FlopsReport(Struct, frozen=True, kw_only=True):
    """FLOPs per optimizer step of one rank."""

    parameters: int
    """Parameters of the whole model."""
    model_flops_per_step: float | None
    """Counted from the dispatched operations, without recomputation; None: no measured step, or micro-steps were not
    counted."""
    hardware_flops_per_step: float | None
    """The same with recomputation."""
    analytic_flops_per_step: float | None
    """Model FLOPs from the formula instead; None: there is no formula for this model, or as above."""
    analytic_error_ratio: float | None
    """|counted - analytic| / analytic, of the model FLOPs."""


class Coverage(Struct, frozen=True, kw_only=True):
    """What the numbers are based on."""

    complete: bool
    """Every rank is present, ended well and reported every step."""
    world_size: int
    """Number of ranks of the job."""
    ranks_present: tuple[int, ...]
    """Global ranks with at least one recorded step, without those apart: the statistics use these."""
    ranks_missing: tuple[int, ...]
    """Ranks without a stream, or whose stream has no end although no process is known to write it."""
    steps_measured: int
    """Steps that every rank present reported, without warm-up: those that the statistics use."""
    steps_timed_alone: int
    """Steps without instruments on every rank present: the step time includes them, and nothing else does."""
    steps_warmup: int
    """Warm-up steps recorded, and left out of every statistic."""
    steps_planned: int | None
    """Steps that the configuration asks for, warm-up included; None: it does not say."""
    rows_lost: int
    """Steps measured and not written, over all ranks."""
    segments_lost: int
    """Segments of steps that were counted in their phase and not kept, over all ranks."""
    clocks: tuple[str, ...]
    """The clocks on which something was measured."""
    sources: tuple[str, ...]
    """Where each kind of number comes from."""
    notes: tuple[str, ...]
    """What was shortened, damaged or not measured, and why."""


class Report(Struct, frozen=True, kw_only=True):
    """Everything that distprof concludes about a run."""

    schema: str
    """Version of this format: the number grows when readers of the old one would misread the new one."""
    distprof_version: str
    """Version of distprof that made the report."""
    run_id: str
    """Unique per job, and per start of its ranks."""
    generation: int
    """Which start of the job's ranks by torchrun's agents this report is on, counted from 0."""
    generations: tuple[GenerationReport, ...]
    """Every start of the job's ranks, in order. Empty: they were started once."""
    name: str
    """Name of the run, from the configuration."""
    started_utc: str | None
    """When the job started, UTC, ISO 8601; None: the traces do not tell."""
    world_size: int
    """Number of ranks of the job."""
    backend: str | None
    """torch.distributed backend, such as nccl or gloo; None: the traces do not tell."""
    device_type: str | None
    """"cpu" or "cuda"; None: the traces do not show it."""
    strategy: str | None
    """How the model was made parallel, such as ddp or fsdp; None: traces do not tell."""
    precision: str | None
    """Number format of the matrix products, such as bf16; None: traces do not tell."""
    hang: HangReport | None
    """Who waits for whom in a job whose steps stopped ending. None: they did not."""
    verdict: Verdict
    """Who held whom up and why, or that nobody can be named."""
    probes: ProbeReport | None
    """What probes of suspected ranks after the job say: device, host or link. None: there were none."""
    replay: ReplayError | None
    """How well the replay, which tells what causes cost, knows the recorded steps. None: nothing was replayed."""
    causes: Causes | None
    """Everything that makes steps longer than they need be. None: too little is known for a verdict."""
    headline: Headline
    """The job in a few numbers."""
    steps: tuple[StepReport, ...]
    """The step on every measured clock, device first."""
    phases: tuple[PhaseReport, ...]
    """Every phase on every measured clock; phases that no rank spent time in are left out."""
    between: BetweenReport | None
    """None: not measured, because no two measured steps follow each other."""
    communication: tuple[CommunicationReport, ...]
    """Every kind of collective that was seen."""
    pipeline: PipelineReport | None
    """What the stages of a pipeline do for each micro-batch. None: there is no pipeline, or none was recorded."""
    activity: TraceReport | None
    """The devices' time according to traces, and the findings. None: there are no traces."""
    modules: JobModules | None
    """What the modules of the model hold, compute and take on the ranks. None: they were not profiled."""
    gpus: GpusReport | None
    """Energy and clocks of the ranks' GPUs while they trained. None: none was sampled."""
    waits: tuple[WaitReport, ...]
    """Empty if the ranks did not record their collectives."""
    bandwidths: tuple[BandwidthReport, ...]
    """How fast collectives move data. Empty if none was timed on a device."""
    what_if: tuple[WhatIf, ...]
    """The recorded steps, replayed with one thing changed."""
    forecasts: tuple[Forecast, ...]
    """What other settings would do. Empty: nothing to replay, or the job has none of those settings."""
    stalls: tuple[Stall, ...]
    """Single steps far longer than the others."""
    clocks: tuple[ClockReport, ...]
    """One per clock. Empty: not read."""
    device_clocks: tuple[DeviceClockReport, ...]
    """One per rank. Empty: no device's clock was read together with its host's."""
    flops: FlopsReport | None
    """FLOPs per step; None: not counted."""
    ranks: tuple[RankReport, ...]
    """Every rank with a stream, in ascending order; positions elsewhere refer to this list."""
    mesh: MeshReport | None
    """How they are grouped. None: no process groups of some of the ranks are known that do the same for all."""
    overhead: OverheadReport | None
    """None: too few shadow steps."""
    step_times_ns: tuple[tuple[float | None, ...], ...]
    """The headline clock's step time ``[num_ranks][num_steps]``, warm-up included."""
    timelines: tuple[StepTimeline, ...]
    """The step nearest to the median and the longest one, of all ranks. Empty: nothing of that kind was kept."""
    longest_steps: tuple[LongStep, ...]
    """Those above the median, ten at most."""
    coverage: Coverage
    """What the numbers are based on."""
    config: Mapping[str, Any]
    """The whole configuration of the run, secrets redacted."""

    @property
    def is_unlike(self) -> bool:
        """Whether the replay says nothing about the recorded steps."""
        return self.replay is not None and self.replay.is_unlike
