"""Which hosts' links are slow by the collectives of their groups, against the same collectives of other hosts' groups?

Where several groups run the same collective side by side, each on hosts of its own, as the shards of HSDP do, they
should move it equally fast. Groups that share their hosts, as replicas do, cannot tell which host it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.link_speeds import MIN_OTHERS, NOISE_FACTOR, TWICE_RATIO
from distprof.analyze.link_traffic import Traffic, find_transfer
from distprof.analyze.statistics import find_median, midmean
from distprof.analyze.sync_cycles import SyncCycles
from distprof.facts.run import Clock, FloatArray

LASTING_RATIO = 0.9
"""Share of the cycles in which a group must be slower than midway between the limit and the others."""
OWN_RATIO = 0.5
"""If the ranks' own work takes longer than the others' by this share of what their transfers do, relative to what each
takes elsewhere, it is not the link that is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """Hosts whose groups move data more slowly than the groups of other hosts do."""

    hosts: tuple[str, ...]
    """Those that no other of the groups has."""
    excess_ns: FloatArray
    """What their transfers take beyond the others', ``[num_ranks, num_cycles, num_collectives]``."""


def find_slow_groups(cycles: SyncCycles, traffic: list[Traffic]) -> list[SlowGroup]:
    """The slowest first. Only of times on the device clock: under gloo, waiting for a host's processor counts too."""
    if cycles.clock is not Clock.DEVICE or cycles.source != "collectives":
        return []
    families = _list_families(traffic)
    hosts = dict.fromkeys(own for family in families for own in _name_own(family) if own)
    found = [(own, _compare(cycles, families, own)) for own in hosts]
    slow = [(own, excess_ns) for own, excess_ns in found if excess_ns is not None]
    slow.sort(key=lambda item: -float(item[1].sum()))
    return [SlowGroup(hosts=tuple(sorted(own)), excess_ns=excess_ns) for own, excess_ns in slow]


def _list_families(traffic: list[Traffic]) -> list[list[Traffic]]:
    """Groups that run the same collective side by side, of as many bytes and ranks; enough of them to compare."""
    families: dict[tuple[int, int, float], list[Traffic]] = {}
    for item in traffic:
        if item.ring_bytes > 0:
            families.setdefault((item.index, len(item.rows), item.ring_bytes), []).append(item)
    return [family for family in families.values() if len(family) > MIN_OTHERS]


def _name_own(family: list[Traffic]) -> list[frozenset[str]]:
    """For each group the hosts that only it has."""
    return [item.hosts.difference(*(other.hosts for other in family if other is not item)) for item in family]


def _compare(cycles: SyncCycles, families: list[list[Traffic]], own: frozenset[str]) -> FloatArray | None:
    """As ``SlowGroup.excess_ns``. None: these hosts' transfers do not take longer than others', or not for sure."""
    excess_ns = np.zeros_like(cycles.transfer_ns)
    took_ns, others_ns = [], dict[str, list[FloatArray]]()
    rows: set[int] = set()
    for family in families:
        chosen = [item for item, hosts in zip(family, _name_own(family), strict=True) if hosts == own]
        if len(chosen) != 1:
            continue
        (item,) = chosen
        rows.update(item.rows.tolist())
        took_ns.append(find_transfer(cycles, item))
        others = {other.group: find_transfer(cycles, other) for other in family if other is not item}
        for group, other_ns in others.items():
            others_ns.setdefault(group, []).append(other_ns)
        usual_ns = float(midmean(find_median(np.stack([*others.values()]), axis=0)))
        excess_ns[item.rows, :, item.index] = max(float(midmean(took_ns[-1])) - usual_ns, 0.0)
    beside_ns = [np.sum(found, axis=0) for found in others_ns.values() if len(found) == len(took_ns)]
    if len(beside_ns) < MIN_OTHERS:
        return None
    ratio = _find_ratio(np.sum(took_ns, axis=0), np.stack(beside_ns))
    return None if ratio is None or _is_slow_itself(cycles, rows, ratio) else excess_ns


def _find_ratio(took_ns: FloatArray, others_ns: FloatArray) -> float | None:
    """How many times as long transfers take as those of other groups, ``[num_others, num_cycles]``. None: not by much,
    not in nearly all cycles, or not by more than the others differ among themselves."""
    usual_ns = find_median(others_ns, axis=0)
    if not (others_ns > 0).all():
        return None
    paces = np.log(midmean(others_ns))
    noise = float(np.median(np.abs(paces - np.median(paces))))
    slower = float(np.log(midmean(took_ns) / midmean(usual_ns)))
    lasts = np.mean(usual_ns < (1 + TWICE_RATIO) / 2 * took_ns) >= LASTING_RATIO
    return float(np.exp(slower)) if lasts and slower > max(-np.log(TWICE_RATIO), NOISE_FACTOR * noise) else None


def _is_slow_itself(cycles: SyncCycles, rows: set[int], ratio: float) -> bool:
    """Whether these ranks' own work takes longer too; ``ratio``: their transfers over the others'."""
    inside = np.isin(np.arange(len(cycles.positions)), [*rows])
    own_ns = midmean(cycles.gap_ns.sum(axis=2))
    usual_ns = float(np.median(own_ns[~inside])) if not inside.all() else 0.0
    return usual_ns > 0 and float(np.median(own_ns[inside])) / usual_ns - 1 >= OWN_RATIO * (ratio - 1)
