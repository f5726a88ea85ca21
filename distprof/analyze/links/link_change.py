"""Did the network between hosts become slow during the job? Its own past then shows what it could do."""

from __future__ import annotations

import numpy as np

from distprof.analyze.clocks.clocks import map_clocks
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.links.link_speeds import LinkSpeeds, find_next, have_all_slowed, list_slowed
from distprof.analyze.links.link_traffic import Traffic, find_scatter, find_transfer
from distprof.analyze.replay.candidate import Suspect
from distprof.analyze.replay.counterfactual import Removal
from distprof.analyze.stats.measured_steps import BoolArray, MeasuredSteps
from distprof.analyze.stats.statistics import find_median, midmean
from distprof.facts.run import Clock, FloatArray
from distprof.report.wait_report import VerdictKind

MIN_GROWTH_RATIO = 0.25
"""Of the transfers before: the least by which they must have grown."""
MIN_Z = 5.0
"""Growth over its standard error; high enough for the choice among all cycles at which it may have begun."""
LASTING_RATIO = 0.9
"""Share of the cycles, before and since, that must lie on their side of the middle between the two levels."""
OTHERS_RATIO = 0.5
"""If transfers within hosts, or the ranks' own work, grow by this share of what transfers across hosts do, relative to
what each took before, it is not the network that changed."""


def find_changed_links(
    measured_steps: MeasuredSteps, cycles: SyncCycles, traffic: list[Traffic], speeds: LinkSpeeds
) -> list[Suspect]:
    """The links between some hosts, if transfers that cross them have taken longer since some cycle, and stay so.

    If the links were probed again at the end, those are named that have become slow, and none if none has. Else it is
    the network between the hosts that all slower transfers join.

    Rows hold one wait for all collectives of a step, which cannot be told apart into those that cross and those that do
    not, so they are no evidence.
    """
    crossing = [item for item in traffic if len(item.hosts) > 1]
    within = [item for item in traffic if len(item.hosts) == 1]
    took_ns = _add_up(cycles, crossing)
    since = find_change(took_ns) if cycles.source == "collectives" else None
    if since is None:
        return []
    ratio = _find_growth(took_ns, since) / float(find_median(took_ns[:since]))
    for other_ns in (_add_up(cycles, within), find_median(cycles.gap_ns.sum(axis=2), axis=0)):
        before_ns = float(find_median(other_ns[:since]))
        if before_ns > 0 and _find_growth(other_ns, since) / before_ns >= OTHERS_RATIO * ratio:
            return []
    slower = [_has_grown(measured_steps, cycles, item, since, ratio) for item in crossing]
    grown = [item for item, is_slower in zip(crossing, slower, strict=True) if is_slower]
    ends = _name_ends(grown, [item for item, is_slower in zip(crossing, slower, strict=True) if not is_slower])
    links = [link for link in list_slowed(speeds) if link.far in ends]
    if links:
        gains = {link.hosts: 1 / link.bytes_per_s - 1 / find_next(link, links) for link in links}
        shares = {hosts: gain / sum(gains.values()) for hosts, gain in gains.items()}
    else:
        shares = {ends: 1.0} if ends and have_all_slowed(speeds) is not False else {}
    return [_suspect(cycles, grown, took_ns, since, hosts, share) for hosts, share in shares.items()]


def find_change(values: FloatArray) -> int | None:
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
    low, high = float(find_median(values[:since])), float(find_median(values[since:]))
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
        transfer_ns = find_transfer(cycles, item)
        slowest_ns[item.index] = np.maximum(slowest_ns.get(item.index, transfer_ns), transfer_ns)
    added: FloatArray = np.sum([*slowest_ns.values(), np.zeros(len(cycles.steps))], axis=0)
    return added


def _find_growth(values: FloatArray, since: int) -> float:
    return float(find_median(values[since:]) - find_median(values[:since]))


def _has_grown(measured_steps: MeasuredSteps, cycles: SyncCycles, item: Traffic, since: int, ratio: float) -> bool:
    """Whether this transfer grew with the others, by more than clocks may be wrong and ranks have come to differ."""
    transfer_ns = find_transfer(cycles, item)
    grown_ns = _find_growth(transfer_ns, since)
    if grown_ns < OTHERS_RATIO * ratio * float(find_median(transfer_ns[:since])) or grown_ns <= 0:
        return False
    bound_ns = _find_bound(measured_steps, cycles, item)
    return grown_ns > 2 * bound_ns and grown_ns > _find_growth(find_scatter(cycles, item), since)


def _find_bound(measured_steps: MeasuredSteps, cycles: SyncCycles, item: Traffic) -> float:
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


def _suspect(
    cycles: SyncCycles, grown: list[Traffic], took_ns: FloatArray, since: int, hosts: tuple[str, ...], share: float
) -> Suspect:
    """A share of what transfers take now less what they took before: one amount by rank and collective, so that noise
    stays."""
    excess_ns = np.zeros_like(cycles.transfer_ns)
    for item in grown:
        own_ns = cycles.transfer_ns[item.rows, :, item.index]
        excess_ns[item.rows, since:, item.index] = (
            share * np.maximum(midmean(own_ns[:, since:]) - midmean(own_ns[:, :since]), 0)[:, None]
        )
    acts: BoolArray = np.arange(len(cycles.steps)) >= since
    return Suspect(
        kind=VerdictKind.SLOW_LINK, rows=np.array([], dtype=np.int64), part=None, acts=acts,
        removal=Removal(transfer_ns=excess_ns), hosts=hosts,
        excess_ns=np.where(acts, share * (took_ns - float(midmean(took_ns[:since]))), 0.0),
    )  # fmt: skip
