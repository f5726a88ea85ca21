"""What the rules found in traces: numbers and names, which `distprof.render.finding_texts` puts into words. Parts of a
report."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping


class RuleName(enum.StrEnum):
    """The rules, as their table in the documentation names them."""

    MATMUL_SHARE = "matmul_share"
    FP32_MATMUL = "fp32_matmul"
    EAGER_ATTENTION = "eager_attention"
    OLDER_KERNELS = "older_kernels"
    SMALL_ELEMENTWISE = "small_elementwise"
    HOST_BOUND = "host_bound"
    LAUNCH_GAPS = "launch_gaps"
    EXPOSED_COMMUNICATION = "exposed_communication"
    COPIES_IN_STEP = "copies_in_step"
    SYNC_IN_STEP = "sync_in_step"
    UNLIKE_SIBLINGS = "unlike_siblings"
    MEMORY_LIMIT = "memory_limit"
    HOST_IS_NOT_GPU = "host_is_not_gpu"
    WARMUP_IN_STATISTICS = "warmup_in_statistics"


class Trait(enum.StrEnum):
    """What a rule concluded besides its numbers, and what the words of a finding depend on."""

    MATRIX_CORES = "matrix cores"
    """fp32_matmul: the device is AMD's; else it has tensor cores."""
    CORES_USED = "cores used"
    """fp32_matmul: the products run on those cores, at the rate of fp32."""
    TF32 = "tf32"
    """fp32_matmul: the device has this precision."""
    SHORT_GAPS = "short gaps"
    """launch_gaps: most of the time is in gaps as short as the latency of a launch."""
    GRAPH_GAPS = "graph gaps"
    """launch_gaps: most of the time is before CUDA graphs and their nodes."""
    NO_WORKERS = "no workers"
    """host_bound: the data loader works in the training process itself."""
    UNEVEN = "uneven"
    """exposed_communication: ranks differ so much that some of it must be waiting."""
    PINNED = "pinned"
    """copies_in_step: hardly any of the memory could still be pinned."""
    HOST_ONLY = "host only"
    """host_is_not_gpu: there are host times only."""
    NOT_UNDERSTOOD = "not understood"
    """host_is_not_gpu: the traces hold events that could not be interpreted."""
    CALLS_TRACED = "calls traced"
    """host_is_not_gpu: the device's API was called."""
    SHARE_OFF = "share off"
    """warmup_in_statistics: warm-up shifts the range's share of the step, not just its mean."""


class Lack(enum.StrEnum):
    """Why a rule could not be checked."""

    NO_DEVICE = "no device activity"
    DEVICE_NOT_UNDERSTOOD = "device activity not understood"
    NO_CALLS = "no API calls"
    CALLS_NOT_UNDERSTOOD = "API calls not understood"
    NO_STEPS = "no steps"
    NO_RANGES = "no ranges"
    NO_SIBLINGS = "no siblings"
    NO_LAUNCHES = "no launches"
    NO_RANGE_LAUNCHES = "no launches in ranges"
    NO_COLLECTIVES = "no collectives on the device"
    NO_PRODUCTS = "no matrix products"
    UNKNOWN_KERNELS = "unknown kernels"
    UNKNOWN_PRECISION = "unknown precision"
    UNKNOWN_DEVICE = "unknown device"
    NO_MEMORY_SIZE = "no memory size"
    COPIES_TOO_LONG = "copies longer than steps"
    CALLS_TOO_LONG = "calls longer than steps"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Numbers of one kernel, call, kind of copy or range that a finding is based on."""

    sign: str
    """What it is."""
    name: str | None
    """Of the kernel, call, range or device. None: ``sign`` says it all."""
    family: str | None = None
    """The name that the range shares with its siblings, the number replaced by ``#``. None: it is not about siblings.
    """
    stream: int | None = None
    """The device's stream that the numbers are of; None: they are of no single one."""
    ranks: tuple[int, ...]
    numbers: Mapping[str, float]
    """By name, which ends in the unit: ``_ns``, ``_ratio``, ``_bytes``, ``_count`` or ``_factor``."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something worth changing, or worth knowing before drawing conclusions."""

    rule: RuleName
    share_ratio: float
    """What it touches, as a share of the step; findings are ranked by it. Not a promise of what is gained."""
    ranks: tuple[int, ...]
    """The ranks concerned, the worst first."""
    ranks_checked: int
    """How many ranks had the data for the rule."""
    by_rank: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    """What the rule looks at, by position in ``ranks``; named as ``facts`` are."""
    facts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Other numbers, of the worst rank unless they concern all; named as those of a `Figure`. What is not measured is
    left out."""
    per_step: bool = True
    """False: some rank has no known steps, so device times, counts and shares are those of the whole trace."""
    traits: tuple[Trait, ...] = ()
    figures: tuple[Figure, ...] = ()
    """The most important first."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NotChecked:
    """A rule that lacked its data."""

    rule: RuleName
    lack: Lack
    share_ratio: float | None = None
    """How much of the time is in doubt. None: the reason has no such number."""
    ranks: tuple[int, ...] = ()
    """The ranks that caused it, where it is not all of them."""
