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

from distprof.analyze.stats.statistics import fast_median, standardise
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
FILLED_RATIO = 0.8
"""Share of the turns of a period, from the first with an event to the last, that must have one."""
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
ALPHA_AWAY = 0.005
"""Below this probability, what comes now and then is said to have begun or ended within the run."""
MIN_TURNS = 3
"""Two events are always some period apart."""


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
        turns, own = steps[steps % period == phase], at[at % period == phase]
        between = np.searchsorted(turns, own[-1]) - np.searchsorted(turns, own[0]) + 1
        if filled >= max(MIN_TURNS, FILLED_RATIO * between):
            p_value = min(1.0, looked * hypergeometric_tail(filled, len(turns), len(at), len(steps)))
            found, best = ((period, phase), p_value) if p_value < best else (found, best)
    return *found, best


def comes_all_along(at: IntArray, steps: IntArray, period: int | None) -> bool:
    """Whether what comes now and then does so from the first step to the last as it may by chance: so often, it does
    not stay away for so long before its first time or after its last.

    Args:
        at: Positions of the steps in which it comes, ascending.
        steps: Numbers of all steps looked at, ascending.
        period: At which it comes. None: at none.
    """
    if not len(at):
        return True
    places = np.arange(len(steps))
    if period is not None:
        places = np.flatnonzero(steps % period == steps[at[0]] % period)
    first, last = np.searchsorted(places, at[[0, -1]]).tolist()
    tries = len(places) if period is None else last - first + 2  # one more than it came in: it might have failed
    away = max(first, len(places) - 1 - last)
    return bool((1 - min(len(at) / tries, 1.0)) ** away >= ALPHA_AWAY)


def hypergeometric_tail(hits: int, marked: int, drawn: int, total: int) -> float:
    """The probability that ``drawn`` of ``total`` contain ``hits`` or more of the ``marked``."""

    def choose(number: int, of: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(number + 1) - math.lgamma(of - number + 1)

    first, last = max(hits, drawn - (total - marked)), min(marked, drawn)
    whole = choose(drawn, total)
    ways = (choose(count, marked) + choose(drawn - count, total - marked) for count in range(first, last + 1))
    return sum(math.exp(way - whole) for way in ways)
