"""How sure is a statistic? Steps that are like their neighbours count as fewer, and events may coincide by chance."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from statistics import NormalDist
from types import MappingProxyType

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.statistics import fast_median, mad_sigma, midmean, standardise
from distprof.facts.arrays import FloatArray, IntArray

JOB_ALPHA = 0.01
"""Probability that a job in which nobody and nothing is slow has anything named by chance, by all tests together."""
ALPHA_SHARES: Mapping[str, float] = MappingProxyType(
    {
        "unequal data": 0.02,
        "occasional work": 0.25,
        "events": 0.35,
        "related parts": 0.02,  # a test before others, which may err if it does
        "periodic": 0.08,
        "slow hosts": 0.02,
        "changes": 0.06,  # before the test of each stretch
        "slow ranks": 0.20,  # of each part or, where the parts are related, of their speed and of what it leaves
    }
)
"""What each test may use up of `JOB_ALPHA`: however they depend on each other, together they err no more often than
that. Source: Bonferroni's inequality. A test divides its share by the number of ranks, parts and so on that it looks
at. What is asked once somebody is to be named (in which of its parts, at which period, in which module) is not in the
table."""
MAX_AUTOCORRELATION = 0.97
MAX_DEGREES_OF_FREEDOM = 1e6
"""With more, Student's t is as good as normal."""
MAX_TERMS, MAX_ROUNDS = 10_000, 100
PRECISION_RATIO = 1e-12
"""Where a series of approximations ends."""
MANY_SERIES = 4
"""From this many series on, the median over them counts, which a few odd ones do not move."""
NUM_UNITS = 1000
"""Sizes of events are counted in this many parts of their sum; rounded up, so that none is lost."""
MIN_P_VALUE = 1e-14
"""Smaller ones are rounding errors of the transform."""
LEAST_TURN = 1.5
"""Steps of a series times what its drift forgets in one: with less, a drift over so many steps cannot be told from a
difference that lasts."""
NUM_AUTOCORRELATIONS, NUM_SHARES, MAX_BINS = 24, 10, 64
"""How fine memories are told apart."""
MOST_SERIES = 64
"""So many tell enough of a memory."""
POOLED_EFFICIENCY = 0.55
"""Of a midmean of cube roots of chi-squared values with one degree of freedom: how many values tell as much as one of
their mean, by simulation; 0.64 of 7 and 0.52 of 63."""
MIN_WEIGHT = 1e-4
"""Of the most probable memory's; others are left out."""
FILLED_RATIO = 0.8
"""Share of the turns of a period that must have an event."""
LEAST_SPREAD = 0.02
"""Sizes closer than this are as good as equal."""
MAX_SIZES, MAX_KINDS = 200, 3
"""Events that are looked at, and kinds among them."""
MAX_KIND_P_VALUE = 0.1
"""Of kinds that are worth another test."""
MAX_BETWEEN = 3
"""So far apart in the order of events are two of which the distance may be the period; others may lie between."""
MAX_CANDIDATES = 4
"""Most frequent distances that are tried."""
MIN_TURNS = 3
"""Two events are always some period apart."""
MAX_JUMPS, JUMP_SPREADS = 2, 6.0
"""Stretches of another level in a series; and robust standard deviations about the levels, by which these differ ..."""
JUMP_GAIN, LEAST_JUMP_SPREADS = 32.0, 1.0
"""... or by which they differ at least, if the series is likelier by so much without: twice the logarithm of the ratio.
Of 1,500 series of each kind, drifting or not, of 50 to 400 steps, 1 to 4 are."""


def share_alpha(test: str) -> float:
    """The significance level of a test of `ALPHA_SHARES`, for a whole job."""
    return JOB_ALPHA * ALPHA_SHARES[test]


def lag1_autocorrelation(values: FloatArray) -> float:
    """The lag-1 autocorrelation that several series share, ``[num_series, num_steps]``; never below 0.

    The estimate from a short series is too small by (1 + 3 phi) / n, which is added. Source: Kendall (1954), Note on
    bias in the estimation of autocorrelation.
    """
    number = values.shape[1]
    cut = standardise(values)
    power = (cut**2).sum(axis=1)
    if number < MANY_SERIES + 1 or not (power > 0).any():
        return 0.0
    found = _pool((cut[:, 1:] * cut[:, :-1]).sum(axis=1)[power > 0] / power[power > 0])
    return float(np.clip((number * found + 1) / (number - 3), 0.0, MAX_AUTOCORRELATION))


class StepMemory(Struct, frozen=True, kw_only=True):
    """How like their neighbours steps are: a first-order autoregression, and what is new in each step.

    Several of these may be as good, ``[num_models]`` each.
    """

    share_ratio: FloatArray
    """Of the variance of a step that is the autoregression's."""
    autocorrelation: FloatArray
    """Of that from step to step."""
    weight: FloatArray
    """How probable each is; their sum is 1."""

    @property
    def lag1_autocorrelation(self) -> float:
        """Of the series."""
        return float(self.weight @ (self.share_ratio * self.autocorrelation))

    def compute_inflation(self, number: int) -> float:
        """By how much the variance of a mean over so many steps exceeds that over independent ones; at least 1.

        Of several memories it is the geometric mean, which is as often too small as too large.
        """
        inflation = 1 + self.share_ratio * (ar1_variance_inflation(self.autocorrelation, number) - 1)
        return math.exp(float(self.weight @ np.log(inflation)))


def estimate_memory(values: FloatArray) -> StepMemory:
    """The memory that several series share, ``[num_series, num_steps]``.

    How likely a memory is follows from the powers of the series' cosine transforms, whose expectations are exact. Their
    mean has no part in these, so that it does not make a short series look as if it forgot sooner than it does; and
    noise that is new in each step does not hide a drift below it. Few steps leave many memories possible: all of them
    count. Sources: Whittle (1953), Arkiv foer Matematik 2, for the likelihood; Mueller and Watson (2008), Econometrica
    76, for cosines; Hoeting and others (1999), Statistical Science 14, for the mean over models.
    """
    number = values.shape[1]
    cut = standardise(take_out_jumps(values))
    cut = cut[cut.any(axis=1)]
    models = _list_models(number if number > MANY_SERIES and len(cut) else 0)
    if models is None:
        none = np.zeros(1)
        return StepMemory(share_ratio=none, autocorrelation=none, weight=none + 1)
    pooled = midmean(np.cbrt(_compute_powers(cut)).T) ** 3  # a few odd series do not move it
    misfit = _compute_misfit(pooled[np.newaxis], models)[0]
    independent = POOLED_EFFICIENCY * max(len(cut) - 1, 1)  # each is compared with the others
    weight = models.prior * np.exp(-0.5 * independent * (misfit - misfit.min()))
    kept = weight > MIN_WEIGHT * weight.max()
    return StepMemory(
        share_ratio=models.share_ratio[kept], autocorrelation=models.autocorrelation[kept],
        weight=weight[kept] / weight[kept].sum(),
    )  # fmt: skip


def _compute_powers(values: FloatArray) -> FloatArray:
    """Of the cosine transform, at all frequencies but 0, ``[num_series, num_steps - 1]``."""
    transformed = np.fft.rfft(np.concatenate([values, values[:, ::-1]], axis=1), axis=1)[:, 1 : values.shape[1]]
    powers: FloatArray = np.abs(transformed) ** 2
    return powers


def _compute_misfit(powers: FloatArray, models: _Models) -> FloatArray:
    """How unlikely each memory makes each series: twice the negative logarithm of the likelihood, but for a constant,
    ``[num_series, num_models]``. The scale that fits best is the mean of the ratios, which leaves this of it."""
    ratios = np.add.reduceat(powers, models.starts, axis=1) @ (1 / models.expected).T
    misfit: FloatArray = np.log(ratios) * models.counts.sum() + np.log(models.expected) @ models.counts
    return misfit


def take_out_jumps(values: FloatArray) -> FloatArray:
    """At most `MOST_SERIES` of the series, evenly spaced, without the jumps to another level, and back, that no drift
    makes; else a rank that becomes slow in mid-run looks as if it drifted. A stretch of another level lies between the
    least and the greatest sum of the series so far, in which far values are cut. It is taken out if it is far larger
    than what is left varies, or if no memory makes the series nearly as likely with it as some does without. Source:
    Olshen and others (2004), Biostatistics 5, circular binary segmentation."""
    left = values[:: -(-len(values) // MOST_SERIES)].copy()
    for _ in range(MAX_JUMPS):
        through = np.cumsum(np.pad(standardise(left), ((0, 0), (1, 0))), axis=1)
        ends = np.sort([through.argmin(axis=1), through.argmax(axis=1)], axis=0).T
        levels = np.zeros_like(left)
        for row, (first, end) in enumerate(ends.tolist()):
            inside = np.zeros(left.shape[1], dtype=bool)
            inside[first:end] = True
            if inside.any() and not inside.all():
                levels[row] = np.where(inside, fast_median(left[row, inside]), fast_median(left[row, ~inside]))
        rest = left - levels
        spread = mad_sigma(rest)
        jumps = np.ptp(levels, axis=1) > JUMP_SPREADS * spread
        jumps |= _measure_gain(rest, levels, spread) > JUMP_GAIN
        left[jumps] = rest[jumps]
    return left


def _measure_gain(rest: FloatArray, levels: FloatArray, spread: FloatArray) -> FloatArray:
    """By how much series are likelier without their levels, each with the memory that fits it best, ``[num_series]``:
    twice the difference of the logarithms; far values are cut."""
    gain, known = np.zeros(len(rest)), (spread > 0) & (np.ptp(levels, axis=1) > LEAST_JUMP_SPREADS * spread)
    models = _list_models(rest.shape[1] if rest.shape[1] > MANY_SERIES and known.any() else 0)
    if models is None:
        return gain
    cut = standardise(rest[known])
    before = cut + (levels[known] - levels[known].mean(axis=1, keepdims=True)) / spread[known, None]
    misfits = (_compute_misfit(_compute_powers(series), models).min(axis=1) for series in (before, cut))
    gain[known] = np.subtract(*misfits)
    return gain


class _Models(Struct, frozen=True, kw_only=True):
    """The memories that a series of some length may have, and what they make of its cosine transform."""

    share_ratio: FloatArray
    autocorrelation: FloatArray
    prior: FloatArray
    """As probable that there is none as that there is one. ``[num_models]``"""
    starts: IntArray
    """Cosines in bins, which get wider: where each begins ..."""
    counts: IntArray
    """... and how many it has, ``[num_bins]``."""
    expected: FloatArray
    """Power of one of them, ``[num_models, num_bins]``."""


@functools.lru_cache(maxsize=16)
def _list_models(number: int) -> _Models | None:
    """Of a series of so many steps; None if there are none.

    The expectation is that of the whole process's spectrum, less what lies beyond both ends of the series.
    """
    if number < 1:
        return None
    starts = np.unique(np.geomspace(1, number, MAX_BINS).astype(np.int64))[:-1] - 1
    counts = np.diff(np.append(starts, number - 1))
    order = np.arange(1, number)
    angle, sign = np.pi * order / number, 1 - 2.0 * (order % 2)
    related, shares = 1 - np.geomspace(0.9, LEAST_TURN / number, NUM_AUTOCORRELATIONS), np.arange(1, 1 + NUM_SHARES)
    drift = related[:, None]
    turned = drift * np.exp(1j * angle)
    whole = (1 - drift**2) / np.abs(1 - turned) ** 2
    before = (np.exp(-0.5j * angle) * drift / (1 - turned.conj())).real
    inside = (np.exp(0.5j * angle) * (1 - sign * drift**number) / (1 - turned)).real
    power = np.add.reduceat(whole - 4 / number * before * inside, starts, axis=1) / counts
    share_ratio = np.append(0.0, np.repeat(shares / NUM_SHARES, len(related)))
    expected = share_ratio[:, None] * np.vstack([np.ones(len(starts)), np.tile(power, (NUM_SHARES, 1))])
    return _Models(
        share_ratio=share_ratio, autocorrelation=np.append(0.0, np.tile(related, NUM_SHARES)),
        prior=np.where(share_ratio > 0, 0.5 / (len(share_ratio) - 1), 0.5),
        starts=starts, counts=counts, expected=expected + 1 - share_ratio[:, None],
    )  # fmt: skip


def ar1_variance_inflation(autocorrelation: FloatArray, number: int) -> FloatArray:
    """Variance of the mean of ``number`` steps of a first-order autoregression, times ``number``, over the variance of
    a step."""
    if number < 1:
        return np.ones_like(autocorrelation)
    rest = 2 * autocorrelation * (1 - autocorrelation**number) / (number * (1 - autocorrelation) ** 2)
    inflation: FloatArray = (1 + autocorrelation) / (1 - autocorrelation) - rest
    return inflation


def correlation_time(autocorrelation: float) -> float:
    """Steps of a first-order autoregression that tell as much as a single independent one.

    Source: Bayley and Hammersley (1946), the effective number of observations of an AR(1) series.
    """
    return (1 + autocorrelation) / (1 - autocorrelation)


@functools.lru_cache(maxsize=4096)
def t_quantile(alpha: float, degrees_of_freedom: float) -> float:
    """What a t-distributed value exceeds with probability ``alpha``; its degrees of freedom need not be whole.

    Newton's method on the logarithms of tail and value: the one is a concave function of the other, so that it comes
    closer with each round, however heavy the tail. It begins at the normal quantile, which is smaller.

    Args:
        alpha: Above 0, and below 0.5.
        degrees_of_freedom: Above 0.
    """
    degrees_of_freedom = min(degrees_of_freedom, MAX_DEGREES_OF_FREEDOM)
    value = -NormalDist().inv_cdf(alpha)
    for _ in range(MAX_ROUNDS):
        tail = t_survival(value, degrees_of_freedom)
        steepness = value * _t_density(value, degrees_of_freedom) / tail
        change = math.log(tail / alpha) / steepness
        value *= math.exp(change)
        if abs(change) < PRECISION_RATIO:
            break
    return value


def t_survival(ratio: float, degrees_of_freedom: float) -> float:
    """The probability that a t-distributed value exceeds this ratio, at least 0; its degrees of freedom need not be
    whole. Source: Abramowitz and Stegun (1964), Handbook of Mathematical Functions, 26.5.27 and 26.7.1."""
    degrees_of_freedom = min(degrees_of_freedom, MAX_DEGREES_OF_FREEDOM)
    square, half = ratio * ratio, degrees_of_freedom / 2
    if square <= 0:
        return 0.5
    below, above = degrees_of_freedom / (degrees_of_freedom + square), square / (degrees_of_freedom + square)
    front = math.exp(
        math.lgamma(half + 0.5) - math.lgamma(half) - math.lgamma(0.5)
        - half * math.log1p(square / degrees_of_freedom) + 0.5 * math.log(above)
    )  # fmt: skip
    if below < (half + 1) / (half + 2.5):
        return front * _expand_beta(half, 0.5, below) / (2 * half)
    return 0.5 - front * _expand_beta(0.5, half, above)


def _t_density(ratio: float, degrees_of_freedom: float) -> float:
    half = degrees_of_freedom / 2
    scale = math.lgamma(half + 0.5) - math.lgamma(half) - 0.5 * math.log(degrees_of_freedom * math.pi)
    return math.exp(scale - (half + 0.5) * math.log1p(ratio * ratio / degrees_of_freedom))


def _expand_beta(one: float, other: float, share: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method. Source: Press and others (2007),
    Numerical Recipes, 6.4."""
    ratio, inverse = 1.0, 1 / (1 - (one + other) * share / (one + 1))
    found = inverse
    for number in range(1, MAX_TERMS):
        twice = one + 2 * number
        terms = (
            number * (other - number) * share / ((twice - 1) * twice),
            -(one + number) * (one + other + number) * share / (twice * (twice + 1)),
        )
        for term in terms:
            inverse = 1 / (1 + term * inverse)
            ratio = 1 + term / ratio
            found *= ratio * inverse
        if abs(ratio * inverse - 1) < PRECISION_RATIO:
            break
    return found


def _pool(values: FloatArray) -> float:
    return float(fast_median(values) if len(values) >= MANY_SERIES else np.mean(values))


def binomial_tail(count: int, total: int, share: float) -> float:
    """The probability of ``count`` or more hits of ``total`` when each hits with this share: the binomial tail."""
    if share <= 0 or share >= 1:
        return float(share >= 1 or count <= 0)
    if not 0 <= count <= total:
        return float(count < 0)
    # By logarithms: the numbers themselves have hundreds of digits. Each term follows from the one before.
    ways = math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
    first = ways + count * math.log(share) + (total - count) * math.log1p(-share)
    hits = np.arange(count + 1, total + 1)
    steps = np.log((total - hits + 1) / hits) + (math.log(share) - math.log1p(-share))
    return math.exp(first) + float(np.exp(first + np.cumsum(steps)).sum())


def concentration_p_values(rows: IntArray, sizes: FloatArray, num_ranks: int) -> FloatArray:
    """The probability that a rank gets as much of the events as each did, if each event struck a rank at random.

    Sizes are given and only the ranks are drawn, so heavy tails that hit all ranks alike prove nothing: a single huge
    event is on some rank in any case. The sum's distribution is exact, from the product of its characteristic
    functions.

    Args:
        rows: The rank of each event, ``[num_events]``.
        sizes: How large each is; above 0.
        num_ranks: All ranks, also those without an event.

    Returns:
        ``[num_ranks]``; 1: none of the events.
    """
    units = np.ceil(sizes * (NUM_UNITS / sizes.sum())).astype(np.int64)
    length = int(units.sum()) + 1
    angle = np.arange(length // 2 + 1) * (-2j * np.pi / length)
    spectrum = np.ones(len(angle), dtype=complex)
    for unit, count in zip(*np.unique(units, return_counts=True), strict=True):
        spectrum *= (1 + (np.exp(angle * unit) - 1) / num_ranks) ** count
    tail = np.cumsum(np.fft.irfft(spectrum, length)[::-1])[::-1]
    got = np.bincount(rows, weights=units, minlength=num_ranks).astype(np.int64)
    p_values: FloatArray = np.clip(tail[got], MIN_P_VALUE, 1.0)
    return p_values


class EventKind(Struct, frozen=True, kw_only=True):
    """Events of about one size, with a gap below them that events of all sizes hardly have."""

    members: IntArray
    """Indices of the events."""
    ratio: float
    """Of the range of their sizes and the gap together, on a logarithmic scale, the share of the range."""
    tries: int
    """What the p-value of this range alone is multiplied by, because others could have been the kind."""

    def p_value(self, independent: int) -> float:
        """The probability that events at random make any such kind.

        Args:
            independent: How many of its events count according to `count_independent`: the steps of a lasting slowdown
                are alike anyway.
        """
        if independent < MIN_TURNS:
            return 1.0
        return float(min(1.0, self.tries * self.ratio ** (min(independent, len(self.members)) - 1)))


def detect_kinds(sizes: FloatArray, least: float) -> list[EventKind]:
    """The kinds among events, the clearest first; no event is of two kinds.

    Under the null hypothesis the logarithms of the sizes are uniform: then the gap below n neighbours, over the mean of
    the n - 1 gaps between them, has an F-distribution with 2 and 2 (n - 1) degrees of freedom, which exceeds f with
    probability (1 + f / (n - 1)) ** (1 - n). The gaps in a Pareto tail, with any index, get wider from one to the next
    larger size, so that this happens less often still. Of all ranges of sizes that could have been the kind, those that
    begin with the largest event share half of the error, those that begin with the next one a sixth, and so on
    (Bonferroni). The p-value is one of the sizes alone, whichever ranks they strike. Sources: Rényi (1953), On the
    theory of order statistics; Barnett and Lewis (1994), Outliers in Statistical Data, 6.4, on blocks of outliers.

    Args:
        sizes: How large each event is, ``[num_events]``; of more than `MAX_SIZES` the largest are looked at.
        least: Nothing that is no event is larger; above 0.
    """
    order = np.argsort(-sizes, kind="stable")[:MAX_SIZES]
    number = len(order)
    logs = np.log(np.append(sizes[order], np.minimum(least, sizes.min(initial=least))))
    first, last = np.triu_indices(number, MIN_TURNS - 1)
    within = np.maximum(logs[first] - logs[last], LEAST_SPREAD)
    ratios = within / (within + logs[last] - logs[last + 1])
    tries = (first + 1) * (first + 2) * (number - MIN_TURNS + 1 - first)
    found: list[EventKind] = []
    free = np.ones(number, dtype=bool)
    for index in np.argsort((last - first) * np.log(ratios) + np.log(tries), kind="stable").tolist():
        window = slice(int(first[index]), int(last[index]) + 1)
        kind = EventKind(members=order[window], ratio=float(ratios[index]), tries=int(tries[index]))
        if len(found) == MAX_KINDS or kind.p_value(len(kind.members)) > MAX_KIND_P_VALUE:
            break
        if free[window].all():
            free[window] = False
            found.append(kind)
    return found


def fisher_combine(*p_values: float) -> float:
    """The p-value of several independent tests together. Source: Fisher (1925), Statistical Methods, 21.1."""
    product = math.prod(p_values)
    if product <= 0:
        return 0.0
    terms = (-math.log(product)) ** np.arange(len(p_values)) / [math.factorial(power) for power in range(len(p_values))]
    return product * float(terms.sum())


def count_independent(at: IntArray, own_ns: FloatArray, usual: IntArray) -> int:
    """How many events are independent of each other: under drift they come in crowds, each of which counts once.

    Events belong together if they are closer than the series' `correlation_time`. Events that no drift reaches
    are independent, unless they come in far fewer runs than events at random would.

    Args:
        at: Positions of the events, ascending, ``[num_events]``.
        own_ns: The series that they stand out from, ``[num_cycles]``.
        usual: Positions at which nothing stands out, ascending.
    """
    usual_ns = own_ns[usual]
    highest, count, total = float(usual_ns.max()), len(at), len(own_ns)
    scattered = 1 + np.sum(np.diff(at) > 1) >= 0.5 * count * (total - count + 1) / total
    if scattered and float(own_ns[at].min()) - highest > highest - float(usual_ns.min()):
        return count
    level = np.minimum(own_ns, highest)  # how far events stand out must not drown the drift
    level -= level.mean()
    whole = float(level @ level)
    related = float(level[1:] @ level[:-1]) / whole if whole > 0 else 0.0
    if related <= 2 / math.sqrt(total):  # what independent steps show by chance
        return count
    return 1 + int(np.sum(np.diff(at) >= correlation_time(related)))


def estimate_period(at: IntArray, steps: IntArray) -> tuple[int, int, float]:
    """The period at which most events come, and the p-value that events at random would show any such period.

    Args:
        at: Numbers of the steps with an event, ascending, ``[num_events]``.
        steps: Numbers of all steps looked at, ascending.

    Returns:
        The period in steps, 0: none; the remainder of the steps' numbers by it; and the p-value.
    """
    longest = int(steps[-1] - steps[0]) // (MIN_TURNS - 1)
    looked = longest * (longest + 1) / 2  # each phase of each period could have been the one
    found, best = (0, 0), 1.0
    apart = np.concatenate([at[gap:] - at[:-gap] for gap in range(1, 1 + MAX_BETWEEN)])
    for period, count in Counter(apart.tolist()).most_common(MAX_CANDIDATES):
        if period < 2 or count < MIN_TURNS - 1:
            continue
        phases, hits = np.unique(at % period, return_counts=True)
        phase, filled = int(phases[hits.argmax()]), int(hits.max())
        turns = int(np.sum(steps % period == phase))
        if filled >= max(MIN_TURNS, FILLED_RATIO * turns):
            p_value = min(1.0, looked * hypergeometric_tail(filled, turns, len(at), len(steps)))
            found, best = ((period, phase), p_value) if p_value < best else (found, best)
    return *found, best


def hypergeometric_tail(hits: int, marked: int, drawn: int, total: int) -> float:
    """The probability that ``drawn`` of ``total`` contain ``hits`` or more of the ``marked``."""

    def choose(number: int, of: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(number + 1) - math.lgamma(of - number + 1)

    first, last = max(hits, drawn - (total - marked)), min(marked, drawn)
    whole = choose(drawn, total)
    ways = (choose(count, marked) + choose(drawn - count, total - marked) for count in range(first, last + 1))
    return sum(math.exp(way - whole) for way in ways)
