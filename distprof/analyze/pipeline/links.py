"""Links between stages on which transfers take longer than on the others.

Send and receive end together, and the later of them to start does not wait: the shorter duration is the transfer, on
one clock.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.pipeline.candidates import PipelineCandidate, compare_with_others, compute_p_values, share_alpha
from distprof.analyze.pipeline.work import LEAST_NS, Recorded
from distprof.analyze.stats.statistics import fast_median, midmean
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.operations import Kind
from distprof.report.operations_report import PipelineCauseKind

SENDS = {Kind.FORWARD_SEND: 0, Kind.BACKWARD_SEND: -1}
"""How far the link's lower stage is from the sender's."""
SLOW_FACTOR = 4 / 3
"""Transfers take at least so many times as long on a slow link: three quarters of the others' speed."""


def detect_slow_links(recorded: Recorded) -> list[PipelineCandidate]:
    """Links that are slower than the others, on all replicas or on one."""
    speeds = _measure_links(recorded, recorded.unit)
    sizes = speeds if recorded.least is None else _measure_links(recorded, np.zeros_like(recorded.unit))
    if speeds is None or sizes is None:
        return []
    _, replicas, links = speeds.shape
    if replicas * links < 2:
        return []
    excess, centre = _compare(speeds), midmean(np.moveaxis(_compare(sizes), 0, -1))
    alpha = share_alpha(recorded, PipelineCauseKind.SLOW_LINK, replicas * links)
    p_values = compute_p_values(excess.reshape(len(excess), -1)).reshape(replicas, links)
    slow = (centre > np.log(SLOW_FACTOR)) & (p_values <= alpha)
    share = 1 - np.exp(-excess)  # of a transfer, which it takes too long
    found = []
    for link in np.flatnonzero(slow.any(axis=0)).tolist():
        whole = bool(slow[:, link].all()) and (replicas > 1 or links > 1)
        for replica in [None] if whole else np.flatnonzero(slow[:, link]).tolist():
            rows = list(range(replicas)) if replica is None else [replica]
            more = float(np.median(centre[rows, link]))
            found.append(PipelineCandidate(
                kind=PipelineCauseKind.SLOW_LINK, replica=replica if replicas > 1 else None, stage=link,
                what="transfers", more_ratio=float(np.exp(more)) - 1, steps_count=recorded.shape[0],
                excess=fast_median(share[:, rows, link], axis=1),
                work_ns=_speed_up(recorded, (replica, link), more, float(np.exp(np.median(sizes[:, :, link])))),
            ))  # fmt: skip
    return found


def _compare(speeds: FloatArray) -> FloatArray:
    """By how much each link exceeds the links between other stages or, with two stages, those of other replicas."""
    links = speeds.shape[2]
    if links == 1:
        return compare_with_others(speeds, axis=1)
    rest = [np.delete(speeds, link, axis=2).reshape(len(speeds), -1) for link in range(links)]
    others = [fast_median(each, axis=1) for each in rest]
    excess: FloatArray = speeds - np.stack(others, axis=1)[:, None, :]
    return excess


def _list_links(recorded: Recorded) -> tuple[IntArray, IntArray, IntArray]:
    """Sends that have a partner, their receives, and the lower stage of the link."""
    graph = recorded.graph
    found = graph.operations
    by_group = np.argsort(graph.group, kind="stable")
    groups = graph.group[by_group]
    twice = np.flatnonzero(groups[1:] == groups[:-1])
    one, other = by_group[twice], by_group[twice + 1]
    kinds = {list(Kind).index(kind): kind for kind in SENDS}
    sends = np.isin(found.kind[one], list(kinds))
    receives = np.isin(found.kind[other], list(kinds))
    one, other = np.concatenate([one[sends], other[receives]]), np.concatenate([other[sends], one[receives]])
    offset = np.array([SENDS[kinds[number]] if number in kinds else 0 for number in range(len(Kind))])
    return one, other, (found.stage[one] + offset[found.kind[one]]) % found.num_stages


def _measure_links(recorded: Recorded, unit: IntArray) -> FloatArray | None:
    """Logarithms of the median transfers or, of a live run, of the shortest, ``[num_units, num_replicas, num_links]``;
    None: a link has none."""
    one, other, link = _list_links(recorded)
    if not len(one):
        return None
    found = recorded.graph.operations
    links = int(link.max()) + 1
    took = np.log(np.maximum(np.minimum(found.duration_ns[one], found.duration_ns[other]), LEAST_NS))
    seen = np.isfinite(took)
    one, other, link, took = one[seen], other[seen], link[seen], took[seen]
    num_units, replicas = int(unit.max()) + 1, recorded.shape[1]
    slot = (unit[recorded.graph.step[one]] * replicas + found.replica[one]) * links + link
    order = np.lexsort((took, slot))
    counts = np.bincount(slot, minlength=num_units * replicas * links)
    if (counts == 0).any():
        return None
    first = np.cumsum(counts) - counts
    if recorded.least is not None:
        return np.asarray(took[order[first]]).reshape(num_units, replicas, links)
    middle: FloatArray = (took[order[first + (counts - 1) // 2]] + took[order[first + counts // 2]]) / 2
    return middle.reshape(num_units, replicas, links)


def _speed_up(recorded: Recorded, slow: tuple[int | None, int], more: float, usual_ns: float) -> FloatArray:
    """Transfers without what a link is slower by: in proportion or, of a live run, by what the shortest are longer."""
    one, other, link = _list_links(recorded)
    replica, at = slow
    work_ns = recorded.graph.work_ns.copy()
    mine = (link == at) & (True if replica is None else recorded.graph.operations.replica[one] == replica)
    for rows in (one[mine], other[mine]):
        if recorded.least is None:
            work_ns[rows] *= np.exp(-more)
        else:
            work_ns[rows] = np.maximum(work_ns[rows] - usual_ns * (1 - np.exp(-more)), 0.0)
    return work_ns
