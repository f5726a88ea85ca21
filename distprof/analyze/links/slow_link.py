"""Which link is slow: against the other links or groups of the job, its own past, or gigabit Ethernet?

A slow link delays every rank alike, however punctual the ranks are. So it shows in transfers, which begin when the last
rank has arrived, and what it costs is what they take beyond what they would take on a link like the others. Where the
network between hosts becomes slow during the job, its own past shows what it could do.
"""

from __future__ import annotations

import numpy as np
from msgspec import structs

from distprof.analyze.clocks.clocks import map_clocks
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.links.link_speeds import (
    GIGABIT_BYTES_PER_S,
    LinkSpeeds,
    SlowLink,
    compute_repaired_speed,
    have_all_slowed,
    list_slow,
    list_slowed,
    read_speeds,
)
from distprof.analyze.links.link_traffic import (
    LASTING_RATIO,
    Traffic,
    count_link_bytes,
    crosses,
    list_slow_groups,
    list_traffic,
    measure_rate,
    measure_scatter,
    median_transfer,
)
from distprof.analyze.replay.candidate import CandidateCause, Unexplained
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import fast_median, midmean
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.run import Clock
from distprof.report.wait_report import VerdictKind

SATURATED_RATIO = 0.25
"""Of the time that transfers across a link take: the least that their bytes must need at its probed speed. A ring moves
the least data that any algorithm can, gloo's reduce-scatter moves twice as much, and hosts take time of their own: what
the bytes do not need stays when the link is repaired."""
TOGETHER_RATIO = 0.1
"""Of what transfers take too long: the least that ranks must come to closer together than by as much. Where they arrive
further apart all the time, a transfer may be a wait that was not seen as one."""
MIN_GROWTH_RATIO = 0.25
"""Of the transfers before: the least by which they must have grown."""
MIN_Z = 5.0
"""Growth over its standard error; high enough for the choice among all cycles at which it may have begun."""
OTHERS_RATIO = 0.5
"""If transfers within hosts, or the ranks' own work, grow by this share of what transfers across hosts do, relative to
what each took before, it is not the network that changed."""


def detect_slow_links(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """The links that the steps wait for, the slowest first; empty: one host only, or none is slow.

    Own times do not show links, so as much is unexplained afterwards.
    """
    measured_steps = unexplained.measured_steps
    traffic = [] if measured_steps.num_missing else list_traffic(measured_steps, cycles)
    if not any(len(item.hosts) > 1 for item in traffic):
        return [], unexplained
    speeds = read_speeds(measured_steps)
    probed = {link.hosts: link for link in list_slow(speeds)}
    links = [link for link in probed.values() if _is_limited(cycles, traffic, link)]
    slow = [(link.hosts, _excess_of_link(cycles, traffic, link, links)) for link in links]
    slow = slow or list_slow_groups(cycles, traffic)
    found = [
        structs.replace(
            _make_candidate(traffic, speeds, hosts, probed.get(hosts), excess_ns),
            ends=_list_ends(cycles, traffic, probed[hosts], links) if hosts in probed else (),
        )
        for hosts, excess_ns in slow
        if excess_ns.any() and _share_together(cycles, traffic, excess_ns) >= TOGETHER_RATIO
    ]
    return found or list_changed_links(measured_steps, cycles, traffic, speeds), unexplained


def _is_limited(cycles: SyncCycles, traffic: list[Traffic], link: SlowLink) -> bool:
    """Whether the steps agree with the probe: they go no faster, and their bytes explain some of the time they take.

    What they go faster than lies midway between what the probe reads and what others do, as ratios go.
    """
    crossing = [item for item in traffic if crosses(item, link.far)]
    if measure_rate(crossing, cycles) >= np.sqrt(link.bytes_per_s * link.usual_bytes_per_s):
        return False
    slowest_ns: dict[int, float] = {}
    for item in crossing:
        middle_ns = float(np.median(median_transfer(cycles, item)))
        slowest_ns[item.index] = max(slowest_ns.get(item.index, 0.0), middle_ns)
    needed_ns = count_link_bytes(traffic, link.far) / link.bytes_per_s * 1e9
    return needed_ns > 0 and needed_ns >= SATURATED_RATIO * sum(slowest_ns.values())


def _make_candidate(
    traffic: list[Traffic], speeds: LinkSpeeds, hosts: tuple[str, ...], link: SlowLink | None, excess_ns: FloatArray
) -> CandidateCause:
    needed_ns = None
    if link is None:
        reason = "collectives over it move data at less than three quarters of the speed of those of other hosts"
    else:
        needed_ns = count_link_bytes(traffic, link.far) / link.bytes_per_s * 1e9
        if link.usual_bytes_per_s == GIGABIT_BYTES_PER_S:
            reason = f"it carries {link.bytes_per_s / 1e6:.3g} MB/s, less than gigabit Ethernet"
        elif hosts[0] in speeds.compute_change_ratios():
            reason = "at both ends of the job it carries less than three quarters of what the other links do"
        else:
            reason = "it carries less than half of what the other links do"
    return CandidateCause(
        kind=VerdictKind.SLOW_LINK, rows=np.array([], dtype=np.int64), part=None, hosts=hosts,
        acts=np.logical_or.reduce(excess_ns > 0, axis=(0, 2)), counterfactual=Counterfactual(transfer_ns=excess_ns),
        reason=reason, needed_ns=needed_ns,
    )  # fmt: skip


def _list_ends(
    cycles: SyncCycles, traffic: list[Traffic], link: SlowLink, links: list[SlowLink]
) -> tuple[Counterfactual, ...]:
    """What the excess of a link leaves or takes too much, if its probes read too little or too much."""
    excess_ns = _excess_of_link(cycles, traffic, link, links)
    return tuple(
        Counterfactual(transfer_ns=_excess_of_link(cycles, traffic, link, links, side=side) - excess_ns)
        for side in (-1, 1) if any(link.reaches)
    )  # fmt: skip


def _excess_of_link(
    cycles: SyncCycles, traffic: list[Traffic], link: SlowLink, links: list[SlowLink], *, side: int = 0
) -> FloatArray:
    """What transfers take beyond what they would on a usual link, ``[num_ranks, num_cycles, num_collectives]``; with a
    ``side`` of 1 or -1, if the link and the others are as unlike or as like as their probes allow."""
    slower, faster = (float(np.exp(side * reach)) for reach in link.reaches)
    excess_ns = np.zeros_like(cycles.transfer_ns)
    crossing = [item for item in traffic if crosses(item, link.far)]
    for item in crossing:
        crossed = [other for other in links if crosses(item, other.far)]
        num_bytes = count_link_bytes([other for other in crossing if other.index == item.index], link.far)
        took_ns = cycles.transfer_ns[item.rows, :, item.index]
        usual_ns = float(midmean(took_ns.ravel()))
        pace, repaired = link.bytes_per_s / slower, compute_repaired_speed(link, crossed) * faster
        now_ns, then_ns = (
            _shorten(usual_ns, num_bytes, crossed[0].bytes_per_s / slower, speed)
            for speed in (pace, max(pace, repaired))
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


def _share_together(cycles: SyncCycles, traffic: list[Traffic], excess_ns: FloatArray) -> float:
    """Share of the excess for which ranks come to a wait closer together than the transfers before it exceed."""
    waits = np.flatnonzero(cycles.is_waited_on)
    awaited = cycles.list_awaited()[waits]
    together_ns = all_ns = 0.0
    for item in traffic:
        if item.index in awaited:
            first = int(waits[waits < item.index].max(initial=-1)) + 1
            exceeded_ns = excess_ns[item.rows, :, first : item.index + 1].sum(axis=2).max(axis=0)
            all_ns += float(exceeded_ns.sum())
            together_ns += float(exceeded_ns[measure_scatter(cycles, item) <= exceeded_ns].sum())
    return together_ns / all_ns if all_ns > 0 else 0.0


def list_changed_links(
    measured_steps: MeasuredSteps, cycles: SyncCycles, traffic: list[Traffic], speeds: LinkSpeeds
) -> list[CandidateCause]:
    """The links between some hosts, if transfers that cross them have taken longer since some cycle, and stay so.

    If the links were probed again at the end, those are named that have become slow, and none if none has. Else it is
    the network between the hosts that all slower transfers join.

    Rows hold one wait for all collectives of a step, which cannot be told apart into those that cross and those that do
    not, so they are no evidence.
    """
    crossing = [item for item in traffic if len(item.hosts) > 1]
    within = [item for item in traffic if len(item.hosts) == 1]
    took_ns = _add_up(cycles, crossing)
    since = locate_change(took_ns) if cycles.source == "collectives" else None
    if since is None:
        return []
    ratio = _growth(took_ns, since) / float(fast_median(took_ns[:since]))
    for other_ns in (_add_up(cycles, within), fast_median(cycles.work_ns.sum(axis=2), axis=0)):
        before_ns = float(fast_median(other_ns[:since]))
        if before_ns > 0 and _growth(other_ns, since) / before_ns >= OTHERS_RATIO * ratio:
            return []
    slower = [_has_grown(measured_steps, cycles, item, since, ratio) for item in crossing]
    grown = [item for item, is_slower in zip(crossing, slower, strict=True) if is_slower]
    ends = _name_ends(grown, [item for item, is_slower in zip(crossing, slower, strict=True) if not is_slower])
    links = [link for link in list_slowed(speeds) if link.far in ends]
    if links:
        gains = {link.hosts: 1 / link.bytes_per_s - 1 / compute_repaired_speed(link, links) for link in links}
        shares = {hosts: gain / sum(gains.values()) for hosts, gain in gains.items()}
    else:
        shares = {ends: 1.0} if ends and have_all_slowed(speeds) is not False else {}
    reason = "transfers between hosts take longer than before, and nothing else does"
    probed = [link.hosts for link in list_slowed(speeds)]
    return [
        structs.replace(
            _make_changed(cycles, grown, took_ns, since, hosts, share),
            reason=f"{reason}; a probe at the end of the job finds this link slow" if hosts in probed else reason,
        )
        for hosts, share in shares.items()
    ]


def locate_change(values: FloatArray) -> int | None:
    """Where the values rise to a higher level and stay there, ``[num_cycles]``; None: nowhere, beyond their noise.

    The split is the one that explains most of the variance. The error of the two levels takes the noise around them for
    autocorrelated: with correlation r of neighbours, n values say as much as n (1 - r) / (1 + r) that are independent.
    """
    count = len(values)
    splits = np.arange(MIN_CYCLES, count - MIN_CYCLES + 1)
    if not len(splits):
        return None
    total = np.cumsum(values)
    before, after = total[splits - 1] / splits, (total[-1] - total[splits - 1]) / (count - splits)
    explained = np.where(after > before, (after - before) ** 2 * splits * (count - splits), 0.0)
    since = int(splits[explained.argmax()])
    low, high = float(fast_median(values[:since])), float(fast_median(values[since:]))
    if high - low < MIN_GROWTH_RATIO * low or high <= low:
        return None
    noise = np.concatenate([values[:since] - values[:since].mean(), values[since:] - values[since:].mean()])
    power = float((noise**2).sum())
    alike = float(np.clip((noise[1:] * noise[:-1]).sum() / power, 0, 0.95)) if power > 0 else 0.0
    error = np.sqrt(power / count * (1 / since + 1 / (count - since)) * (1 + alike) / (1 - alike))
    middle = (low + high) / 2
    lasts = min(np.mean(values[:since] < middle), np.mean(values[since:] > middle)) >= LASTING_RATIO
    return since if lasts and high - low >= MIN_Z * error else None


def _add_up(cycles: SyncCycles, traffic: list[Traffic]) -> FloatArray:
    """Transfer times of a cycle, ns, ``[num_cycles]``; of groups that move data side by side, the slowest counts."""
    slowest_ns: dict[int, FloatArray] = {}
    for item in traffic:
        transfer_ns = median_transfer(cycles, item)
        slowest_ns[item.index] = np.maximum(slowest_ns.get(item.index, transfer_ns), transfer_ns)
    added: FloatArray = np.sum([*slowest_ns.values(), np.zeros(len(cycles.steps))], axis=0)
    return added


def _growth(values: FloatArray, since: int) -> float:
    return float(fast_median(values[since:]) - fast_median(values[:since]))


def _has_grown(measured_steps: MeasuredSteps, cycles: SyncCycles, item: Traffic, since: int, ratio: float) -> bool:
    """Whether this transfer grew with the others, by more than clocks may be wrong and ranks have come to differ."""
    transfer_ns = median_transfer(cycles, item)
    grown_ns = _growth(transfer_ns, since)
    if grown_ns < OTHERS_RATIO * ratio * float(fast_median(transfer_ns[:since])) or grown_ns <= 0:
        return False
    bound_ns = _clock_bound(measured_steps, cycles, item)
    return grown_ns > 2 * bound_ns and grown_ns > _growth(measure_scatter(cycles, item), since)


def _clock_bound(measured_steps: MeasuredSteps, cycles: SyncCycles, item: Traffic) -> float:
    """How wrong the least certain clock of its members may be, ns. Of clocks that were not compared, as devices' are
    not, 0: each of these measures its own wait."""
    if cycles.clock is Clock.DEVICE:
        return 0.0
    clocks = map_clocks(measured_steps.run)
    begin_ns = measured_steps.run.column("begin_host_ns")
    bounds = []
    for position in cycles.positions[item.rows].tolist():
        ends = clocks.to_reference(position, begin_ns[position, cycles.steps[[0, -1]]])
        bounds.append(clocks.worst_bound_ns(position, float(ends[0]), float(ends[1])))
    return float(np.max(np.where(np.isfinite(bounds), bounds, 0.0)))


def _name_ends(grown: list[Traffic], others: list[Traffic]) -> tuple[str, ...]:
    """The hosts that all slower transfers join; without those that others join as fast as ever, if any are left."""
    if not grown:
        return ()
    common = frozenset.intersection(*(item.hosts for item in grown))
    healthy = frozenset[str]().union(*(item.hosts for item in others))
    return tuple(sorted(common - healthy or common))


def _make_changed(
    cycles: SyncCycles, grown: list[Traffic], took_ns: FloatArray, since: int, hosts: tuple[str, ...], share: float
) -> CandidateCause:
    """A share of what transfers take now less what they took before: one amount by rank and collective, so that noise
    stays."""
    excess_ns = np.zeros_like(cycles.transfer_ns)
    for item in grown:
        own_ns = cycles.transfer_ns[item.rows, :, item.index]
        excess_ns[item.rows, since:, item.index] = (
            share * np.maximum(midmean(own_ns[:, since:]) - midmean(own_ns[:, :since]), 0)[:, None]
        )
    acts: BoolArray = np.arange(len(cycles.steps)) >= since
    return CandidateCause(
        kind=VerdictKind.SLOW_LINK, rows=np.array([], dtype=np.int64), part=None, acts=acts,
        counterfactual=Counterfactual(transfer_ns=excess_ns), hosts=hosts,
        excess_ns=np.where(acts, share * (took_ns - float(midmean(took_ns[:since]))), 0.0),
    )  # fmt: skip
