"""Which link is slow: against the other links of the job, against its own past, or against gigabit Ethernet?

A slow link delays every rank alike, however punctual the ranks are. So it shows in transfers, which begin when the last
rank has arrived, and what it costs is what they take beyond what they would take on a link like the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.link_change import find_changed_link
from distprof.analyze.link_traffic import Traffic, count_link_bytes, find_scatter, list_traffic, measure_rate
from distprof.analyze.measured_steps import MeasuredSteps
from distprof.analyze.removal import Removal
from distprof.analyze.replay import measure_saved
from distprof.analyze.suspect import Suspect
from distprof.analyze.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.facts.run import FloatArray, LinkReading
from distprof.report.wait_report import VerdictKind

GIGABIT_BYTES_PER_S = 125e6 * 1448 / 1538
"""What TCP carries over gigabit Ethernet (IEEE 802.3ab): of the 1,538 bytes that a full frame takes on the wire, 1,448
are data. What a job's only link is compared with."""
UNEQUAL_RATIO = 0.5
"""A link below this share of the others' median is slow against them."""
SHORT_RATIO = 0.8
"""Of gigabit Ethernet; a probe of a healthy link reads a few percent too little."""
SURPASSED_RATIO = 0.7
"""If the steps themselves move data through a link at this share of the others' speed, its probe read too little."""
MIN_OTHERS = 2
"""Readings to compare with."""
SATURATED_RATIO = 0.5
"""Of what moving data costs: the least that the bytes of a step must need at the link's probed speed. A ring moves the
least data that any algorithm can; gloo's reduce-scatter moves twice as much."""
TOGETHER_RATIO = 0.1
"""Of what transfers take too long: the least that ranks must come to closer together than by as much. Where they arrive
further apart all the time, a transfer may be a wait that was not seen as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probed:
    """A link whose probe is too slow."""

    hosts: tuple[str, ...]
    far: str
    """The host at its end that is not rank 0's."""
    bytes_per_s: float
    usual_bytes_per_s: float
    """What it is compared with."""


def find_slow_links(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> list[Suspect]:
    """The links that the steps wait for, the slowest first; empty: one host only, or none is slow."""
    if cycles is None or len(cycles.steps) < MIN_CYCLES or measured_steps.num_missing:
        return []
    traffic = list_traffic(measured_steps, cycles)
    if not any(len(item.hosts) > 1 for item in traffic):
        return []
    links = [link for link in _list_probed(measured_steps) if _is_limited(cycles, traffic, link)]
    found = [_find_excess(cycles, traffic, link, links) for link in links]
    suspects = [
        _suspect(link, excess_ns)
        for link, excess_ns in zip(links, found, strict=True)
        if excess_ns.any() and _find_together(cycles, traffic, excess_ns) >= TOGETHER_RATIO
    ]
    changed = None if suspects else find_changed_link(measured_steps, cycles, traffic)
    return suspects if changed is None else [changed]


def measure_needed(measured_steps: MeasuredSteps, cycles: SyncCycles, link: Suspect) -> float | None:
    """What the bytes of a step need at a link's probed speed, ns. None: its probe is not what makes it suspect."""
    reading = _find_readings(measured_steps).get(link.hosts[-1]) if link.hosts and link.excess_ns is None else None
    if link.kind is not VerdictKind.SLOW_LINK or reading is None:
        return None
    return count_link_bytes(list_traffic(measured_steps, cycles), link.hosts[-1]) / reading.bytes_per_s * 1e9


def explain_link(link: Suspect) -> str:
    """What a link was compared with."""
    if link.excess_ns is not None:
        return "transfers between hosts take longer than before, and nothing else does"
    if len(link.hosts) == 1:
        return "it carries less than half of what the other links do"
    return "it carries less than gigabit Ethernet does"


def _find_readings(measured_steps: MeasuredSteps) -> dict[str, LinkReading]:
    """By host. The probe uses the network of gloo; another backend may use another, so nothing is known of it."""
    meta = measured_steps.run.meta
    hosts = {info.rank: info.host for info in measured_steps.run.ranks}
    known = meta.link_readings if meta.backend == "gloo" else ()
    return {hosts[reading.rank]: reading for reading in known if reading.rank in hosts}


def _list_probed(measured_steps: MeasuredSteps) -> list[_Probed]:
    """The links whose probe is too slow, the slowest first."""
    readings = {host: reading.bytes_per_s for host, reading in _find_readings(measured_steps).items()}
    near = next((info.host for info in measured_steps.run.ranks if info.rank == 0), None)
    found = []
    for far, speed in sorted(readings.items(), key=lambda item: item[1]):
        others = [other for host, other in readings.items() if host != far]
        if len(others) >= MIN_OTHERS and speed < UNEQUAL_RATIO * float(np.median(others)):
            found.append(_Probed(hosts=(far,), far=far, bytes_per_s=speed, usual_bytes_per_s=float(np.median(others))))
        elif not others and near is not None and speed < SHORT_RATIO * GIGABIT_BYTES_PER_S:
            ends = (near, far)
            found.append(_Probed(hosts=ends, far=far, bytes_per_s=speed, usual_bytes_per_s=GIGABIT_BYTES_PER_S))
    return found


def _is_limited(cycles: SyncCycles, traffic: list[Traffic], link: _Probed) -> bool:
    """Whether the steps agree with the probe: transfers go no faster, and the bytes explain most of what they cost."""
    if measure_rate(traffic, cycles, link.far) >= SURPASSED_RATIO * link.usual_bytes_per_s:
        return False
    transfer_ns = cycles.transfer_ns.copy()
    for item in traffic:
        if _crosses(item, link):
            transfer_ns[item.rows, :, item.index] = 0
    cost_ns = float(np.median(measure_saved(cycles, transfer_ns=transfer_ns)))
    needed_ns = count_link_bytes(traffic, link.far) / link.bytes_per_s * 1e9
    return needed_ns > 0 and needed_ns >= SATURATED_RATIO * cost_ns


def _crosses(item: Traffic, link: _Probed) -> bool:
    return link.far in item.hosts and len(item.hosts) > 1


def _suspect(link: _Probed, excess_ns: FloatArray) -> Suspect:
    return Suspect(
        kind=VerdictKind.SLOW_LINK, rows=np.array([], dtype=np.int64), part=None, hosts=link.hosts,
        acts=np.logical_or.reduce(excess_ns > 0, axis=(0, 2)), removal=Removal(transfer_ns=excess_ns),
    )  # fmt: skip


def _find_excess(cycles: SyncCycles, traffic: list[Traffic], link: _Probed, links: list[_Probed]) -> FloatArray:
    """What transfers take beyond what they would on a usual link, ``[num_ranks, num_cycles, num_collectives]``."""
    excess_ns = np.zeros_like(cycles.transfer_ns)
    for item in traffic:
        if _crosses(item, link):
            share = _find_share(link, [other for other in links if _crosses(item, other)])
            excess_ns[item.rows, :, item.index] = share * cycles.transfer_ns[item.rows, :, item.index]
    return excess_ns


def _find_share(link: _Probed, crossed: list[_Probed]) -> float:
    """Share of a transfer that goes with one of the slow links it crosses, the slowest first. That one sets the pace;
    with it repaired, the next one does. So the shares add up to what is beyond the usual pace."""
    faster = crossed[crossed.index(link) + 1 :]
    then = min(faster[0].bytes_per_s if faster else link.usual_bytes_per_s, link.usual_bytes_per_s)
    return crossed[0].bytes_per_s / link.bytes_per_s - crossed[0].bytes_per_s / then


def _find_together(cycles: SyncCycles, traffic: list[Traffic], excess_ns: FloatArray) -> float:
    """Share of the excess for which ranks come to a wait closer together than the transfers before it exceed."""
    waits = np.flatnonzero(cycles.blocking)
    together_ns = all_ns = 0.0
    for item in traffic:
        if cycles.blocking[item.index]:
            first = int(waits[waits < item.index].max(initial=-1)) + 1
            exceeded_ns = excess_ns[item.rows, :, first : item.index + 1].sum(axis=2).max(axis=0)
            all_ns += float(exceeded_ns.sum())
            together_ns += float(exceeded_ns[find_scatter(cycles, item) <= exceeded_ns].sum())
    return together_ns / all_ns if all_ns > 0 else 0.0
