"""Random jobs for the made-up device: what the ranks compute and move, who is late, and how far the hosts run ahead."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from distprof.facts.run import CollectiveKind, Phase

US, MS = 1_000, 1_000_000
STRATEGIES = ("ddp", "fsdp", "hsdp")
LATE_PHASES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.OPTIMIZER)
LATE_RATIOS = (0.05, 0.8)
TRANSFER_RATIOS = (0.1, 2.5)
"""Of one unit, over its forward: from well hidden to what the job waits for most."""
MOST_AHEAD = 30
MOST_DRIFT_PPM = 50.0
NUM_STEPS = 38
"""A host can be `MOST_AHEAD` ahead. Of steps with more than ten collectives, every second is kept with their times."""
NUM_EVENTS, FEW_EVENTS = 6000, (120, 400)
"""The ring of events: with room for as many steps as a host runs ahead, or too small for that."""
BYTES_PER_NS = 50
"""A usual link: 50 GB/s."""


class LateRank(Struct, frozen=True, kw_only=True):
    """A rank that takes longer in one phase of every step."""

    rank: int
    phase: Phase
    ratio: float
    """Of the step without it."""
    on_host: bool
    """Its host spends the time, and the device has nothing to do. False: its kernels take longer."""
    unit: int | None
    """The part of the model whose kernel takes longer. None: all of them do."""
    late_ns: int = 0
    """How much longer; set once it is known how long a step takes."""


class SlowTransfer(Struct, frozen=True, kw_only=True):
    """A group whose collectives take longer, because its ranks stand on two hosts."""

    group: str
    factor: float


class DeviceJob(Struct, frozen=True, kw_only=True):
    """A job. Times are means, ns; jitter multiplies every kernel and every transfer."""

    seed: int
    strategy: str
    """One of `STRATEGIES`."""
    num_replicas: int
    """Copies of the model that HSDP keeps; 1 with the other strategies."""
    num_shards: int
    """Ranks of each copy; all ranks with the other strategies."""
    ranks_per_host: int
    num_steps: int
    num_warmup: int
    num_units: int
    """DDP's buckets, or FSDP2's layers beside its root."""
    forward_ns: int
    """Of one unit; backward takes twice as long."""
    data_ns: int
    """Of the device."""
    host_data_ns: int
    grad_norm_ns: int
    optimizer_ns: int
    host_unit_ns: int
    """What the host spends on launching one unit."""
    transfer_ns: int
    """Of one unit's gradients or parameters."""
    norm_transfer_ns: int
    jitter_ratio: float
    drift_ppm: tuple[float, ...]
    """By rank: how much faster its device's clock runs."""
    run_ahead: int | None
    """Steps that a host may be ahead of its device; it then waits for an event of its own. None: only the launch queue
    stops it."""
    launch_queue: int
    launch_ns: int
    num_events: int
    """The recorder's ring of events."""
    every: int | None
    """Collectives are timed in every so many steps. None: as their cost allows."""
    late: LateRank | None
    link: SlowTransfer | None

    @property
    def num_ranks(self) -> int:
        """All ranks."""
        return self.num_replicas * self.num_shards

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The ranks of every process group, by its name. "default" is all of them."""
        everyone = tuple(range(self.num_ranks))
        if self.strategy != "hsdp":
            return {"default": everyone}
        size = self.num_shards
        shards = {f"shard {copy}": everyone[copy * size : (copy + 1) * size] for copy in range(self.num_replicas)}
        return shards | {f"replicate {part}": everyone[part::size] for part in range(size)}

    @property
    def num_hosts(self) -> int:
        """Hosts."""
        return -(-self.num_ranks // self.ranks_per_host)

    def find_transfer(self, kind: CollectiveKind, group: str, *, norm: bool) -> float:
        """Mean time that a collective takes once everybody is there, ns."""
        usual_ns = self.norm_transfer_ns if norm else self.transfer_ns
        factor = self.link.factor if self.link is not None and self.link.group == group else 1.0
        sharded = kind is CollectiveKind.ALL_REDUCE and self.strategy == "hsdp" and not norm
        return usual_ns * factor * (0.5 if sharded else 1.0)

    def cut(self, num_steps: int) -> DeviceJob:
        """Its first steps."""
        return replace(self, num_steps=min(num_steps, self.num_steps))

    def without_late(self) -> DeviceJob:
        """The same job with nobody late."""
        return replace(self, late=None)

    def without_link(self) -> DeviceJob:
        """The same job without its slow link."""
        return replace(self, link=None)

    def be_late(self, step_ns: float) -> DeviceJob:
        """The same job, whose steps last so long with nobody late."""
        if self.late is None:
            return self
        return replace(self, late=replace(self.late, late_ns=round(self.late.ratio * step_ns)))


def draw_job(seed: int) -> DeviceJob:
    """A random job; the strategies take turns with the seed."""
    strategy, draws = STRATEGIES[seed % len(STRATEGIES)], np.random.default_rng(seed)
    replicas, shards = _draw_shape(draws, strategy)
    ranks, units = replicas * shards, int(draws.integers(2, 5))
    forward_ns = int(draws.uniform(0.4, 2.0) * MS)
    whole_ns = 3 * forward_ns * units
    ahead = None if draws.random() < 0.2 else int(draws.integers(0, MOST_AHEAD + 1))
    if draws.random() < 0.2:
        ahead = 0
    hosts = replicas if strategy == "hsdp" else 2 if ranks % 2 == 0 and ranks > 2 else 1
    hosts = hosts if draws.random() < 0.6 else 1
    job = DeviceJob(
        seed=seed, strategy=strategy, num_replicas=replicas, num_shards=shards, ranks_per_host=ranks // hosts,
        num_steps=NUM_STEPS, num_warmup=2, num_units=units, forward_ns=forward_ns,
        data_ns=int(whole_ns * draws.uniform(0.01, 0.08)),
        host_data_ns=int(draws.uniform(20, 200) * US), grad_norm_ns=int(whole_ns * draws.uniform(0.01, 0.05)),
        optimizer_ns=int(whole_ns * draws.uniform(0.03, 0.15)), host_unit_ns=int(draws.uniform(20, 150) * US),
        transfer_ns=int(forward_ns * _draw_log(draws, *TRANSFER_RATIOS)),
        norm_transfer_ns=int(draws.uniform(15, 40) * US), jitter_ratio=float(draws.uniform(0.005, 0.03)),
        drift_ppm=tuple(draws.uniform(-MOST_DRIFT_PPM, MOST_DRIFT_PPM, ranks).tolist()),
        run_ahead=ahead, launch_queue=int(draws.choice([192, 256, 1024])), launch_ns=int(draws.uniform(2, 6) * US),
        num_events=int(draws.integers(*FEW_EVENTS)) if draws.random() < 0.05 else NUM_EVENTS,
        every=None if draws.random() < 0.3 else 1, late=None, link=None,
    )  # fmt: skip
    return replace(job, late=_draw_late(draws, job), link=_draw_link(draws, job))


def _draw_log(draws: np.random.Generator, low: float, high: float) -> float:
    """As likely between 5 and 10 % as between 40 and 80 %."""
    return float(np.exp(draws.uniform(np.log(low), np.log(high))))


def _draw_shape(draws: np.random.Generator, strategy: str) -> tuple[int, int]:
    if strategy == "hsdp":
        replicas, shards = draws.choice([(2, 2), (2, 3), (3, 2), (2, 4), (4, 2)])
        return int(replicas), int(shards)
    return 1, int(draws.integers(2, 9))


def _draw_late(draws: np.random.Generator, job: DeviceJob) -> LateRank | None:
    if draws.random() < 0.25:
        return None
    phase = LATE_PHASES[int(draws.integers(len(LATE_PHASES)))]
    split = phase in (Phase.FORWARD, Phase.BACKWARD) and draws.random() < 0.5
    return LateRank(
        rank=int(draws.integers(job.num_ranks)), phase=phase, ratio=_draw_log(draws, *LATE_RATIOS),
        on_host=phase is Phase.DATA and job.run_ahead == 0, unit=int(draws.integers(job.num_units)) if split else None,
    )  # fmt: skip


def _draw_link(draws: np.random.Generator, job: DeviceJob) -> SlowTransfer | None:
    if job.num_hosts == 1 or draws.random() < 0.6:
        return None
    crossing = [name for name in job.groups if job.strategy != "hsdp" or name.startswith("replicate")]
    return SlowTransfer(group=crossing[int(draws.integers(len(crossing)))], factor=float(draws.uniform(1.5, 5.0)))
