"""Does a rank take longer for a part of its step, or does it just run slower for a while, whatever it does?

Ranks that share machines with others run now faster, now slower, for seconds at a time. That stretches all the work of
a step alike, so the rest of its step tells how fast a rank was. What this explains of a segment of work is no sign that
the rank has more to do there. Segments do not overlap: they are the parts of a step, cut where collectives are issued
within a part.

A rank may also be slower for the length of a job, in one segment or in all of them. Both its usual excesses and what is
known of its speed are uncertain. With a speed v, in standard deviations of what speeds vary by, the excess of a segment
is its loading times v, and what the rank has more to do there. Most segments have nothing more to do: one is set aside
if what the others tell of v does not explain it. Where that holds of several, it is the one without which the others
agree best. Source: the deletion of outliers one by one, as in Rousseeuw and Leroy (1987), Robust Regression and Outlier
Detection, 6.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from msgspec import structs

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import CandidateCause, Unexplained, WorkSegment
from distprof.analyze.stats.lateness import FEW_RANKS, describe_excess
from distprof.analyze.stats.significance import lag1_autocorrelation, share_alpha, t_quantile
from distprof.analyze.stats.statistics import decile_sigma, fast_median, medians_of_others, midmean, standardise
from distprof.analyze.stats.step_memory import locate_levels
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.run import OWN_PARTS

MIN_SEGMENT_RATIO = 0.02
"""Share of the cycle; shorter segments tell little."""
ALPHA_RELATED = share_alpha("related parts")
"""Of taking segments for related that are not: family-wise over all pairs."""
ALPHA_SET_ASIDE = 0.8 * share_alpha("slow ranks")
"""Of setting a segment aside as late by chance: family-wise over ranks and segments."""
ALPHA_SPEED = 0.2 * share_alpha("slow ranks")
"""Of taking a rank's speed for a lasting one that only drifts: family-wise over ranks."""
STALL_FACTOR = 2.0
"""A processor that shares its core with another job is not slowed down by more."""
MAX_LOADING = 0.975
"""Some of a segment's variation is always its own."""
NUM_ROUNDS = 50
MIN_DEGREES_OF_FREEDOM = 4.0
"""With fewer independent steps, nothing can be told from chance."""
MAX_VALUES, FEWEST_RANKS = 50_000, 8
"""Of larger jobs, so many ranks and steps tell whether segments vary together."""
MAX_ORDINARY_SIGMAS = 3.0
"""Standard deviations of the speed from step to step. A rank whose speed differs by more for a whole job, and by more
than speeds drift, does not owe it to what makes speeds vary: it is slow itself, in all its segments."""
Z_LIKELY = 3.0
"""Standard errors: what is no chance of a rank that is late beyond doubt."""
COMMON_RATIO = 0.3
"""What a jump of a segment's own adds to it in proportion to its length, times this: if the parts beside it jump by
more, it is the speed that does."""
UNLIKE_RATIO = 0.2
"""Share of a speed's effect by which it may differ from segment to segment: memory may be slow, or arithmetic. With a
fifth, the excesses of two-rank jobs on a shared machine in which nobody was slow were as large as their errors say."""


def remove_common_slowdown(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """Takes out what the ranks' speed explains, if anything. That is nobody's fault, so there are no candidates."""
    segments = cut_parts(cycles, unexplained)
    alpha = ALPHA_SET_ASIDE / (len(unexplained.phase_ns) * max(len(segments), 1))
    explained_ns = explain_by_speed([item.own_ns for item in segments], [item.code for item in segments], alpha)
    if explained_ns is None:
        return [], structs.replace(unexplained, segments=None)
    phase_ns = np.copy(unexplained.phase_ns)
    left = []
    for segment, taken_ns in zip(segments, explained_ns, strict=True):
        phase_ns[:, :, segment.code] -= taken_ns
        if not segment.is_whole_part:
            left.append(structs.replace(segment, own_ns=segment.own_ns - taken_ns))
    work_ns = _take_share(unexplained.work_ns, explained_ns.sum(axis=0))
    return [], structs.replace(unexplained, phase_ns=phase_ns, work_ns=work_ns, segments=tuple(left))


def cut_parts(cycles: SyncCycles, unexplained: Unexplained) -> list[WorkSegment]:
    """The parts that take some time, in segments."""
    phase_ns, work_ns = unexplained.phase_ns, unexplained.work_ns
    least_ns = MIN_SEGMENT_RATIO * unexplained.usual_cycle_ns
    segments = []
    for code in range(phase_ns.shape[2]):
        own_ns = phase_ns[:, :, code]
        if not _usual_ns(own_ns) >= least_ns:  # not so of NaN either
            continue
        inner = [work_ns[:, :, index] for index in _list_inner_gaps(cycles, code, work_ns, least_ns)]
        rest_ns = own_ns - sum(inner, start=np.zeros(()))
        if inner and _usual_ns(rest_ns) >= least_ns:
            segments += [WorkSegment(code=code, own_ns=each_ns, is_whole_part=False) for each_ns in (rest_ns, *inner)]
        else:
            segments.append(WorkSegment(code=code, own_ns=own_ns, is_whole_part=True))
    return segments


def _usual_ns(own_ns: FloatArray) -> float:
    return float(fast_median(_thin_ranks(own_ns)))


def _thin_ranks(own_ns: FloatArray) -> FloatArray:
    """Some of the ranks of a large job, evenly spaced: enough to tell what is usual."""
    most = max(FEWEST_RANKS, MAX_VALUES // own_ns.shape[1])
    return own_ns[:: -(-len(own_ns) // most)]


def _list_inner_gaps(cycles: SyncCycles, code: int, work_ns: FloatArray, least_ns: float) -> list[int]:
    """The gaps that lie in one go through the part: both collectives are issued in it, and ranks do not wait for the
    first. A wait may be the end of a backward pass, after which another model's forward pass follows."""
    issued, part = cycles.issued, OWN_PARTS[code]
    return [
        index for index in range(1, len(issued))
        if issued[index - 1] == issued[index] == part and not cycles.is_waited_on[index - 1]
        and _usual_ns(work_ns[:, :, index]) >= least_ns
    ]  # fmt: skip


def _take_share(work_ns: FloatArray, explained_ns: FloatArray) -> FloatArray:
    """The gaps without what speed explains, of which each has as much as it grows with speed. Together they have no
    more than all of it: what else in them goes with speed is not speed's."""
    cause = explained_ns - explained_ns.mean(axis=1, keepdims=True)
    shares = np.maximum([np.vdot(cause, work_ns[:, :, index]) for index in range(work_ns.shape[2])], 0.0)
    shares /= max(float((cause * cause).sum()), float(shares.sum()), 1.0)
    left_ns = np.copy(work_ns)
    for index, share in enumerate(shares.tolist()):
        left_ns[:, :, index] -= explained_ns * share
    return left_ns


def explain_by_speed(segments_ns: Sequence[FloatArray], codes: Sequence[int], alpha: float) -> FloatArray | None:
    """What the ranks' speed explains of the segments of their work; None: the parts do not vary together.

    A segment is compared with those of other parts: what the segments of one part have in common may be its own.

    Args:
        segments_ns: Own times of segments that do not overlap, ``[num_ranks, num_cycles]`` each.
        codes: The part of each.
        alpha: Probability of calling a rank late in a segment by chance.

    Returns:
        ns, ``[num_segments, num_ranks, num_cycles]``; negative where a rank is faster than others.
    """
    same = np.equal.outer(np.array(codes), np.array(codes))
    steady_ns = [
        own_ns if len(own_ns) > FEW_RANKS else _take_out_own_jump(own_ns, list(itertools.compress(segments_ns, ~alike)))
        for own_ns, alike in zip(segments_ns, same, strict=True)
    ]
    if not _are_related(steady_ns, same):
        return None
    num_segments, (ranks, steps) = len(segments_ns), segments_ns[0].shape
    excess_ns, varied, explained_ns = (np.empty((num_segments, ranks, steps)) for _ in range(3))  # large: no copies
    sigmas_ns = np.empty((num_segments, ranks))
    varying: list[FloatArray | None] = []
    for index, (own_ns, steady) in enumerate(zip(segments_ns, steady_ns, strict=True)):
        excess_ns[index] = own_ns - medians_of_others(own_ns)
        varying_ns = None if steady is own_ns else steady - medians_of_others(steady)
        varying.append(varying_ns)
        whole_ns: FloatArray = excess_ns[index] if varying_ns is None else varying_ns
        sigmas_ns[index] = decile_sigma(whole_ns)
        varied[index] = standardise(whole_ns, sigmas_ns[index])
    loadings = _estimate_loadings(_correlate(_drop_stalls(varied, segments_ns)), same)
    for index in range(num_segments):
        wanted_ns = varied[index] * sigmas_ns[index][:, None]
        explained_ns[index] = _explain(wanted_ns, varied, np.where(same[index], 0.0, loadings))
    excess_ns -= explained_ns
    items = [
        describe_excess(left_ns, None if varying_ns is None else varying_ns - taken_ns)
        for left_ns, varying_ns, taken_ns in zip(excess_ns, varying, explained_ns, strict=True)
    ]
    usual_ns = np.stack([midmean(item.excess_ns) for item in items])
    errors_ns = np.maximum(np.stack([item.standard_error(steps) for item in items]), 1.0)
    loadings_ns = loadings * fast_median(sigmas_ns, axis=1)
    kept = keep_explained(
        usual_ns, errors_ns=errors_ns, loadings_ns=loadings_ns, same=same,
        critical_values=np.array([item.critical_value(alpha) for item in items]),
    )  # fmt: skip
    weights = np.where(kept, loadings_ns[:, None] / errors_ns**2, 0.0)
    speed = sum(np.einsum("sr,srt->rt", weights, part_ns) for part_ns in (excess_ns, explained_ns))
    persistent_ns = explain_persistent(
        usual_ns, errors_ns=errors_ns, loadings_ns=loadings_ns, kept=kept, lasts=_outlasts_drift(speed)
    )
    explained_ns += persistent_ns[:, :, None]
    explained_ns *= (ranks - 1) / ranks
    return explained_ns


def _take_out_own_jump(own_ns: FloatArray, others_ns: Sequence[FloatArray]) -> FloatArray:
    """A segment without its ranks' jumps to another level, and back, that the segments of other parts do not make with
    it: of so few ranks, one that gets slower in one part would make speeds look as if they varied by that."""
    levels_ns = locate_levels(own_ns)[0]
    rest_ns = sum(others_ns, np.zeros_like(own_ns))
    for row in np.flatnonzero(levels_ns.any(axis=1)):
        high = levels_ns[row] == levels_ns[row].max()
        (own, risen), (rest, rest_risen) = (
            (fast_median(each[row, at]) for at in (~high, high)) for each in (own_ns, rest_ns)
        )
        if (rest_risen - rest) * own > COMMON_RATIO * (risen - own) * rest:
            levels_ns[row] = 0.0
    return own_ns - levels_ns


def _are_related(segments_ns: Sequence[FloatArray], same: BoolArray) -> bool:
    """Whether any two segments of different parts vary together by more than chance.

    Series that are alike from step to step are correlated by chance more often, as if there were fewer steps. Source:
    Bartlett (1935), Some aspects of the time-correlation problem.
    """
    pairs = np.argwhere(np.triu(~same))
    if not len(pairs):
        return False
    thin = [_thin_ranks(own_ns) for own_ns in segments_ns]
    excess = [own_ns - medians_of_others(own_ns) for own_ns in thin]
    ranks, steps = excess[0].shape
    autocorrelations = [lag1_autocorrelation(item) for item in excess]
    found = _correlate(_drop_stalls(np.stack([standardise(item, decile_sigma(item)) for item in excess]), thin))
    for one, other in pairs.tolist():
        both = autocorrelations[one] * autocorrelations[other]
        degrees_of_freedom = (ranks - 1) * steps * (1 - both) / (1 + both) - 2
        ratio = found[one, other] * np.sqrt(max(degrees_of_freedom, 0) / max(1 - found[one, other] ** 2, 1e-9))
        enough = degrees_of_freedom > MIN_DEGREES_OF_FREEDOM
        if enough and ratio > t_quantile(ALPHA_RELATED / len(pairs), degrees_of_freedom):
            return True
    return False


def _drop_stalls(varied: FloatArray, segments_ns: Sequence[FloatArray]) -> FloatArray:
    """Without what took far longer than it usually takes the rank. A stall stretches all that is done in a step, and
    would relate all parts; but it is an event, and no speed."""
    near = [own_ns <= STALL_FACTOR * fast_median(own_ns, axis=1, keepdims=True) for own_ns in segments_ns]
    return np.where(np.stack(near), varied, 0.0)


def _correlate(varied: FloatArray) -> FloatArray:
    flat = varied.reshape(len(varied), -1)
    size = np.sqrt((flat * flat).sum(axis=1))
    size[size == 0] = np.inf
    found: FloatArray = flat @ flat.T / np.outer(size, size)
    return found


def _estimate_loadings(correlated: FloatArray, same: BoolArray) -> FloatArray:
    """The share of each segment's spread that is common to all parts, ``[num_segments]``: one factor, by principal
    axes. Source: Harman (1976), Modern Factor Analysis, 8."""
    apart = np.where(same, 0.0, np.maximum(correlated, 0.0))
    loadings: FloatArray = np.sqrt(apart.max(axis=1))
    for _ in range(NUM_ROUNDS if len(apart) > 2 else 0):
        values, vectors = np.linalg.eigh(np.where(same, np.outer(loadings, loadings), apart))
        loadings = np.minimum(np.abs(vectors[:, -1]) * np.sqrt(max(float(values[-1]), 0.0)), MAX_LOADING)
    return loadings


def _explain(wanted_ns: FloatArray, varied: FloatArray, loadings: FloatArray) -> FloatArray:
    """What the variation of other segments explains of that of one, ``[num_ranks, num_cycles]``; its mean is 0.

    Args:
        wanted_ns: How the segment varies.
        varied: How all do, in standard deviations.
        loadings: 0 for segments that are not asked.
    """
    speed = np.tensordot(loadings / (1 - loadings**2), varied, axes=1)
    power = float((speed * speed).sum())
    slope = max(float((speed * wanted_ns).sum()) / power, 0.0) if power > 0 else 0.0
    return slope * speed


def _outlasts_drift(speeds: FloatArray) -> BoolArray:
    """Whether each rank's speed differs from the others' by more than it drifts, ``[num_ranks]``; of several ranks any
    could have been the one. A rank may drift more than the others do, or more slowly, so it also has to stand out from
    what its own series tells.

    Args:
        speeds: In any unit, ``[num_ranks, num_cycles]``.
    """
    lasts = outlasts_common_drift(speeds, len(speeds))
    lasts[lasts] = [outlasts_common_drift(speeds[[row]], len(speeds))[0] for row in np.flatnonzero(lasts)]
    return lasts


def outlasts_common_drift(speeds: FloatArray, num_ranks: int) -> BoolArray:
    """Likewise, according to how much these series drift, any of which could be one of ``num_ranks``."""
    item, alpha = describe_excess(speeds), ALPHA_SPEED / num_ranks
    found: BoolArray = np.abs(midmean(speeds)) > item.critical_value(alpha) * item.standard_error(speeds.shape[1])
    return found


def keep_explained(
    usual_ns: FloatArray,
    *,
    errors_ns: FloatArray,
    loadings_ns: FloatArray,
    critical_values: FloatArray,
    same: BoolArray,
) -> BoolArray:
    """Which segments' excess over the whole job is within what the speed of the rank explains, according to the others,
    ``[num_segments, num_ranks]``.

    Args:
        usual_ns: The usual excess, ``[num_segments, num_ranks]``.
        errors_ns: Their standard errors, for a given speed, likewise; above 0.
        loadings_ns: How much longer each takes when a rank is slower by a standard deviation, ``[num_segments]``.
        critical_values: How many standard errors of a segment are no chance, ``[num_segments]``.
        same: Whether two segments are of one part, which do not explain each other, ``[num_segments, num_segments]``.
    """
    loadings = loadings_ns[:, None]
    kept = np.ones(usual_ns.shape, dtype=bool)
    others = (~same).astype(float)
    for _ in range(len(usual_ns)):
        weights = np.where(kept, loadings / errors_ns**2, 0.0)
        # By the segments of other parts; without any, 0 give or take one standard deviation: a lasting difference is
        # no larger than what speeds vary by, because such noise does not average out over a job.
        precision: FloatArray = 1 + others @ (weights * loadings)
        speed: FloatArray = others @ (weights * usual_ns) / precision
        error = np.sqrt(errors_ns**2 + loadings**2 * (1 / precision + (UNLIKE_RATIO * speed) ** 2))
        odd = kept & (np.abs(usual_ns - loadings * speed) > critical_values[:, None] * error)
        if not odd.any():
            break
        rows = np.flatnonzero(odd.any(axis=0))
        misfit = np.stack([_misfit_without(usual_ns, errors_ns, loadings, kept, index) for index in range(len(kept))])
        worst = np.where(odd, misfit, np.inf).argmin(axis=0)
        kept[worst[rows], rows] = False
    return kept


def explain_persistent(
    usual_ns: FloatArray, *, errors_ns: FloatArray, loadings_ns: FloatArray, kept: BoolArray, lasts: BoolArray
) -> FloatArray:
    """What the ranks' speed over the whole job explains of each segment, ns, ``[num_segments, num_ranks]``.

    Of a segment that is kept that is all of its excess: what is left is within the error of what is known.

    Args:
        usual_ns: As of `keep_explained`.
        errors_ns: Likewise.
        loadings_ns: Likewise.
        kept: What that has found.
        lasts: Ranks whose speed differs from the others' by more than it drifts, ``[num_ranks]``.
    """
    loadings = loadings_ns[:, None]
    speed = _estimate_speed(usual_ns, errors_ns, loadings, kept)
    found: FloatArray = np.where(kept, usual_ns, loadings * speed)
    found[:, lasts & (np.abs(speed) >= MAX_ORDINARY_SIGMAS)] = 0.0
    return found


def _estimate_speed(usual_ns: FloatArray, errors_ns: FloatArray, loadings: FloatArray, kept: BoolArray) -> FloatArray:
    """Each rank's speed according to the segments that are kept, ``[num_ranks]``."""
    weights = np.where(kept, loadings / errors_ns**2, 0.0)
    speed: FloatArray = (weights * usual_ns).sum(axis=0) / (1 + (weights * loadings).sum(axis=0))
    return speed


def _misfit_without(
    usual_ns: FloatArray, errors_ns: FloatArray, loadings: FloatArray, kept: BoolArray, index: int
) -> FloatArray:
    """How ill a speed explains what is kept if this segment is set aside as well: a sum of squares, ``[num_ranks]``."""
    kept = kept.copy()
    kept[index] = False
    speed = _estimate_speed(usual_ns, errors_ns, loadings, kept)
    squares = ((usual_ns - loadings * speed) / errors_ns) ** 2
    misfit: FloatArray = speed**2 + np.where(kept, squares, 0.0).sum(axis=0)
    return misfit


def is_slower_throughout(
    excess_ns: FloatArray, *, errors_ns: FloatArray, usual_ns: FloatArray, least_ns: float = 1.0
) -> bool:
    """Whether a rank that is late beyond doubt is slower at all that it does, and not in one of its parts.

    A speed makes every part longer in proportion to its length, give or take `UNLIKE_RATIO`. Parts for which the others
    do not foretell that are set aside one by one, as in `explain_persistent`. The speed is what is seen if the parts
    that are left still show it without any one of them, are more than half of all, and lose more than any part that
    was set aside.

    Args:
        excess_ns: By part, ``[num_parts]``.
        errors_ns: Its standard errors.
        usual_ns: What the parts take the other ranks.
        least_ns: Shorter ones tell nothing of a speed, but may be what a rank loses most in.
    """
    errors_ns = np.maximum(errors_ns, 1.0)
    kept: BoolArray = usual_ns >= least_ns
    fewest = max(2, kept.sum() // 2 + 1)
    while kept.sum() >= fewest:
        rest = kept & ~np.eye(len(kept), dtype=bool)  # of each part, by which its own speed is foretold
        length_ns = (rest * usual_ns).sum(axis=1)
        speeds = (rest * excess_ns).sum(axis=1) / length_ns
        away_ns = excess_ns - np.outer(speeds, usual_ns)
        scatter_ns = np.hypot(errors_ns, UNLIKE_RATIO * np.outer(speeds, usual_ns))
        errors = np.linalg.norm(rest * scatter_ns, axis=1) / length_ns
        own_ns = np.hypot(scatter_ns.diagonal(), errors * usual_ns)
        odd = kept & (np.abs(away_ns.diagonal()) > Z_LIKELY * own_ns)
        if not odd.any():
            most_ns = np.where(kept, 0.0, away_ns.diagonal()).max()
            return bool((speeds > Z_LIKELY * errors)[kept].all() and excess_ns[kept].sum() > most_ns)
        misfit = (rest * (away_ns / scatter_ns) ** 2).sum(axis=1)
        kept[int(np.where(odd, misfit, np.inf).argmin())] = False
    return False
