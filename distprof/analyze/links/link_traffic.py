"""Which transfers cross from host to host, how many bytes do they move, and are those of some hosts the slower ones?

Where several groups run the same collective side by side, each on hosts of its own, as the shards of HSDP do, they
should move it equally fast. Groups that share their hosts, as replicas do, cannot tell which host it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct, field

from distprof.analyze.cycles.collective_order import choose_tables
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.links.link_speeds import MIN_OTHERS, NOISE_FACTOR, TWICE_RATIO
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import fast_median, medians_of_others, midmean
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import PASSES, Clock, Collectives

LASTING_RATIO = 0.9
"""Share of the cycles in which a group must be slower than midway between the limit and the others."""
OWN_RATIO = 0.5
"""If the ranks' own work takes longer than the others' by this share of what their transfers do, relative to what each
takes elsewhere, it is not the link that is slow."""


class Traffic(Struct, frozen=True, kw_only=True, eq=False):
    """One collective of one group, in every cycle."""

    index: int
    """On the last axis of the cycles."""
    group: str
    rows: IntArray
    """Its members, as rows of the cycles' axis 0."""
    hosts: frozenset[str]
    """Where the members are; it crosses links if there are several."""
    ring_bytes: float
    """What one rank sends in a ring; 0: not known."""


def list_traffic(measured_steps: MeasuredSteps, cycles: SyncCycles) -> list[Traffic]:
    """Every transfer of a cycle, in order of issue; groups of one rank move nothing and are left out."""
    names = [measured_steps.run.ranks[position].host for position in cycles.positions.tolist()]
    tables = {
        (table.group, tuple(table.ranks.tolist())): table for table in choose_tables(measured_steps, cycles.clock)
    }
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    traffic = []
    for index, groups in enumerate(cycles.groups):
        for group, rows in groups:
            if len(rows) < 2:
                continue
            key = (group, tuple(cycles.positions[rows].tolist()))
            hosts = frozenset(names[row] for row in rows.tolist())
            by_rows = cycles.source == "rows"
            passed = _count_row_passes(measured_steps) if by_rows else _count_passes(tables.get(key), seen[key])
            size = measured_steps.run.meta.world_size if key not in tables else tables[key].size
            seen[key] += 1
            traffic.append(
                Traffic(index=index, group=group, rows=rows, hosts=hosts, ring_bytes=passed * (size - 1) / size)
            )
    return traffic


def count_link_bytes(traffic: Iterable[Traffic], host: str) -> float:
    """Bytes of one step through a host's end of its link, where each group is a ring that enters and leaves it once.

    Of a ring of n ranks, each sends (n - 1) / n of what is gathered or scattered, and twice that of what is reduced.
    Source: Patarasuk and Yuan (2009), the bandwidth-optimal ring.
    """
    return sum(item.ring_bytes for item in traffic if crosses(item, host))


def crosses(item: Traffic, host: str) -> bool:
    """Whether data crosses the link of a host."""
    return host in item.hosts and len(item.hosts) > 1


def measure_rate(crossing: Sequence[Traffic], cycles: SyncCycles) -> float:
    """What the link that some collectives cross demonstrably carries, bytes/s: the best of those of the same groups.

    Groups that cross it side by side share it; they take from when the first of them starts until the last one ends.
    """
    sent: dict[tuple[str, ...], float] = {}
    took_ns: dict[tuple[str, ...], float] = {}
    now_ns = cycles.start_ns.copy()
    for index in range(cycles.work_ns.shape[2]):
        now_ns += cycles.work_ns[:, :, index] + cycles.blocked_ns[:, :, index]
        beside = [item for item in crossing if item.index == index and item.ring_bytes]
        groups = tuple(item.group for item in beside)
        if len(beside) > 1 and cycles.is_waited_on[index]:
            rows = np.concatenate([item.rows for item in beside])
            begun_ns = now_ns[rows] - cycles.transfer_ns[rows, :, index]
            span_ns = now_ns[rows].max(axis=0) - begun_ns.min(axis=0)
        else:
            span_ns = np.max([median_transfer(cycles, item) for item in beside] or [np.zeros(1)], axis=0)
        middle_ns = float(fast_median(span_ns))
        if middle_ns > 0:
            sent[groups] = sent.get(groups, 0.0) + sum(item.ring_bytes for item in beside)
            took_ns[groups] = took_ns.get(groups, 0.0) + middle_ns
    return max((num_bytes / took_ns[groups] * 1e9 for groups, num_bytes in sent.items()), default=0.0)


def median_transfer(cycles: SyncCycles, item: Traffic) -> FloatArray:
    """The transfer of its median member, ns, ``[num_cycles]``."""
    middle: FloatArray = fast_median(cycles.transfer_ns[item.rows, :, item.index], axis=0)
    return middle


def measure_scatter(cycles: SyncCycles, item: Traffic) -> FloatArray:
    """How far apart its members arrive because of what each did since the wait before, ns, ``[num_cycles]``.

    What a rank is late by in every cycle is left out: that is another cause, and does not make a transfer doubtful.
    """
    waits = np.flatnonzero(cycles.is_waited_on[: item.index])
    first = int(waits[-1]) + 1 if len(waits) else 0
    own_ns = cycles.work_ns[item.rows, :, first : item.index + 1].sum(axis=2)
    own_ns -= fast_median(own_ns, axis=1, keepdims=True)
    scatter: FloatArray = np.ptp(own_ns, axis=0)
    return scatter


def _count_passes(table: Collectives | None, column: int) -> float:
    if table is None or column >= len(table.kinds):
        return 0.0
    return PASSES.get(table.kinds[column], 0.0) * (table.sizes_bytes[column] or 0)


def _count_row_passes(measured_steps: MeasuredSteps) -> float:
    """All collectives of a step, by the rank with the most."""
    sizes = {kind: measured_steps.mean(f"{kind}_bytes")[measured_steps.present] for kind in PASSES}
    return sum(passes * float(np.nan_to_num(sizes[kind]).max(initial=0.0)) for kind, passes in PASSES.items())


class _Compared(Struct):
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


def list_slow_groups(cycles: SyncCycles, traffic: list[Traffic]) -> list[tuple[tuple[str, ...], FloatArray]]:
    """Hosts whose groups move data more slowly than the groups of other hosts do, the slowest first.

    Only of times on the device clock: under gloo, waiting for a host's processor counts too.

    Returns:
        The hosts that no other group has, and what their transfers take beyond the others', ``[num_ranks, num_cycles,
        num_collectives]``.
    """
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
        (tuple(sorted(hosts)), _spread(cycles, compared))
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
        took_ns = np.stack([median_transfer(cycles, item) for item in family])
        if len(family) <= MIN_OTHERS or not (took_ns > 0).all():
            continue
        usual_ns, middle_ns = medians_of_others(took_ns), fast_median(took_ns, axis=0)
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
    own_ns = midmean(cycles.work_ns.sum(axis=2))
    usual_ns = float(np.median(own_ns[~inside])) if not inside.all() else 0.0
    ratio = float(np.exp(compared.pace))
    return usual_ns > 0 and float(np.median(own_ns[inside])) / usual_ns - 1 >= OWN_RATIO * (ratio - 1)


def _spread(cycles: SyncCycles, compared: _Compared) -> FloatArray:
    """One amount by collective, so that noise stays."""
    excess_ns = np.zeros_like(cycles.transfer_ns)
    for item, amount_ns in compared.excess_ns:
        excess_ns[item.rows, :, item.index] = amount_ns
    return excess_ns
