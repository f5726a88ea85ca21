"""What the rules found in traces: numbers and names, which `distprof.render.finding_texts` puts into words. Parts of a
report."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct, field


class MissingData(enum.StrEnum):
    """Why a rule could not be checked."""

    why: str
    """In words, for which renderers fill in how much of the time is in doubt, and on which ranks."""

    def __new__(cls, name: str, why: str) -> MissingData:
        lack = str.__new__(cls, name)
        lack._value_, lack.why = name, why
        return lack

    NO_DEVICE = "no device activity", "no device activity was traced"
    DEVICE_NOT_UNDERSTOOD = (
        "device activity not understood", "no device activity was understood (the coverage says what there is)"
    )  # fmt: skip
    NO_CALLS = "no API calls", "no calls of the device's API were traced"
    CALLS_NOT_UNDERSTOOD = (
        "API calls not understood", "no calls of the device's API were understood (the coverage says what there is)"
    )  # fmt: skip
    NO_STEPS = "no steps", "no steps are known"
    NO_RANGES = "no ranges", "no named ranges were traced"
    NO_LAUNCHES = "no launches", "the launches of what ran on the device are not in the trace"
    NO_RANGE_LAUNCHES = "no launches in ranges", "what the ranges launched is not in the trace"
    NO_COLLECTIVES = "no collectives on the device", "no collective ran on a device (gloo's run on the host)"
    NO_PRODUCTS = "no matrix products", "hardly any kernel is a matrix product by its name"
    UNKNOWN_KERNELS = "unknown kernels", "{share} of compute is in kernels whose names do not tell what they are for"
    UNKNOWN_PRECISION = (
        "unknown precision", "{share} of GPU time is matrix products whose names do not tell the precision"
    )  # fmt: skip
    UNKNOWN_DEVICE = "unknown device", "the trace does not tell what kind of device it is"
    NO_MEMORY_SIZE = "no memory size", "no rank has both the size of its device's memory and its peak use"
    COPIES_TOO_LONG = "copies longer than steps", "copies on {ranks} take longer than the steps that issued them"
    PROFILER = (
        "profiler", "the profiler made the steps longer than others, and in those the device idles at most {share}"
    )  # fmt: skip
    CALLS_TOO_LONG = "calls longer than steps", "calls that wait, on {ranks}, take longer than the steps"


class EvidenceItem(Struct, frozen=True, kw_only=True):
    """Numbers of one kernel, call, kind of copy or range that a finding is based on."""

    label: str
    """What it is."""
    name: str | None
    """Of the kernel, call, range or device. None: ``label`` says it all."""
    stream: int | None = None
    """The device's stream that the numbers are of; None: they are of no single one."""
    ranks: tuple[int, ...]
    """The ranks that the numbers are of."""
    numbers: Mapping[str, float]
    """By name, which ends in the unit: ``_ns``, ``_ratio``, ``_bytes``, ``_count`` or ``_factor``."""


class Finding(Struct, frozen=True, kw_only=True):
    """Something worth changing, or worth knowing before drawing conclusions."""

    rule: str
    """Its name in the table of ``docs/findings.md``."""
    share_ratio: float
    """The part of the step that it concerns; findings are ranked by it. It is no promise of what is gained."""
    ranks: tuple[int, ...]
    """The ranks concerned, the worst first."""
    ranks_checked: int
    """How many ranks had the data for the rule."""
    by_rank: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """What the rule looks at, by position in ``ranks``; named as ``facts`` are."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Other numbers, of the worst rank unless they concern all; named as those of an `EvidenceItem`. What is not
    measured is left out."""
    per_step: bool = True
    """False: some rank has no known steps, so device times, counts and shares are those of the whole trace."""
    traits: tuple[str, ...] = ()
    """What the rule concluded besides its numbers, on which the words of the finding depend."""
    figures: tuple[EvidenceItem, ...] = ()
    """The most important first."""


class NotChecked(Struct, frozen=True, kw_only=True):
    """A rule that lacked its data."""

    rule: str
    """Name of the rule, as the table in docs/findings.md has it."""
    lack: MissingData
    """Why it could not be checked."""
    share_ratio: float | None = None
    """How much of the time is in doubt. None: the reason has no such number."""
    ranks: tuple[int, ...] = ()
    """The ranks that caused it, where it is not all of them."""
