"""What targeted probes of suspected ranks conclude: the device, the host, the link, or nothing."""

from __future__ import annotations

import enum

from msgspec import Struct


class ProbedPart(enum.StrEnum):
    """Which part of a suspect falls short."""

    DEVICE = "device"
    """What the rank does not share with the other ranks of its host."""
    HOST = "host"
    """What all probed ranks of that host share."""
    DEVICE_OR_HOST = "device or host"
    """No other rank of that host was probed that would tell."""
    LINK = "link"
    """What moves data between the rank and others."""


class ProbeFigure(Struct, frozen=True, kw_only=True):
    """Of the rounds of one measurement."""

    median: float
    """Half of the rounds measured less."""
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""


class ProbedRankReport(Struct, frozen=True, kw_only=True):
    """A rank by itself, on the host clock."""

    rank: int
    """Global rank."""
    suspect: bool
    """Otherwise it is one of the two references."""
    host: str
    """Its name; two hosts never share one."""
    device: str
    """The model of the device."""
    product_flops_per_s: ProbeFigure | None
    """Matrix products on the device. None, here and below: not measured."""
    copy_bytes_per_s: ProbeFigure | None
    """Within the host's memory."""
    to_device_bytes_per_s: ProbeFigure | None
    """From the host's pinned memory to the GPU."""
    device_copy_bytes_per_s: ProbeFigure | None
    """Within the GPU's memory."""


class ProbedPairReport(Struct, frozen=True, kw_only=True):
    """An exchange between two ranks, on the host clock of the lower one."""

    rank: int
    """The lower rank."""
    peer: int
    """The other one."""
    latency_ns: ProbeFigure | None
    """Half of a round trip of 8 bytes. None, here and below: not measured."""
    there_bytes_per_s: ProbeFigure | None
    """From the lower rank."""
    back_bytes_per_s: ProbeFigure | None
    """To the lower rank."""


class ProbeFinding(Struct, frozen=True, kw_only=True):
    """A difference beyond what repeats and references show among themselves."""

    part: ProbedPart
    """What falls short."""
    ranks: tuple[int, ...]
    """Whose it is: one suspect, or of a host all its ranks that were probed."""
    host: str
    """Where these run."""
    peer: int | None
    """The reference to which alone the link is slow. None: to all that it was compared for, or it is no link."""
    figure: str
    """The measurement that falls short most, such as "product_flops_per_s"; "bytes_per_s" is a link's slower way."""
    median: float
    """Of the rank that falls short most."""
    least: float
    """The lowest median of those that it is compared with; of latency_ns the highest."""
    shortfall_ratio: float
    """How far the median is from it, as a share of it: 0.4 is 40 % slower; of latency_ns 40 % less would be as good."""
    others: tuple[str, ...]
    """Further measurements in which it falls short."""


class ProbeReport(Struct, frozen=True, kw_only=True):
    """What ``distprof doctor --suspects`` measured and concludes."""

    device_type: str
    """"cpu" or "cuda"."""
    backend: str
    """What moved the data between ranks."""
    suspects: tuple[int, ...]
    """Ranks that were named as suspects."""
    references: tuple[int, ...]
    """Two ranks that are taken to be healthy."""
    rounds: int
    """How often everything was measured."""
    enough: bool
    """Whether the rounds are enough to tell a difference from chance; if not, there are no findings."""
    findings: tuple[ProbeFinding, ...]
    """Empty: nothing differs beyond the spread of the repeated measurements."""
    link_unknown: tuple[int, ...]
    """Suspects whose links were not compared: no other probed pair lies like theirs, within a host or across hosts."""
    ranks: tuple[ProbedRankReport, ...]
    """Suspects and references, in ascending order."""
    pairs: tuple[ProbedPairReport, ...]
    """Each suspect with each reference, and the two references."""
