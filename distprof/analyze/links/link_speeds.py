"""How fast is each link by its probes at both ends of the job: against the others, its own past, and gigabit Ethernet?

A probe may be disturbed by other work on the network. Two that agree, at both ends of the job, are believed where one
would not be; and how much readings of the same link and of links that are alike differ tells what a reading is worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.significance import t_quantile
from distprof.analyze.stats.statistics import LEVEL
from distprof.facts.run import LinkReading

GIGABIT_BYTES_PER_S = 125e6 * 1448 / 1538
"""What TCP carries over gigabit Ethernet (IEEE 802.3ab): of the 1,538 bytes that a full frame takes on the wire, 1,448
are data. What every link of gloo is compared with: any network carries as much today. Links of NCCL differ too much:
one that is slow for its kind may be faster than another."""
SHORT_RATIO = 0.8
"""Of gigabit Ethernet; a probe of a healthy link reads a few percent too little."""
ONCE_RATIO = 0.5
"""A link that was probed once is slow below this share of the others' median ..."""
TWICE_RATIO = 0.75
"""... and one that was probed at both ends of the job, if both readings are below this. A link has become slow if its
reading has fallen below this share of what it was."""
ALPHA = 0.005
"""That some link of a job is named although all are alike, where readings err log-normally."""
MIN_DEGREES = 3
"""Of freedom, of an estimated error."""
NOISE_FACTOR = 3.0
"""By so many times what the others' readings differ between both ends (median, of the logarithms), a link must have
become slower than they have."""
MIN_OTHERS = 2
"""Readings to compare with."""


class LinkSpeeds(Struct, frozen=True, kw_only=True):
    """Probed speeds of the links between rank 0's host and others, bytes/s by the other host."""

    near: str | None
    """Rank 0's host. None: it is missing."""
    network: str
    """The backend that they were probed over, and that the job uses."""
    first: Mapping[str, float]
    """At the start of the job."""
    last: Mapping[str, float]
    """At its end; hosts may be missing."""

    def compute_change_ratios(self) -> dict[str, float]:
        """Each link's reading at the end over that at the start, of those probed twice."""
        return {host: last / self.first[host] for host, last in self.last.items() if host in self.first}


class SlowLink(Struct, frozen=True, kw_only=True):
    """A link that is slower than it should be."""

    hosts: tuple[str, ...]
    """The host behind it; of a job's only link both ends; of a network that is slow everywhere all hosts."""
    far: str
    """The host at its end that is not rank 0's."""
    bytes_per_s: float
    usual_bytes_per_s: float
    """What it is compared with: the other links, or gigabit Ethernet."""
    reaches: tuple[float, float] = (0.0, 0.0)
    """By how much the logarithms of the two are off at the ends of the 95 % interval of their gap; 0: not known."""


def read_speeds(measured_steps: MeasuredSteps) -> LinkSpeeds:
    """The probes of a run, if they went the way of its collectives: each backend may use another network."""
    meta = measured_steps.run.meta
    hosts = {info.rank: info.host for info in measured_steps.run.ranks}

    def sort(readings: Sequence[LinkReading]) -> dict[str, float]:
        known = [reading for reading in readings if reading.network == meta.backend and reading.rank in hosts]
        return {hosts[reading.rank]: reading.bytes_per_s for reading in known}

    return LinkSpeeds(
        near=hosts.get(0), network=meta.backend or "", first=sort(meta.link_readings),
        last=sort(meta.last_link_readings),
    )  # fmt: skip


def list_slow(speeds: LinkSpeeds) -> list[SlowLink]:
    """The links that were slow whenever they were probed, the slowest first."""
    hosts = [*dict.fromkeys([*speeds.first, *speeds.last])]
    found = [link for far in hosts if (link := _detect_slow_link(speeds, hosts, far)) is not None]
    return sorted(found or _list_below_gigabit(speeds, hosts), key=lambda link: link.bytes_per_s)


def list_slowed(speeds: LinkSpeeds) -> list[SlowLink]:
    """The links that became slow while others did not, the slowest first: against what each was, against what became of
    the others, and against the others as they are now."""
    past = speeds.compute_change_ratios()
    found = []
    for far, ratio in past.items():
        others = [other for other in past if other != far]
        if not others:
            continue
        change, usual = _median_of_hosts(past, others), _median_of_hosts(speeds.last, others)
        limit = TWICE_RATIO if len(others) >= MIN_OTHERS else ONCE_RATIO
        stands_out = np.log(change / ratio) > NOISE_FACTOR * _estimate_noise(past, others)
        if max(ratio, ratio / change, speeds.last[far] / usual) < limit and stands_out:
            found.append(SlowLink(hosts=(far,), far=far, bytes_per_s=speeds.last[far], usual_bytes_per_s=usual))
    return sorted(found, key=lambda link: link.bytes_per_s)


def have_all_slowed(speeds: LinkSpeeds) -> bool | None:
    """Whether links have become slow in general: rank 0's own, or what they share. None: some were not probed twice."""
    past = speeds.compute_change_ratios()
    if not past or len(past) < len({*speeds.first, *speeds.last}):
        return None
    return float(np.median([*past.values()])) < TWICE_RATIO


def compute_repaired_speed(link: SlowLink, crossed: Sequence[SlowLink]) -> float:
    """What transfers go at once a link is repaired, bytes/s, of those that cross some slow links, the slowest first: it
    set the pace, and then the next one does."""
    faster = crossed[crossed.index(link) + 1 :]
    return min(faster[0].bytes_per_s if faster else link.usual_bytes_per_s, link.usual_bytes_per_s)


def _detect_slow_link(speeds: LinkSpeeds, hosts: Sequence[str], far: str) -> SlowLink | None:
    """The link if every reading of it is slow against the others' at that time, beyond chance."""
    rounds = [found for found in (speeds.first, speeds.last) if far in found]
    compared = [[other for other in found if other != far] for found in rounds]
    if min(map(len, compared)) < MIN_OTHERS:
        return None
    usual = [_median_of_hosts(found, others) for found, others in zip(rounds, compared, strict=True)]
    limit = ONCE_RATIO if len(rounds) == 1 else TWICE_RATIO
    if any(found[far] >= limit * speed for found, speed in zip(rounds, usual, strict=True)):
        return None
    others = [other for other in hosts if other != far]
    if not is_beyond_chance(speeds, far, others):
        return None
    mean, usual_mean = _average([found[far] for found in rounds]), _average(usual)
    found = _compare_readings(speeds, far, others)
    reach = found.error * t_quantile((1 - LEVEL) / 2, found.degrees_of_freedom) if found.error > 0 else 0.0
    own, usual_own = reach * found.own_ratio, reach * (1 - found.own_ratio)
    return SlowLink(
        hosts=(far,), far=far, bytes_per_s=mean, usual_bytes_per_s=usual_mean, reaches=(own, usual_own)
    )  # fmt: skip


class _LinkGap(Struct, frozen=True, kw_only=True):
    """A link against others, in logarithms."""

    gap: float
    """By how much its readings are lower."""
    error: float
    """Of that, a standard error; 0: of so few readings it is not known."""
    degrees_of_freedom: int
    own_ratio: float
    """Share of the error's square that comes from the link's own readings."""


def is_beyond_chance(speeds: LinkSpeeds, far: str, others: Sequence[str]) -> bool:
    """Whether the readings of a link are lower than those of the others by more than readings differ: Student's t, at a
    level corrected for the number of links. Of a few links that were probed once that is not known, and what is slow
    below `ONCE_RATIO` is believed."""
    found = _compare_readings(speeds, far, others)
    if found.error == 0:
        return True
    return found.gap > t_quantile(ALPHA / (1 + len(others)), found.degrees_of_freedom) * found.error


def _compare_readings(speeds: LinkSpeeds, far: str, others: Sequence[str]) -> _LinkGap:
    """A link's readings against those of the others.

    The error of a reading is estimated from how links differ between both ends, apart from what happened to all of
    them, and from how the others differ from each other, without those that are slow as well. Logarithms of readings
    are taken to be normal and independent, with one variance.
    """
    changes = np.log([*speeds.compute_change_ratios().values()])
    change = float(changes.mean()) if len(changes) else 0.0
    rounds = ((speeds.first, change / 2), (speeds.last, -change / 2))
    readings = {
        host: [float(np.log(found[host])) + moved for found, moved in rounds if host in found]
        for host in (far, *others)
    }  # fmt: skip
    means = {host: float(np.mean(own)) for host, own in readings.items()}
    low = np.median([means[other] for other in others]) + np.log(TWICE_RATIO)
    alike = [other for other in others if means[other] >= low]
    alike = alike if len(alike) >= MIN_OTHERS else [*others]
    compared = np.concatenate([readings[other] for other in alike])
    usual = float(compared.mean())
    twice = [own for own in readings.values() if len(own) == 2]
    squares = sum((first - last) ** 2 / 2 for first, last in twice)
    squares += sum(len(readings[other]) * (means[other] - usual) ** 2 for other in alike)
    degrees_of_freedom = max(len(twice) - 1, 0) + len(alike) - 1
    own, rest = 1 / len(readings[far]), 1 / len(compared)
    known = degrees_of_freedom >= MIN_DEGREES
    return _LinkGap(
        gap=usual - means[far], error=math.sqrt(squares / degrees_of_freedom * (own + rest)) if known else 0.0,
        degrees_of_freedom=degrees_of_freedom, own_ratio=own / (own + rest),
    )  # fmt: skip


def _list_below_gigabit(speeds: LinkSpeeds, hosts: Sequence[str]) -> list[SlowLink]:
    """The links of gloo of which no reading comes near gigabit Ethernet; where none does, the network of all hosts.

    A link carries what its better reading says: the other one may have been disturbed, by the training itself too.
    """
    if speeds.near is None or speeds.network != "gloo":
        return []
    best = {far: max(found[far] for found in (speeds.first, speeds.last) if far in found) for far in hosts}
    short = {far: speed for far, speed in best.items() if speed < SHORT_RATIO * GIGABIT_BYTES_PER_S}
    ends: dict[tuple[str, ...], str] = {(far,): far for far in short}
    if short and len(short) == len(hosts):
        ends = {(speeds.near, *hosts): min(short, key=short.__getitem__)}
    return [
        SlowLink(hosts=names, far=far, bytes_per_s=short[far], usual_bytes_per_s=GIGABIT_BYTES_PER_S)
        for names, far in ends.items()
    ]


def _median_of_hosts(values: Mapping[str, float], hosts: Iterable[str]) -> float:
    return float(np.median([values[host] for host in hosts]))


def _estimate_noise(past: Mapping[str, float], hosts: Sequence[str]) -> float:
    """How much readings of the same link differ, apart from what happened to all: median of the logarithms."""
    changes = np.log([past[host] for host in hosts])
    return float(np.median(np.abs(changes - np.median(changes)))) if len(changes) else 0.0


def _average(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
