"""Which link is slow: against the other links or groups of the job, its own past, or gigabit Ethernet?

A slow link delays every rank alike, however punctual the ranks are. So it shows in transfers, which begin when the last
rank has arrived, and what it costs is what they take beyond what they would take on a link like the others.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.links.link_change import find_changed_links
from distprof.analyze.links.link_groups import find_slow_groups
from distprof.analyze.links.link_speeds import LinkSpeeds, SlowLink, find_next, list_slow, list_slowed, read_speeds
from distprof.analyze.links.link_traffic import (
    Traffic,
    count_link_bytes,
    crosses,
    find_scatter,
    find_transfer,
    list_traffic,
    measure_rate,
)
from distprof.analyze.replay.candidate import Suspect
from distprof.analyze.replay.counterfactual import Removal
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import midmean
from distprof.facts.run import FloatArray
from distprof.report.wait_report import VerdictKind

SATURATED_RATIO = 0.5
"""Of the time that transfers across a link take: the least that their bytes must need at its probed speed. A ring moves
the least data that any algorithm can; gloo's reduce-scatter moves twice as much."""
TOGETHER_RATIO = 0.1
"""Of what transfers take too long: the least that ranks must come to closer together than by as much. Where they arrive
further apart all the time, a transfer may be a wait that was not seen as one."""


def find_slow_links(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> list[Suspect]:
    """The links that the steps wait for, the slowest first; empty: one host only, or none is slow."""
    if cycles is None or len(cycles.steps) < MIN_CYCLES or measured_steps.num_missing:
        return []
    traffic = list_traffic(measured_steps, cycles)
    if not any(len(item.hosts) > 1 for item in traffic):
        return []
    speeds = read_speeds(measured_steps)
    links = [link for link in list_slow(speeds) if _is_limited(cycles, traffic, link)]
    found = [(link.hosts, _find_excess(cycles, traffic, link, links)) for link in links]
    found = found or [(group.hosts, group.excess_ns) for group in find_slow_groups(cycles, traffic)]
    suspects = [
        _suspect(hosts, excess_ns)
        for hosts, excess_ns in found
        if excess_ns.any() and _find_together(cycles, traffic, excess_ns) >= TOGETHER_RATIO
    ]
    return suspects or find_changed_links(measured_steps, cycles, traffic, speeds)


def measure_needed(measured_steps: MeasuredSteps, cycles: SyncCycles, suspect: Suspect) -> float | None:
    """What the bytes of a step need at a link's probed speed, ns. None: its probe is not what makes it suspect."""
    if suspect.kind is not VerdictKind.SLOW_LINK or suspect.excess_ns is not None:
        return None
    link = _find_probed(read_speeds(measured_steps), suspect)
    if link is None:
        return None
    return count_link_bytes(list_traffic(measured_steps, cycles), link.far) / link.bytes_per_s * 1e9


def explain_link(measured_steps: MeasuredSteps, suspect: Suspect) -> str:
    """What a link was compared with."""
    speeds = read_speeds(measured_steps)
    if suspect.excess_ns is not None:
        grown = "transfers between hosts take longer than before, and nothing else does"
        slowed = [link.hosts for link in list_slowed(speeds)]
        return f"{grown}; a probe at the end of the job finds this link slow" if suspect.hosts in slowed else grown
    if _find_probed(speeds, suspect) is None:
        return "collectives over it move data at less than three quarters of the speed of those of other hosts"
    if len(suspect.hosts) > 1:
        return "it carries less than gigabit Ethernet does"
    if suspect.hosts[0] in speeds.find_past():
        return "at both ends of the job it carries less than three quarters of what the other links do"
    return "it carries less than half of what the other links do"


def _find_probed(speeds: LinkSpeeds, suspect: Suspect) -> SlowLink | None:
    """What a probe read of the link. None: it was found by its collectives."""
    return next((link for link in list_slow(speeds) if link.hosts == suspect.hosts), None)


def _is_limited(cycles: SyncCycles, traffic: list[Traffic], link: SlowLink) -> bool:
    """Whether the steps agree with the probe: they go no faster, and their bytes explain most of the time they take.

    What they go faster than lies midway between what the probe reads and what others do, as ratios go.
    """
    crossing = [item for item in traffic if crosses(item, link.far)]
    if measure_rate(crossing, cycles) >= np.sqrt(link.bytes_per_s * link.usual_bytes_per_s):
        return False
    slowest_ns: dict[int, float] = {}
    for item in crossing:
        middle_ns = float(np.median(find_transfer(cycles, item)))
        slowest_ns[item.index] = max(slowest_ns.get(item.index, 0.0), middle_ns)
    needed_ns = count_link_bytes(traffic, link.far) / link.bytes_per_s * 1e9
    return needed_ns > 0 and needed_ns >= SATURATED_RATIO * sum(slowest_ns.values())


def _suspect(hosts: tuple[str, ...], excess_ns: FloatArray) -> Suspect:
    return Suspect(
        kind=VerdictKind.SLOW_LINK, rows=np.array([], dtype=np.int64), part=None, hosts=hosts,
        acts=np.logical_or.reduce(excess_ns > 0, axis=(0, 2)), removal=Removal(transfer_ns=excess_ns),
    )  # fmt: skip


def _find_excess(cycles: SyncCycles, traffic: list[Traffic], link: SlowLink, links: list[SlowLink]) -> FloatArray:
    """What transfers take beyond what they would on a usual link, ``[num_ranks, num_cycles, num_collectives]``."""
    excess_ns = np.zeros_like(cycles.transfer_ns)
    crossing = [item for item in traffic if crosses(item, link.far)]
    for item in crossing:
        crossed = [other for other in links if crosses(item, other.far)]
        num_bytes = count_link_bytes([other for other in crossing if other.index == item.index], link.far)
        took_ns = cycles.transfer_ns[item.rows, :, item.index]
        usual_ns = float(midmean(took_ns.ravel()))
        now_ns, then_ns = (
            _shorten(usual_ns, num_bytes, crossed[0].bytes_per_s, pace)
            for pace in (link.bytes_per_s, find_next(link, crossed))
        )
        excess_ns[item.rows, :, item.index] = took_ns * (now_ns - then_ns) / usual_ns if usual_ns > 0 else 0.0
    return excess_ns


def _shorten(took_ns: float, num_bytes: float, pace: float, faster: float) -> float:
    """What a transfer would take where a link carries more, ns; paces in bytes/s.

    The time that its bytes do not need is the hosts' and stays. It need not show in full, because some bytes cross
    before the last rank arrives. But neither does the whole get shorter by more than the pace gets faster, nor does it
    take less than the bytes need.
    """
    needs_ns, would_need_ns = num_bytes / pace * 1e9, num_bytes / faster * 1e9
    return min(took_ns, max(took_ns * pace / faster, would_need_ns, took_ns - (needs_ns - would_need_ns)))


def _find_together(cycles: SyncCycles, traffic: list[Traffic], excess_ns: FloatArray) -> float:
    """Share of the excess for which ranks come to a wait closer together than the transfers before it exceed."""
    waits = np.flatnonzero(cycles.blocking)
    awaited = cycles.find_awaited()[waits]
    together_ns = all_ns = 0.0
    for item in traffic:
        if item.index in awaited:
            first = int(waits[waits < item.index].max(initial=-1)) + 1
            exceeded_ns = excess_ns[item.rows, :, first : item.index + 1].sum(axis=2).max(axis=0)
            all_ns += float(exceeded_ns.sum())
            together_ns += float(exceeded_ns[find_scatter(cycles, item) <= exceeded_ns].sum())
    return together_ns / all_ns if all_ns > 0 else 0.0
