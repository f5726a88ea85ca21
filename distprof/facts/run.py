"""The facts of a run: what every rank observed, step by step. No conclusions are drawn here.

A step of a rank is one row of float64. NaN in a row, and ``None`` elsewhere, mean *not measured*; 0 means measured,
and zero. Times are integers of nanoseconds up to 2**53, which float64 holds exactly.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct, field

from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.columns import COLUMN as COLUMN
from distprof.facts.columns import ROW_FIELDS as ROW_FIELDS
from distprof.facts.columns import ROW_WIDTH as ROW_WIDTH
from distprof.facts.mesh import Mesh, RankGroup
from distprof.facts.segments import RunSegments
from distprof.facts.stand import RankState
from distprof.facts.writer_liveness import LastWrite

if TYPE_CHECKING:
    from distprof.facts.gpu import RankGpu
    from distprof.facts.micro_batches import RankOperations
    from distprof.facts.modules import ModuleTable
    from distprof.facts.probes import SuspectProbes
    from distprof.facts.trace_summary import TraceSummary


class Phase(enum.StrEnum):
    """What a rank was doing. The phases of a step partition it; ``OTHER`` is the measured remainder.

    ``ALL_REDUCE`` here is exposed gradient synchronisation, by whatever collective (FSDP: a reduce-scatter), and
    ``ALL_GATHER`` is exposed gathering of parameters. The collectives of these names are members of `CollectiveKind`.
    """

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    ALL_GATHER = "all_gather"
    ALL_REDUCE = "all_reduce"
    GRAD_NORM = "grad_norm"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class Clock(enum.StrEnum):
    """Where a time was read: ``HOST`` is the monotonic clock, ``DEVICE`` is CUDA events. Never add the two."""

    HOST = "host"
    DEVICE = "device"


class CollectiveKind(enum.StrEnum):
    """What kind of collective moved the bytes; ``OTHER``: broadcasts, barriers, single exchanges and the like.

    ``ALL_REDUCE`` here is the operation, in whatever phase; the phase of that name is a member of `Phase`.
    """

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    OTHER = "other"


PASSES = {CollectiveKind.ALL_REDUCE: 2.0, CollectiveKind.ALL_GATHER: 1.0, CollectiveKind.REDUCE_SCATTER: 1.0}
"""How often a buffer goes round: what is reduced is scattered and gathered."""

PHASES: tuple[Phase, ...] = tuple(Phase)
PHASE_CODE: dict[Phase, int] = {phase: code for code, phase in enumerate(PHASES)}
COMMUNICATION_PHASES = (Phase.ALL_GATHER, Phase.ALL_REDUCE)
MAX_WORLD = 1 << 17
"""Ranks of a job, recorded or traced: missing ones are named one by one."""
OWN_PHASES: tuple[Phase, ...] = tuple(phase for phase in PHASES if phase not in COMMUNICATION_PHASES)
"""Phases of a rank's own work; waits in collectives may be part of them too."""
COMPILED_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
"""Those in which compilations are timed."""


class Stretch(enum.StrEnum):
    """What a rank did between two steps. ``BETWEEN`` is the measured remainder."""

    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    LOGGING = "logging"
    BETWEEN = "between steps"


FORWARDS_ONLY = "forward without gradients"
"""What `Stretch.EVALUATION` is called where no module was in evaluation mode in it."""
FORWARDS_NOTE = (
    "forwards without gradients between two steps are of modules in training mode: rollouts, samples, or an evaluation "
    "without eval()"
)
"""What a rank notes then."""
Part = Phase | Stretch
OWN_PARTS: tuple[Part, ...] = (*OWN_PHASES, *Stretch)
"""What a rank's own time between two waits consists of."""
KINDS: tuple[CollectiveKind, ...] = tuple(CollectiveKind)
UNEVEN_KINDS = (CollectiveKind.ALL_TO_ALL, CollectiveKind.OTHER)  # sizes may differ between ranks


def make_rows(num_ranks: int, num_steps: int) -> FloatArray:
    """Rows of NaN, ``[num_ranks, num_steps, ROW_WIDTH]``, stored by column because they are read by column."""
    return np.moveaxis(np.full((ROW_WIDTH, num_ranks, num_steps), np.nan), 0, 2)


class DeviceSnapshot(Struct, frozen=True, kw_only=True):
    """The state of a device before the first step. None: not measurable here."""

    name: str
    """The device's name, as its driver or the operating system reports it."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_ratio: float | None = None
    """Share of the last sample period in which the device was busy, 0 to 1."""
    power_w: float | None = None
    temperature_c: float | None = None
    processes: int | None = None
    """Number of processes with memory on the device."""


class Peak(Struct, frozen=True, kw_only=True):
    """The peak FLOP/s of one device in the precision of the run."""

    flops_per_s: float | None
    """None: unknown; MFU and HFU are then n/a."""
    source: str
    """Where the number comes from, or how to supply one."""


class RankInfo(Struct, frozen=True, kw_only=True):
    """Who a rank was, and how it ended."""

    rank: int
    local_rank: int | None
    """None: not in a trace."""
    host: str
    pid: int | None
    device: str | None
    """"cpu", "cuda:N" or, of a trace, "cuda". None: the trace does not show it."""
    snapshot: DeviceSnapshot | None
    peak: Peak
    source: Literal["recorded", "trace"] = "recorded"
    """Whether distprof recorded the rank's steps, or another tool's trace is all there is of it."""
    ended: str | None = None
    """"completed", "failed", "terminated". None: not known (of a trace), or the stream has no end (killed, or still
    running)."""
    last_write: LastWrite | None = None  # of a stream without an end
    stand: RankState | None = None
    """Where it stood when its steps stopped ending, or when it ended early. None: not known, or it completed."""
    error: str | None = None
    """The last line of the error; for a terminated rank the signal and where it was; for one without an end whose steps
    had stopped ending, where it was then."""
    traceback: str | None = None
    device_uuid: str | None = None
    """Of its GPU, or of its slice of one: ranks with the same one share it. None: not a GPU, or not recorded."""
    rows_lost: int = 0
    """Rows that were measured but not written, because the writer fell behind or the disk was full."""
    rows_dropped: int = 0  # rows of its first steps that are no longer on disk: profile.keep_steps
    notes: tuple[str, ...] = ()
    """What could not be measured on this rank, and why."""
    unseen_per_step: float = 0.0
    """Collectives in a step that torch's Flight Recorder has and distprof has not, where that was looked up."""
    point_to_point: bool = False
    """Whether it sent to other ranks, or received from them, point to point inside steps."""
    forwards: int | None = None
    """Forwards without gradients of a rank that took no step. None: it took steps, or nothing of it was
    seen."""


class Work(Struct, frozen=True, kw_only=True):
    """FLOPs of one micro-step of one rank; a multiply and an add count as two."""

    parameters: int
    model_flops_per_micro_step: int
    """Without recomputation; the numerator of MFU."""
    hardware_flops_per_micro_step: int
    """With recomputation; the numerator of HFU."""
    analytic_flops_per_micro_step: int | None
    """``model_flops_per_micro_step`` from a formula instead of the dispatched operations."""


class ClockReading(Struct, frozen=True, kw_only=True):
    """One comparison of a rank's monotonic clock with rank 0's."""

    rank: int
    at_ns: int
    """Time of the comparison on rank 0's clock."""
    offset_ns: int
    """The rank's clock less rank 0's."""
    bound_ns: int
    """The error is at most this: half the shortest round trip. 0: the ranks share the clock."""


class LinkReading(Struct, frozen=True, kw_only=True):
    """The bandwidth between rank 0's host and another, of one probe."""

    rank: int
    """The rank of the other host that took part."""
    bytes_per_s: float
    """In one direction: of gloo, between one rank of each host; of another backend, between all ranks of both, each way
    at once."""
    network: str = "gloo"
    """The backend that moved the data, which chooses the network."""


class Launch(Struct, frozen=True, kw_only=True):
    """Which start of a job by torchrun's agents this is; they may start its ranks again, and more or fewer of them."""

    agents: tuple[str, ...]
    """Who started the ranks, rank 0's first; the same ones as before where they start ranks again."""
    job: int
    """Which job of its processes this is, counted from 0: a script may have several, one after the other."""
    restarts: tuple[int, ...]
    """How often each agent has started its ranks again after a failure, by its own count."""
    restarts_left: int = 0
    """How often rank 0's agent would start the ranks again if one failed."""
    is_early: bool = False
    """Whether no rank had had a step when it was made: ranks of the same start may make another one."""


class RunMeta(Struct, frozen=True, kw_only=True):
    """Facts about the whole job."""

    run_id: str
    """Unique per job; a rank stream with another id does not belong to this run."""
    name: str
    started_utc: str | None
    """ISO 8601. None, here and in the next fields: only traces exist, and they do not say."""
    world_size: int
    backend: str | None
    device_type: str | None
    """"cpu" or "cuda"."""
    strategy: str | None
    precision: str | None
    work: Work | None
    versions: Mapping[str, str]
    git: str | None
    """The commit of the working tree the job was started in. None: it is not a checkout."""
    config: Mapping[str, object]
    """The whole configuration, secrets redacted."""
    notes: tuple[str, ...] = ()
    """Deviations from what one might expect: shortened sequences, shared devices."""
    clock_readings: tuple[ClockReading, ...] = ()
    """Host clocks against rank 0's, in the order read. Empty: not read; ranks of several hosts are not compared."""
    link_readings: tuple[LinkReading, ...] = ()
    """At the start of the job, one per host other than rank 0's. Empty: one host, or not probed."""
    last_link_readings: tuple[LinkReading, ...] = ()
    """At its end, without the hosts that there was no time for."""
    groups: tuple[RankGroup, ...] = ()
    """The script's process groups of some of the ranks, as the ranks knew them after their first steps."""
    mesh: Mesh | None = None
    """What these say of each rank. None: the script names no groups."""
    launch: Launch | None = None
    """None: the ranks were not started by torchrun's agents, or it is not known."""


class Collectives(Struct, frozen=True, kw_only=True):
    """The collectives that one process group issues in each of some steps, matched across its ranks.

    Matched on (group, step, index in the group's order, kind, bytes), or on (group, number). Steps in which the ranks
    disagree are left out, and a warning of the run names the first disagreement.
    """

    group: str
    """The group's name; the same on all its ranks."""
    ranks: IntArray
    """Positions in ``Run.ranks`` of the members with facts, ``[num_members]``."""
    size: int
    """Number of ranks of the group, present or not."""
    kinds: tuple[CollectiveKind, ...]
    """``[num_collectives]``, in the order of issue; so are the next two."""
    phases: tuple[Phase, ...]
    """The phase in which each is issued; backward for the gradients of DDP and FSDP."""
    sizes_bytes: tuple[int | None, ...]
    """The buffer reduced or, for gathers and scatters, the whole unsharded buffer. None: not known on some rank."""
    steps: IntArray
    """Positions on axis 1 of ``Run.rows``, ascending, ``[num_steps]``."""
    arrival_ns: FloatArray
    """When a rank was ready, on a clock of its own, ``[num_members, num_steps, num_collectives]``. On the device clock
    it begins there once the previous one of the group has ended."""
    end_ns: FloatArray
    """When it ended there, same shape; NaN: not seen, as of a device's collectives on the host clock."""
    exposed_ns: FloatArray
    """How long the rank's compute waited for it, on the same clock and in the same shape; NaN: not known; 0: not at
    all."""
    clock: Clock = Clock.HOST
    """Host: times on each rank's own host clock. Device: on its device clock, of the steps that were sampled."""
    left_ns: FloatArray | None = None
    """When the rank's compute went on after its last wait for it, same shape; NaN: it never waited. None: wherever it
    waited, that was where it issued the collective."""
    received_bytes: FloatArray | None = None
    """What an all-to-all brings a rank, same shape as the times; NaN: not known, or another kind. None: of none."""
    by_number: bool = False
    """Whether they were matched by the numbers that traces give them, instead of by their order in a step."""

    @property
    def ends_seen(self) -> bool:
        """Whether any was seen to end. Over gloo no collective on a device's tensors is: it ends on the host."""
        return bool(np.isfinite(self.end_ns).any())


class Run(Struct, frozen=True, kw_only=True):
    """The facts of one job, as columns."""

    meta: RunMeta
    ranks: tuple[RankInfo, ...]
    """The ranks with facts, in ascending order; their positions are axis 0 of ``rows``."""
    rows: FloatArray
    """``[num_ranks, num_steps, ROW_WIDTH]``; a step that a rank did not report is all NaN."""
    warnings: tuple[str, ...] = ()
    """What went wrong while reading: damaged records, foreign files."""
    unread: tuple[str, ...] = ()
    """Files that were given but could not be read, each with the reason; the run is then not complete."""
    segments: RunSegments = field(default_factory=lambda: RunSegments({}))
    """Timelines of single steps by (rank, step), where they were kept."""
    collectives: tuple[Collectives, ...] = ()
    """One table per process group and order of collectives, where they were kept."""
    device_collectives: tuple[Collectives, ...] = ()
    """The same on the ranks' device clocks, for the steps in which they were timed there."""
    operations: tuple[RankOperations | None, ...] = ()
    """What the ranks did for the micro-batches of a pipeline, by position in ``ranks``; None: nothing. Empty: no rank
    did, or it is not known."""
    gpus: tuple[RankGpu | None, ...] = ()
    """What the driver said of the ranks' GPUs while they trained, by position in ``ranks``; None: nothing. Empty: of no
    rank, or it is not known."""
    scheduling: tuple[FloatArray, ...] = ()
    """How the ranks' training threads got a core, by position in ``ranks``, ``[num_readings, len(SCHEDULING_FIELDS)]``
    each, as in `distprof.facts.scheduling`. Empty: not read."""
    activity: tuple[TraceSummary, ...] = ()
    """Summaries of the ranks' traces, in ascending order of rank. Empty: there are no traces."""
    modules: tuple[ModuleTable, ...] = ()
    """The ranks' module profiles, in ascending order of rank. Empty: modules were not profiled."""
    probes: SuspectProbes | None = None
    """What was measured on suspected ranks after the job. None: nothing."""
    traced_rows: FloatArray | None = None
    """The steps of a recorded run as its traces show them, on the same axes; NaN: not traced."""
    generation: int = 0
    """Which start of the job's ranks this is: see `distprof.storage.generations`."""
    others: Mapping[int, Run] = field(default_factory=dict)
    """The other starts of the job's ranks, by number, without their collectives, segments and modules."""

    def column(self, name: str) -> FloatArray:
        """One field of every rank and step, ``[num_ranks, num_steps]``; NaN: not measured."""
        return self.rows[:, :, COLUMN[name]]

    def phase_ns(self, clock: Clock) -> FloatArray:
        """Time per phase on one clock, ns, ``[num_ranks, num_steps, len(PHASES)]``; NaN: not measured."""
        first = COLUMN[f"{PHASES[0]}_{clock}_ns"]
        return self.rows[:, :, first : first + len(PHASES)]

    def step_ns(self, clock: Clock) -> FloatArray:
        """Step time on one clock, ns, ``[num_ranks, num_steps]``; NaN: not measured."""
        return self.column(f"step_{clock}_ns")

    def wait_ns(self, clock: Clock) -> FloatArray:
        """Time waited inside each own phase on one clock, ns, ``[num_ranks, num_steps, len(OWN_PHASES)]``."""
        first = COLUMN[f"{OWN_PHASES[0]}_wait_{clock}_ns"]
        return self.rows[:, :, first : first + len(OWN_PHASES)]

    def measured(self) -> BoolArray:
        """Which steps count, ``[num_ranks, num_steps]``: whole, no warm-up, shadow (unless all are) or window."""
        whole: BoolArray = (self.column("warmup") == 0) & (self.column("failed") == 0)
        whole &= self.column("window") != 1
        recorded = whole & (self.column("shadow") != 1)
        return recorded if recorded.any() else whole


def name_ranks(ranks: Sequence[int], *, most: int | None = None) -> str:
    """``rank 3``, ``ranks 0-2, 7``; beyond ``most`` ranges, the first ones and ``...``."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    names = ", ".join("-".join(map(str, ends)) for ends in runs[:most])
    more = "" if most is None or len(runs) <= most else ", ..."
    return f"rank {names}" if len(ordered) == 1 else f"ranks {names}{more}"
