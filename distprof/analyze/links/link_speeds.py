"""How fast is each link by its probes at both ends of the job, against the others and against its own past?

A probe may be disturbed by other work on the network. Two that agree, at both ends of the job, are believed where one
would not be; and how much the readings of the other links differ between the ends tells what a reading is worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.run import LinkReading

GIGABIT_BYTES_PER_S = 125e6 * 1448 / 1538
"""What TCP carries over gigabit Ethernet (IEEE 802.3ab): of the 1,538 bytes that a full frame takes on the wire, 1,448
are data. What a job's only link is compared with."""
SHORT_RATIO = 0.8
"""Of gigabit Ethernet; a probe of a healthy link reads a few percent too little."""
ONCE_RATIO = 0.5
"""A link that was probed once is slow below this share of the others' median ..."""
TWICE_RATIO = 0.75
"""... and one that was probed at both ends of the job, if both readings are below this. A link has become slow if its
reading has fallen below this share of what it was."""
NOISE_FACTOR = 3.0
"""By so many times what the others' readings differ between both ends (median, of the logarithms), a link must be
slower than they are, or have become so."""
MIN_OTHERS = 2
"""Readings to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeeds:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A link that is slower than it should be."""

    hosts: tuple[str, ...]
    """The host behind it or, of a job's only link, both ends."""
    far: str
    """The host at its end that is not rank 0's."""
    bytes_per_s: float
    usual_bytes_per_s: float
    """What it is compared with."""


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
    found = (
        [_detect_slow_link(speeds, hosts, far) for far in hosts]
        if len(hosts) > 1
        else [_detect_slow_only_link(speeds, hosts)]
    )
    return sorted((link for link in found if link is not None), key=lambda link: link.bytes_per_s)


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
    """The link if every reading of it is slow against the others' at that time."""
    rounds = [found for found in (speeds.first, speeds.last) if far in found]
    compared = [[other for other in found if other != far] for found in rounds]
    if min(map(len, compared)) < MIN_OTHERS:
        return None
    usual = [_median_of_hosts(found, others) for found, others in zip(rounds, compared, strict=True)]
    limit = ONCE_RATIO if len(rounds) == 1 else TWICE_RATIO
    if any(found[far] >= limit * speed for found, speed in zip(rounds, usual, strict=True)):
        return None
    past = speeds.compute_change_ratios()
    noise = _estimate_noise(past, [other for other in past if other != far]) if len(rounds) == 2 else 0.0
    mean, usual_mean = _average([found[far] for found in rounds]), _average(usual)
    if np.log(usual_mean / mean) <= NOISE_FACTOR * noise:
        return None
    return SlowLink(hosts=(far,), far=far, bytes_per_s=mean, usual_bytes_per_s=usual_mean)


def _detect_slow_only_link(speeds: LinkSpeeds, hosts: Sequence[str]) -> SlowLink | None:
    """A job's only link if no reading of it comes near what any network of gloo's carries today. Those of NCCL differ
    too much: one that is slow for its kind may be faster than another."""
    known = [found[far] for far in hosts for found in (speeds.first, speeds.last) if far in found]
    if not known or speeds.near is None or speeds.network != "gloo" or max(known) >= SHORT_RATIO * GIGABIT_BYTES_PER_S:
        return None
    far, speed = hosts[0], _average(known)
    return SlowLink(hosts=(speeds.near, far), far=far, bytes_per_s=speed, usual_bytes_per_s=GIGABIT_BYTES_PER_S)


def _median_of_hosts(values: Mapping[str, float], hosts: Iterable[str]) -> float:
    return float(np.median([values[host] for host in hosts]))


def _estimate_noise(past: Mapping[str, float], hosts: Sequence[str]) -> float:
    """How much readings of the same link differ, apart from what happened to all: median of the logarithms."""
    changes = np.log([past[host] for host in hosts])
    return float(np.median(np.abs(changes - np.median(changes)))) if len(changes) else 0.0


def _average(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
