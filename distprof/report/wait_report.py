"""Conclusions about waiting and about what a change would save, as parts of a report.

The two forms of many numbers are here too: with an interval (`Estimate`), and across ranks (`Spread`).
"""

from __future__ import annotations

import enum

from msgspec import Struct

from distprof.facts.run import FORWARDS_ONLY
from distprof.report.late_reasons import (
    MoreWork,
    ReceivedMore,
    SlowAllocator,
    SlowModule,
    ThrottledGpu,
    UnmarkedPlace,
)
from distprof.report.loader_report import SlowLoader
from distprof.report.scheduling_report import OffCpu


class Estimate(Struct, frozen=True, kw_only=True):
    """A number with its 95 % interval over steps that are like their neighbours."""

    value: float
    """The number itself, in the unit that the field names."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""

    def scale(self, factor: float) -> Estimate:
        """The same in another unit, or as a part of something else."""
        return Estimate(value=factor * self.value, low=factor * self.low, high=factor * self.high)


class Evidence(Struct, frozen=True, kw_only=True):
    """One piece of evidence, independent of the others: medians over the steps that the rank held up."""

    label: str
    """What was compared; every rank measured its own value on its own clock."""
    rank_ns: float
    """The named rank's value, or the median of the named host's ranks."""
    others_ns: float
    """Median of the other ranks."""
    agree_ratio: float
    """Share of the steps that it held up in which it alone points at that rank."""


class VerdictKind(enum.StrEnum):
    """What holds the job up."""

    SLOW_RANK = "slow_rank"
    SLOW_HOST = "slow_host"
    """The ranks of one host are late together."""
    SLOW_LINK = "slow_link"
    """A link is slower than the other links, and the steps wait for it."""
    UNEQUAL_DATA = "unequal_data"
    """Ranks process different amounts of data in a step, and wait for the one with the most."""
    UNEVEN_STAGE = "uneven_stage"
    """A stage of a pipeline takes longer than the others: it has more to do or, with one replica, its rank is slow."""
    SLOW_REPLICA = "slow_replica"
    """All stages of one replica of a pipeline take longer than those of the others."""
    UNEQUAL_SEQUENCES = "unequal_sequences"
    """Ranks process sequences of different lengths, and wait for the one whose squares are the most."""
    GARBAGE_COLLECTION = "garbage_collection"
    """Python's garbage collector stops one rank or another, and the others wait."""
    RECOMPILATION = "recompilation"
    """torch.compile compiles on one rank or another, and the others wait."""
    SLOW_LOADER = "slow_loader"
    """Ranks wait for batches that their DataLoaders do not have in time, none for much longer than the others."""
    STALLS = "stalls"
    """Single steps far longer than the rest."""
    COMMUNICATION = "communication"
    """Moving data, on links that are no slower than others."""
    JITTER = "jitter"
    """A different rank is late at every step."""
    NONE = "none"
    """Nothing does, or it is not known."""


MOST_ERROR_RATIO = 0.05
"""By how much replayed steps may differ from the recorded ones."""
LATE_KINDS = (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST)
"""Ranks are late, as long as it lasts."""
LASTING_KINDS = (*LATE_KINDS, VerdictKind.SLOW_LINK, VerdictKind.UNEVEN_STAGE, VerdictKind.SLOW_REPLICA)
"""What acts in every step from one to another, and may begin or end within the run."""


class Pattern(enum.StrEnum):
    """How often it does."""

    PERSISTENT = "persistent"
    INTERMITTENT = "intermittent"


class Cause(enum.StrEnum):
    """What a late rank, host or link spends the time on."""

    INPUT = "input"
    COMPUTE = "compute"
    HOST = "host"
    """Its host launches work too slowly for its device."""
    GRADIENT_NORM = "gradient norm"
    OPTIMIZER = "optimizer"
    OUTSIDE = "outside the phases"
    EVALUATION = "evaluation"
    FORWARDS = FORWARDS_ONLY
    """Between steps, of modules in training mode."""
    CHECKPOINT = "checkpoint"
    LOGGING = "logging"
    BETWEEN = "between steps"
    """Outside ``profiler.step()``, in none of these three."""
    SPEED = "speed"
    """It takes longer for nearly all that it does, in proportion; why is not known."""
    OFF_CPU = "off the CPU"
    """Its training thread is ready, and waits for a core."""
    NETWORK = "network"


class Verdict(Struct, frozen=True, kw_only=True):
    """Who held whom up and why, or that nobody can be named."""

    kind: VerdictKind
    """"slow_rank"; "slow_host": the ranks of one host are late together; "slow_link": a link is slower than the
    others, or than it was, or than a probe of it; "unequal_data": ranks process different amounts of data in a
    step; "unequal_sequences": sequences of different lengths; "uneven_stage": a stage of a pipeline takes longer than
    the others; "slow_replica": all stages of one replica do; "garbage_collection": Python's collector stops one rank
    or another; "recompilation": torch.compile does; "slow_loader": ranks wait for batches of their DataLoaders;
    "stalls": single steps far longer than the rest; "communication": moving data, on links that are no slower than
    others; "jitter": a different rank is late at every step; "none"."""
    critical: bool
    """It costs a tenth of the step or more, by the lower end of its interval, two independent signs agree, and it is no
    evaluation that only this rank makes. If it acts from one step to another, that is a tenth of these steps."""
    confirmed: bool | None
    """Whether the other ranks' waits confirm it: they wait while the rank or host that is named waits least. None:
    none is named, or ranks are missing."""
    pattern: Pattern | None
    """None: nothing is named."""
    rank: int | None
    """The global rank that is named; None: nobody is."""
    phase: str | None
    """Where the rank loses the time: a phase of the step, or a stretch between steps. None: it is not known, or the
    cause is "speed"."""
    second_phase: str | None = None
    """Where else it loses a fifth of the time or more. None: ``phase`` has three quarters of it, or the rest is in many
    places."""
    cause: Cause | None
    """What the rank does in ``phase``; of a slow link "network". None: nothing is named."""
    module: SlowModule | None = None
    """None: no single module explains it by more than chance, or modules were not profiled."""
    received: ReceivedMore | None = None
    """Why the rank is late. None: no all-to-all brings it more than the others, or it is not late for that."""
    more_work: MoreWork | None = None
    """Why the rank may be late. None: it gets no more than the others, or not so much more that this may explain it."""
    unmarked: UnmarkedPlace | None = None
    """Of the cause "outside the phases", on the host clock. None: of another one, in several places, or the order of
    the phases was not kept."""
    throttled: ThrottledGpu | None = None
    """Why the rank is late. None: its clock is not lower by as much as half of that explains, nothing is said to limit
    it, or its GPU was not sampled."""
    allocator: SlowAllocator | None = None
    """Why the rank is late. None: it is not later when its allocator asks for memory, or that was not read."""
    off_cpu: OffCpu | None = None
    """Of the cause "off the CPU". None: of another one."""
    loader: SlowLoader | None = None
    """Of ``kind`` "slow_loader", and of the cause "input". None: of others, or the rank takes no time for batches of a
    DataLoader."""
    hosts: tuple[str, ...]
    """The slow host, or the ends of a slow link."""
    late_ns: float | None
    """Own time between waits of the rank, or of the host's ranks, less the median of the others': median over the
    steps, or over those that the rank held if it holds only some."""
    round_steps: int = 1
    """Steps that ranks do from one meeting to the next, as in local SGD. Of more than one, times here are means of such
    rounds, and which of their steps are longer is not known."""
    needed_ns: float | None = None
    """What the bytes of a step need at the probed speed of the link that is named. None: no link is."""
    lost_ns: Estimate | None
    """How much shorter a step would be without it, mean over steps. None: no verdict, or ranks are missing, one of
    which may hold the others up as well."""
    lost_ratio: Estimate | None
    """``lost_ns`` over the mean step."""
    stretch_lost_ratio: Estimate | None = None
    """Of what begins or ends within the run: how much shorter the steps would be in which it acts, as a share of them.
    None: it acts in the whole run, or now and then, or ``lost_ratio`` is not known."""
    waited_ns: float | None
    """How long the other ranks wait for it, summed over ranks, per step; of what begins or ends within the run, per
    step in which it acts."""
    held_ratio: float | None
    """Share of the steps that the rank held up, or in which the garbage collector or a compilation stopped one, or one
    waited for its loader."""
    clock: str
    """The clock of every time here."""
    steps_used: int
    """Number of steps that the verdict is based on."""
    reason: str
    """One sentence: what the verdict is based on, or why there is none."""
    evidence: tuple[Evidence, ...]
    """Independent signs, for a rank that is named."""
    pipeline_cause: int | None = None
    """Of a pipeline: position in ``PipelineReport.causes``, where stage, replica and micro-batches stand. None: it is
    none, or nothing is named."""


class CauseReport(Struct, frozen=True, kw_only=True):
    """One of the things that make steps longer than they need be."""

    kind: VerdictKind
    """Never ``NONE``."""
    rank: int | None
    """None: no single rank is named."""
    phase: str | None
    """Where the rank, or the host's ranks, lose the time: an own phase, or a stretch between steps."""
    hosts: tuple[str, ...]
    """The slow host, or the ends of a slow link."""
    cause: Cause | None
    """What is done there. None: not known."""
    off_cpu: OffCpu | None = None
    """As ``Verdict.off_cpu``."""
    pattern: Pattern | None
    """None: not of a rank or host."""
    first_step: int
    """Number of the first step in which it acts; a slowdown that begins or ends half-way has others than the run."""
    unseen_before: int = 0
    """Steps just before the first one that were not recorded: it may have begun in any of them."""
    last_step: int
    """Number of the last step in which it acts."""
    unseen_after: int = 0
    """Steps just after the last one that were not recorded: it may have ended in any of them."""
    whole: bool
    """It acts from the first measured step to the last, or now and then all along: stalls, and a rank that is late
    intermittently."""
    events: int | None
    """Of stalls: how many of the measured steps, also of those that the verdict is not based on; None otherwise."""
    period: int | None
    """Of stalls, or of a rank that is late now and then: every so many steps. None: no period, or too few to tell."""
    explained_ratio: float | None = None
    """Of stalls of a rank: their share of what these steps take longer than the usual one. None: of other causes."""
    late_ns: float | None
    """Own time of the rank, or of the host's ranks, less the others' median, in the steps in which it acts."""
    saved_if_only_this_ns: Estimate
    """How much shorter a step would be, mean over all measured steps, if this cause alone were fixed."""
    saved_if_only_this_ratio: Estimate
    """``saved_if_only_this_ns`` over the mean step."""
    saved_after_others_ns: Estimate
    """How much fixing this cause saves once all other causes with a name (rank, host, link, data, stalls) are fixed. If
    two ranks are late together, each hides what the other costs: ``saved_if_only_this_ns`` is small for both, and this
    is not."""
    saved_after_others_ratio: Estimate
    """``saved_after_others_ns`` over the mean step."""
    stretch_saved_if_only_this_ratio: Estimate | None = None
    """Of what begins or ends within the run: what fixing this cause alone saves in the steps in which it acts, as a
    share of them. None: it acts in the whole run, or now and then."""
    stretch_saved_after_others_ratio: Estimate | None = None
    """The same once all other causes with a name are fixed."""
    joint_ns: float
    """Its part of what removing all causes saves: the parts and ``Causes.remainder_ns`` add up to what an ideal step
    would save."""
    pipeline_cause: int | None = None
    """As ``Verdict.pipeline_cause``."""
    critical: bool
    """The lower end of ``saved_after_others_ratio``, or of ``stretch_saved_after_others_ratio`` if there is one, is a
    tenth or more, the other ranks' waits confirm it, and it is no evaluation that only this rank makes."""


class Causes(Struct, frozen=True, kw_only=True):
    """Everything that makes steps longer than they need be, and what an ideal step would take."""

    causes: tuple[CauseReport, ...]
    """Those with a name first, the largest ``saved_after_others_ns`` first; then jitter and communication."""
    step_ns: float
    """The headline's mean step time; the replay says what share of it each cause takes."""
    ideal_ns: float
    """The same if every rank took as long as the median rank does and transfers took no time; or what is left of a step
    when all causes have gone, if that is shorter."""
    remainder_ns: float
    """``step_ns - ideal_ns`` less the causes' ``joint_ns``."""


class ReplayError(Struct, frozen=True, kw_only=True):
    """By how much the recorded steps, replayed without a change, differ from what they took."""

    median_ratio: float
    """Above 0.05 there are no causes and no what-ifs."""
    worst_ratio: float
    """The 90th percentile."""

    @property
    def is_unlike(self) -> bool:
        """Whether the replay says nothing about the recorded steps."""
        return self.median_ratio > MOST_ERROR_RATIO


EVEN_STAGES, TWICE_BATCHES = "stages even", "twice the micro-batches"
"""What may be changed in a pipeline in which nothing stands out."""


class WhatIf(Struct, frozen=True, kw_only=True):
    """The recorded steps, replayed with one thing changed. Savings are upper bounds and do not add up."""

    change: str
    """What is changed."""
    rank: int | None
    """The only rank that is. None: others are too, or none."""
    step_ns: float
    """Mean step that would result."""
    saved_ratio: Estimate
    """Share of the mean step; negative: it would be longer."""
    tokens_per_s: float | None
    """All ranks together, at that step time; None: tokens were not counted."""
    rank_hours_per_day: float | None
    """What it costs per day of this job. None: nothing would be saved, or the number of ranks differs."""
    assumption: str
    """What must hold for the number to be right."""


class Stall(Struct, frozen=True, kw_only=True):
    """A step far longer than the others, or two lengthened by one delay; left out of the verdict."""

    step: int
    """Of two steps, the first."""
    rank: int | None
    """The rank that arrived last by at least half of the lost time and lost it alone. None: no rank did, or unknown."""
    phase: str | None
    """The phase in which that rank lost the time or, if none is named, in which the ranks spent it. None: the step ran
    without recording (a shadow step)."""
    lost_ns: float
    """Step time less the median step's."""


class WaitReport(Struct, frozen=True, kw_only=True):
    """One kind of collective in one group and phase; by position in ``Report.ranks``, None: not a member."""

    group: str
    """Name of the process group."""
    kind: str
    """The collective operation, as it was issued."""
    phase: str
    """The phase in which it is issued."""
    count_per_step: int
    """Number of collectives."""
    bytes_per_step: int | None
    """None: not known for some of them, or not the same for all ranks."""
    received_bytes: tuple[float | None, ...]
    """What all-to-alls bring each rank, mean per step. Empty: of no other kind, or not known."""
    wait_ns: tuple[float | None, ...]
    """Last arrival less own, mean over the collectives, so that overlapping waits are not added. On the device clock,
    how much longer the member took than the one that took least. If members are missing, the last arrival is that of
    the members present, and the true wait at least this. None for every rank if no wait exceeds ``bound_ns``."""
    transfer_ns: float | None
    """End less last arrival, of the member with the shortest, mean over the collectives. On the device clock, what the
    member took that took least. None: no end was seen, or members are missing, one of which may have arrived last."""
    busy_ns: tuple[float | None, ...]
    """Union of their intervals from arrival to end per step, mean over steps; on the device clock they begin when they
    could start. None: an end was not seen."""
    exposed_ns: tuple[float | None, ...]
    """How long the rank's compute waited for them per step, mean over steps."""
    overlapped_ns: tuple[float | None, ...]
    """``busy_ns`` less ``exposed_ns``."""
    last_ratio: tuple[float | None, ...]
    """Share of the collectives in which the rank arrived last by more than the clocks' bound, or than a microsecond on
    the device clock; None for every rank if members are missing."""
    bound_ns: float
    """Largest error when comparing two members' clocks; 0 on the device clock, where none are compared."""
    steps_used: int
    """Number of steps that the waits are based on, ``last_ratio`` and ``received_bytes``."""
    ended_steps: int
    """Number of steps that the other times are based on: those in which all ends were seen, if there are any."""
    members_missing: int
    """Number of ranks of the group whose collectives were not recorded."""
    clock: str
    """"host" or "device": where these times were read."""


class ClockReport(Struct, frozen=True, kw_only=True):
    """A host's monotonic clock compared with rank 0's."""

    host: str
    """The host that keeps the clock."""
    ranks: tuple[int, ...]
    """Global ranks that read this clock."""
    offset_ns: float
    """At the first reading."""
    bound_ns: float
    """Largest error of its readings."""
    drift_ratio: float | None
    """None: compared only once."""


class Spread(Struct, frozen=True, kw_only=True):
    """A quantity across ranks: median and extremes, and the ranks of these."""

    median: float | None
    """Median over the ranks that measured it, in the unit of the quantity."""
    min: float | None
    """Smallest value, in the unit of the quantity."""
    min_rank: int | None
    """Global rank of the smallest value; of equals the lowest rank."""
    max: float | None
    """Largest value, in the unit of the quantity."""
    max_rank: int | None
    """Global rank of the largest value; of equals the lowest rank."""


class OverheadReport(Struct, frozen=True, kw_only=True):
    """What recording costs: recorded steps compared with the unrecorded (shadow) steps between them."""

    clock: str
    """"host" or, of a job on GPUs, "device"."""
    ratio: float
    """Median recorded step time over the median without recording, less 1; below 0 only through noise."""
    low_ratio: float
    """Lower end of the 95 % interval of the median; exact, whatever the noise."""
    high_ratio: float
    """Upper end of the same interval."""
    shadow_steps: int
    """Number of unrecorded steps that it is based on."""


class ChangedSetting(enum.StrEnum):
    """What a forecast changes, by its name in the configuration."""

    GRAD_ACCUM = "grad_accum"
    """Micro-steps per optimizer step."""
    RESHARD_AFTER_FORWARD = "reshard_after_forward"
    """Whether FSDP2 frees gathered parameters after forward, and gathers them again in backward."""


class Forecast(Struct, frozen=True, kw_only=True):
    """The recorded steps, replayed with another setting."""

    setting: ChangedSetting
    """What is changed, by its name in the configuration."""
    value: float
    """Micro-steps; 0: parameters are not resharded."""
    step_ns: float
    """Mean step that would result."""
    saved_ratio: Estimate
    """Share of the mean step; negative: it would be longer."""
    tokens_per_s: float | None
    """All ranks together, at that step time; None: tokens were not counted."""
    rank_hours_per_day: float | None
    """What the present setting costs per day of this job. None: nothing would be saved, or a step does more work."""


SAMPLE_RATIO = 0.9
"""Share of the measured steps; if a verdict is based on less of them, it is said on how many."""


def is_sample(steps_used: int, steps_measured: int) -> bool:
    """Whether the steps that a verdict is based on are only some of the measured ones, and not all but a few."""
    return steps_used < SAMPLE_RATIO * steps_measured and steps_used < steps_measured - 2
