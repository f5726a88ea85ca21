"""The conclusions about a table of operations of a pipeline-parallel job.

Made by `distprof.analyze.pipeline.report_operations`. Times are in nanoseconds; ``None`` means *not measured*.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from distprof.report.step_timeline import StepTimeline
from distprof.report.wait_report import Estimate

OPERATIONS_SCHEMA = "distprof.operations_report/1"


class PipelineCauseKind(enum.StrEnum):
    """What makes the steps of a pipeline longer."""

    SLOW_WORKER = "slow_worker"
    """One stage of one replica takes longer than the same stage of the other replicas."""
    SLOW_REPLICA = "slow_replica"
    """All stages of one replica take longer than those of the other replicas, in every step."""
    UNEVEN_STAGE = "uneven_stage"
    """A stage has more to do than the other stages, on all replicas."""
    UNEQUAL_SEQUENCES = "unequal_sequences"
    """Some micro-batches take longer than others, on all stages, forward and backward."""
    SLOW_LINK = "slow_link"
    """Transfers between two stages take longer than those between other stages."""
    HELD_UP = "held_up"
    """One rank takes longer than its equals in some of its micro-batches, or outside of forwards and backwards. Of a
    live run."""
    STALLS = "stalls"
    """One rank takes far longer than it usually does in some steps. Of a live run."""
    COLLECTIONS = "collections"
    """Python's garbage collector, which runs in different steps on different workers."""


class PipelineCause(Struct, frozen=True, kw_only=True):
    """A cause with what it costs, by a replay without it."""

    kind: PipelineCauseKind
    """"slow_worker": one stage of one replica is slow; "held_up": one rank is late in some micro-batches, or outside of
    forwards and backwards; "stalls": one rank takes far longer than usual in some steps; "slow_replica";
    "uneven_stage"; "unequal_sequences"; "slow_link"; "collections"."""
    replica: int | None
    """Coordinate ``dp``. None: it is on all replicas."""
    stage: int | None
    """Coordinate ``pp``; of a link the lower one. None: all stages."""
    rank: int | None
    """Global rank. None: not one rank, or not recorded."""
    what: str
    """What takes longer: computation, forward-compute, backward-compute, ..."""
    more_ratio: float
    """By how much more than its equals it takes. Of collections: their share of the step."""
    steps_count: int
    """In how many steps."""
    alone: bool
    """There are no equals that would tell whether it has more to do or its rank is slow: there is one replica."""
    lost_ns: Estimate
    """By how much steps would be shorter without this cause alone."""
    lost_ratio: Estimate
    """The same, as a share of the step."""
    phase: str | None = None
    """Of one rank: the phase in which it loses the time, or "between steps". None: several, or another cause."""
    micro_batches: tuple[int, ...] = ()
    """Of a rank that is held up in some of its forwards or backwards: in which ones of a step. Empty: otherwise."""
    late_ns: float | None = None
    """Of one rank of a live run: by how much longer it takes in a step in which it acts. None: another cause, or a
    table."""
    period: int | None = None
    """Of stalls: every so many steps. None: at no period, or another cause."""
    first_step: int | None = None
    """Number of the first step in which it acts, if that is not the whole job. None: it is, or a table."""
    last_step: int | None = None
    """The same of the last one."""
    stretch_lost_ratio: Estimate | None = None
    """``lost_ratio`` in these steps, of which it is a share. None: it acts in the whole job."""


class PipelineSlowdown(Struct, frozen=True, kw_only=True):
    """What the operations of one replica, stage, worker or kind cost beside ideal others."""

    by: str
    """``dp``, ``stage``, ``worker`` or ``kind``."""
    name: str
    slowdown_ratio: float
    """The ideal job in which only these operations keep their recorded durations, over the ideal job."""


class BubbleReport(Struct, frozen=True, kw_only=True):
    """How long stages idle between the first forward and the last backward of their replica, over how long they compute
    there: means over workers and steps."""

    warm_up_ratio: float
    """Before the stage's first forward."""
    steady_ratio: float
    """Between its computations."""
    cool_down_ratio: float
    """After its last backward."""
    theory_ratio: float
    """(p - 1) / (m v), of p equal stages, m micro-batches and v chunks: what the schedule needs in any case."""
    waiting_ratio: float
    """What is measured beyond that, at least 0: waiting, which has a cause."""


class PipelineWhatIf(Struct, frozen=True, kw_only=True):
    """By how much steps would be shorter if something were otherwise."""

    name: str
    saved_ratio: Estimate
    """As a share of the step as recorded."""


class StageReport(Struct, frozen=True, kw_only=True):
    """A stage: means over replicas, micro-batches and steps."""

    stage: int
    forward_ns: float
    backward_ns: float
    more_ratio: float | None
    """Its computation over the median of the other stages, less 1; of each stage the median of the replicas counts.
    None: there is no other stage."""


class OperationsReport(Struct, frozen=True, kw_only=True):
    """Everything that distprof concludes about a table of operations."""

    schema: str
    distprof_version: str
    name: str
    num_replicas: int
    num_stages: int
    num_chunks: int
    num_operations: int
    num_steps: int
    """Steps that are whole, and judged."""
    micro_batches: float
    """Micro-batches of a replica in a step, the mean."""
    left_out: tuple[str, ...]
    """Why steps were left out, one reason each."""
    step_ns: Estimate
    """The mean step as recorded, from the earliest start to the last end."""
    replayed_ns: float
    """The mean step as replayed, with nothing between an operation and the last one that it waits for."""
    ideal_ns: float
    """The step if every operation took as long as its kind does on average."""
    launch_ratio: float | None
    """Recorded over replayed. None, as ``slowdown_ratio``: operations take no time."""
    slowdown_ratio: float | None
    """Replayed over ideal."""
    slowdowns: tuple[PipelineSlowdown, ...]
    stages: tuple[StageReport, ...]
    bubble: BubbleReport | None
    """None: there is one stage."""
    causes: tuple[PipelineCause, ...]
    """The one that costs most first."""
    what_ifs: tuple[PipelineWhatIf, ...]
    judged: bool
    """Whether there were enough steps to look for causes."""
    notes: tuple[str, ...]
    timelines: tuple[StepTimeline, ...]
    """The whole step nearest to the median, and the longest one."""

    @property
    def complete(self) -> bool:
        """Whether every step was whole."""
        return not self.left_out
