"""Describes a simulated job: its sizes, and everything that goes wrong in it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct, field

from distprof.facts.run import OWN_PARTS, OWN_PHASES, Part, Phase, Stretch

MS = 1_000_000
USUAL_PHASE_NS: Mapping[Phase, float] = MappingProxyType(
    {
        Phase.DATA: 5 * MS, Phase.FORWARD: 30 * MS, Phase.BACKWARD: 50 * MS, Phase.GRAD_NORM: 3 * MS,
        Phase.OPTIMIZER: 10 * MS, Phase.OTHER: 2 * MS,
    }
)  # fmt: skip
"""A rank's own time in one step: 100 ms in total."""


class Delay(Struct, frozen=True, kw_only=True):
    """Something that makes one rank, or all ranks of a host, slower in one phase or between two steps."""

    rank: int | None
    """None: the host's ranks or, if no host is given, a random rank at every step."""
    phase: Part
    delay_ns: float = 0.0
    """Below 0: the rank is faster there, as long as another delay makes it slower elsewhere."""
    factor: float = 1.0
    """Multiplies the own time in that phase, before ``delay_ns`` is added."""
    host: int | None = None
    first_step: int = 0
    last_step: int | None = None
    """None: until the job ends."""
    every: int = 1
    """Only in steps that are a multiple of this, counted from the first step."""
    count: int | None = None
    """In exactly so many of the steps that are left, drawn at random. None: all of them."""
    share_ratio: float = 1.0
    """Share of the steps that are left that are delayed, chosen at random."""
    piece: int | None = None
    """Of a phase that buckets cut into pieces: which one is slower. None: the delay is spread evenly over them."""


class Between(Struct, frozen=True, kw_only=True):
    """Something that all ranks do before some steps."""

    stretch: Stretch
    own_ns: float
    every: int = 1
    """Before every step that is a multiple of this, except the first."""
    synchronised: bool = True
    """The ranks then wait for each other in an all-reduce of a number."""


class Stop(Struct, frozen=True, kw_only=True):
    """One rank is stopped for a while, wherever it is: by a signal, or because its memory was swapped out."""

    rank: int
    at_ns: float
    """On the true clock, from the start of the job."""
    length_ns: float
    served: bool
    """If it stops in a collective, the data that it still has to send is already on its way: the others leave in time
    and it leaves late. False: they need that data, and all of them leave when it resumes."""


class Clocks(Struct, frozen=True, kw_only=True):
    """The hosts' monotonic clocks. The first host's is the true one."""

    offset_ns: float = 0.0
    """Largest offset of another host's clock; each offset is drawn between minus and plus this."""
    drift_ratio: float = 0.0
    """Largest drift of another host's clock, such as 50e-6."""
    bound_ns: float = 0.0
    """Accuracy of the offset readings: their error is drawn between minus and plus this."""


class SimulatedBucket(Struct, frozen=True, kw_only=True):
    """One of DDP's gradient buckets."""

    size_bytes: int
    backward_ratio: float
    """Share of a micro-step's backward that lies between the bucket before and this one."""
    transfer_ns: float


class SimulatedJob(Struct, frozen=True, kw_only=True):
    """A job. Times are means; jitter multiplies every phase of every rank and step."""

    strategy: Literal["ddp", "fsdp", "hsdp"] = "ddp"
    """ddp: buckets are transferred while backward continues. fsdp, hsdp: every collective blocks, as with gloo."""
    num_ranks: int = 8
    ranks_per_host: int = 8
    num_steps: int = 50
    """Including warm-up."""
    num_warmup: int = 0
    num_buckets: int = 4
    """DDP's gradient buckets, or FSDP's units."""
    phase_ns: Mapping[Phase, float] = field(default_factory=lambda: USUAL_PHASE_NS)
    """Own time by phase; phases that are missing take none."""
    data_between: bool = False
    """The next batch is fetched before the step begins, as in ``for batch in loader``."""
    between: tuple[Between, ...] = ()
    """In this order, each stretch once, and before the next batch is fetched."""
    transfer_ns: float = 10 * MS
    """Transfer time of all gradients of a step; each gathering of the parameters takes as long again."""
    shard_size: int | None = None
    """HSDP: ranks that share one copy of the parameters. None: half of the ranks."""
    bucket_bytes: int = 25_000_000
    buckets: tuple[SimulatedBucket, ...] = ()
    """DDP's, instead of ``num_buckets`` alike ones."""
    micro_steps: int = 1
    """Micro-steps of a step, of which only the last one reduces gradients; ``phase_ns`` is of one, data included."""
    sync_every: int = 1
    """Above 1, local SGD: in place of reducing gradients, ``num_buckets`` collectives average the parameters after so
    many steps each, and ranks wait for every one."""
    sync_between: bool = False
    """They do so once the step has ended, and not in its last phase."""
    reshard_after_forward: bool = True
    """FSDP's and HSDP's units gather their parameters again in backward."""
    jitter_ratio: float = 0.02
    """Sigma of the log-normal jitter."""
    autocorrelation: float = 0.0
    """Of the logarithm of own times from step to step, by rank and phase: x(t) = a x(t-1) + sqrt(1 - a^2) e(t), where
    e(t) and x(0) are normal with sigma ``jitter_ratio``. So the spread of own times is the same for any a."""
    speed_ratio: float = 0.0
    """Sigma of the logarithm of a rank's speed, which stretches all that it does in a step: whole ranks drift."""
    speed_autocorrelation: float = 0.0
    """Of that from step to step."""
    pareto_ratio: float = 0.0
    """Own times are also multiplied by 1 + this times a Pareto (Lomax) number of shape 1.5, with an infinite variance
    and a mean of 2."""
    tail_share_ratio: float = 0.0
    """Share of a rank's steps that take ``tail_factor`` times as long, chosen at random."""
    tail_factor: float = 3.0
    noise_share_ratio: float = 0.0
    """Share of a rank's steps in which something holds it up for a while: chosen at random, and so is the phase, in
    proportion to its time."""
    noise_ns: float = 2 * MS
    """The shortest such event. Longer ones are as many as a Pareto tail has."""
    noise_shape: float = 1.5
    """Of that tail: with 1, events ten times as long are a tenth as many."""
    shadow_every: int = 0
    """One step in so many, drawn at random, runs without instruments. 0: none."""
    delays: tuple[Delay, ...] = ()
    stops: tuple[Stop, ...] = ()
    slow_hosts: Mapping[int, float] = field(default_factory=dict)
    """By host, the factor by which everything that crosses its link is slower."""
    link_share_ratio: float = 1.0
    """Share of a transfer across a healthy link that its bytes need there, and that a slow link makes longer. The rest$
    the hosts', and stays as it is."""
    slow_from_step: int = 0
    """The first step in which those links are slow."""
    link_bytes_per_s: float = 10e9
    """Bandwidth of a healthy link, as probes at both ends of the job measure it."""
    probe_spread_ratio: float = 0.0
    """Sigma of the log-normal error of those probes."""
    clocks: Clocks = Clocks()
    tokens: int = 1024
    """Per rank and step, mean."""
    token_spread_ratio: float = 0.0
    """Sigma of the log-normal number of tokens by rank and step; forward and backward take proportionally long."""
    rules: Literal["simple", "shared"] = "simple"
    """Which scheduler plays the job: see `benchmarks.simulate.schedule` and `benchmarks.simulate.shared_schedule`."""
    latency_ns: float = 20_000.0
    """By the shared rules only: how long a message is on its way, and mean delay in waking up a rank."""

    def scale_transfer(self, factor: float) -> float:
        """How many times as long a transfer takes across a link that is slower by a factor."""
        return 1 + self.link_share_ratio * (factor - 1)

    def __post_init__(self) -> None:
        """Refuses impossible jobs.

        Raises:
            ValueError: A size is below one, a phase is not one of `OWN_PHASES`, the ranks are not a multiple of HSDP's
                shards, sharded parameters are averaged, or the shared rules are asked to stop a rank.
        """
        sizes = (self.num_ranks, self.ranks_per_host, self.num_buckets, self.micro_steps, self.sync_every)
        if min(sizes) < 1 or self.num_steps < 0:
            raise ValueError("a job needs at least one rank, one rank per host, one bucket and one micro-step")
        if not set(self.phase_ns) <= set(OWN_PHASES) or any(delay.phase not in OWN_PARTS for delay in self.delays):
            raise ValueError(f"own phases are {', '.join(OWN_PHASES)}")
        if self.strategy == "hsdp" and self.num_ranks % (self.shard_size or 2):
            raise ValueError("hsdp has replicas: the number of ranks must be a multiple of a shard's, or even")
        if self.sync_every > 1 and self.strategy != "ddp":
            raise ValueError("only jobs without sharding may average parameters every so many steps")
        if self.rules == "shared" and self.stops:
            raise ValueError("no rank can be stopped under the shared rules")

    @property
    def shard_ranks(self) -> int:
        """Ranks of a group that shares one copy of the parameters under HSDP."""
        return self.shard_size if self.shard_size is not None else max(1, self.num_ranks // 2)

    @property
    def shards_beside(self) -> int:
        """How many shards of parameters the ranks of a host have under HSDP."""
        return min(self.shard_ranks, self.ranks_per_host)

    @property
    def num_hosts(self) -> int:
        """The last host may have fewer ranks."""
        return -(-self.num_ranks // self.ranks_per_host)
