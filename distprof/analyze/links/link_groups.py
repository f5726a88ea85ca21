"""Which hosts' links are slow by the collectives of their groups, against the same collectives of other hosts' groups?

Where several groups run the same collective side by side, each on hosts of its own, as the shards of HSDP do, they
should move it equally fast. Groups that share their hosts, as replicas do, cannot tell which host it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.links.link_speeds import MIN_OTHERS, NOISE_FACTOR, TWICE_RATIO
from distprof.analyze.links.link_traffic import Traffic, find_transfer
from distprof.analyze.stats.statistics import find_median, medians_of_others, midmean
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


@dataclass(slots=True)
class _Compared:
    """The transfers of the groups that some hosts have for themselves, and of the groups beside them."""

    took_ns: FloatArray
    """Sum over the collectives of a cycle, ``[num_cycles]``, like the next."""
    usual_ns: FloatArray
    """The same of the other groups' median."""
    middle_ns: FloatArray
    """The same of all groups' median."""
    excess_ns: list[tuple[Traffic, float]] = field(default_factory=list)
    """What each collective takes beyond the others'."""

    @property
    def pace(self) -> float:
        """Logarithm of how many times as long transfers take as the others' do."""
        return float(np.log(midmean(self.took_ns) / midmean(self.usual_ns)))

    @property
    def place(self) -> float:
        """The same against all groups, which is one measure for all of them."""
        return float(np.log(midmean(self.took_ns) / midmean(self.middle_ns)))


def find_slow_groups(cycles: SyncCycles, traffic: list[Traffic]) -> list[SlowGroup]:
    """The slowest first. Only of times on the device clock: under gloo, waiting for a host's processor counts too."""
    if cycles.clock is not Clock.DEVICE or cycles.source != "collectives":
        return []
    found = _compare(cycles, traffic)
    places = {hosts: compared.place for hosts, compared in found.items()}
    slow = [
        (hosts, compared)
        for hosts, compared in found.items()
        if _stands_out(compared, [place for other, place in places.items() if other != hosts])
        and not _are_slow_themselves(cycles, compared)
    ]
    return [
        SlowGroup(hosts=tuple(sorted(hosts)), excess_ns=_spread(cycles, compared))
        for hosts, compared in sorted(slow, key=lambda item: -item[1].pace)
    ]


def _compare(cycles: SyncCycles, traffic: list[Traffic]) -> dict[frozenset[str], _Compared]:
    """By the hosts that no other group has. Compared are groups that run the same collective side by side, of as many
    bytes and ranks."""
    families: dict[tuple[int, int, float], list[Traffic]] = {}
    for item in traffic:
        if item.ring_bytes > 0:
            families.setdefault((item.index, len(item.rows), item.ring_bytes), []).append(item)
    found: dict[frozenset[str], _Compared] = {}
    for family in families.values():
        counts = Counter(host for item in family for host in item.hosts)
        took_ns = np.stack([find_transfer(cycles, item) for item in family])
        if len(family) <= MIN_OTHERS or not (took_ns > 0).all():
            continue
        usual_ns, middle_ns = medians_of_others(took_ns), find_median(took_ns, axis=0)
        excess_ns = np.maximum(midmean(took_ns) - midmean(usual_ns), 0)
        for row, item in enumerate(family):
            own = frozenset(host for host in item.hosts if counts[host] == 1)
            if own:
                nothing = np.zeros(len(cycles.steps))
                compared = found.setdefault(own, _Compared(nothing, nothing, nothing))
                compared.took_ns = compared.took_ns + took_ns[row]
                compared.usual_ns = compared.usual_ns + usual_ns[row]
                compared.middle_ns = compared.middle_ns + middle_ns
                compared.excess_ns.append((item, float(excess_ns[row])))
    return found


def _stands_out(compared: _Compared, others: list[float]) -> bool:
    """Whether transfers take longer than others': by much, in nearly all cycles, and by more than those of the other
    hosts differ among themselves."""
    if len(others) < MIN_OTHERS:
        return False
    noise = float(np.median(np.abs(np.array(others) - np.median(others))))
    lasts = np.mean(compared.usual_ns < (1 + TWICE_RATIO) / 2 * compared.took_ns) >= LASTING_RATIO
    return bool(lasts) and compared.pace > max(-np.log(TWICE_RATIO), NOISE_FACTOR * noise)


def _are_slow_themselves(cycles: SyncCycles, compared: _Compared) -> bool:
    """Whether the ranks' own work takes longer too."""
    rows = np.unique(np.concatenate([item.rows for item, _ in compared.excess_ns]))
    inside = np.isin(np.arange(len(cycles.positions)), rows)
    own_ns = midmean(cycles.gap_ns.sum(axis=2))
    usual_ns = float(np.median(own_ns[~inside])) if not inside.all() else 0.0
    ratio = float(np.exp(compared.pace))
    return usual_ns > 0 and float(np.median(own_ns[inside])) / usual_ns - 1 >= OWN_RATIO * (ratio - 1)


def _spread(cycles: SyncCycles, compared: _Compared) -> FloatArray:
    """As ``SlowGroup.excess_ns``: one amount by collective, so that noise stays."""
    excess_ns = np.zeros_like(cycles.transfer_ns)
    for item, amount_ns in compared.excess_ns:
        excess_ns[item.rows, :, item.index] = amount_ns
    return excess_ns
