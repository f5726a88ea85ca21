"""Is a time longer on one side than on the other, by how much, and how sure is that?

Both the mean is compared, which is what steps cost, and the mean of their middle half, which rare long steps do not
move. A side is one run or several. The error of one run's mean comes from its steps, by way of their autocorrelation.
Where a side has several runs, what these differ by, all sides together, is the error of a run's mean, unless their
steps show more: runs of the same thing differ as well. Two or three runs may be alike by chance, and Student's t of one
degree of freedom reaches so far that nothing would ever differ: with so few, what they differ by is averaged with what
runs are assumed to (Smyth's moderated t). Ratios have Fieller's interval, which contains 1 exactly where
Student's test of the difference, with Satterthwaite's degrees of freedom, sees none. Sources: Fieller (1954), Journal
of the Royal Statistical Society B 16; Satterthwaite (1946), Biometrics Bulletin 2; Smyth (2004), Statistical
Applications in Genetics and Molecular Biology 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from distprof.analyze.stats.mean_interval import MeanError, combine_errors
from distprof.analyze.stats.significance import t_quantile
from distprof.report.comparison_report import (
    Average,
    ComparedAverage,
    ComparedTime,
    CompareVerdict,
    Figure,
    LimitVerdict,
    Scope,
)

ALPHA = 0.005
"""Probability that anything differs by chance between two sides that are the same, by all rows together."""
ALPHA_SHARES: Mapping[Scope, float] = MappingProxyType(
    {"step": 0.4, "phase": 0.3, "rank": 0.12, "collective": 0.06, "module": 0.06, "kernel": 0.03, "job": 0.03}
)
"""What each scope may use up of `ALPHA`, divided by its number of rows. Source: Bonferroni's inequality."""
NUM_AVERAGES = 2
"""That are tested of each row."""
DIFFERENT = ("better", "worse")
MIN_SHARE_RATIO = 0.005
"""Of the step: shorter rows are not judged, and a difference of less matters to nobody."""

FEW_DEGREES_OF_FREEDOM = 2
"""Number of runs, less that of the sides with several: up to here, what runs differ by is assumed in part."""
ASSUMED_RATIO, ASSUMED_DEGREES_OF_FREEDOM = 0.03, 4
"""What they are assumed to differ by, over the mean step, and how much that counts. A prior: nothing measured."""


class MeanTime(Struct, frozen=True, kw_only=True):
    """One time of one side: the mean over its runs."""

    value_ns: float
    error: MeanError | None
    """None: not known."""
    pooled: bool = False
    """Whether the error comes from what runs differ by, on both sides together."""


class RunVariance(Struct, frozen=True, kw_only=True):
    """How much the mean of one run differs from that of another run of the same thing, squared and over the mean."""

    relative: float
    degrees_of_freedom: float

    @property
    def is_assumed(self) -> bool:
        """Whether the runs are too few to show it alone."""
        return self.degrees_of_freedom <= FEW_DEGREES_OF_FREEDOM

    def estimate_error(self, value_ns: float, number: int, step_ns: float) -> MeanError:
        """The error of the mean of a time over so many runs, with what is assumed."""
        squares = self.degrees_of_freedom * self.relative * value_ns**2
        freedom = self.degrees_of_freedom
        if self.is_assumed:
            squares += ASSUMED_DEGREES_OF_FREEDOM * (ASSUMED_RATIO * step_ns) ** 2
            freedom += ASSUMED_DEGREES_OF_FREEDOM
        return MeanError(variance=squares / freedom / number, degrees_of_freedom=freedom)


def measure_run_variance(*sides: Sequence[Average]) -> RunVariance | None:
    """Of the runs of all sides about their sides' means. None: no side has two, or the mean of one is 0."""
    several = [[average.value_ns for average in side] for side in sides if len(side) > 1]
    middles = [sum(values) / len(values) for values in several]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom or not all(middle > 0 for middle in middles):
        return None
    squares = sum(
        sum((value / middle - 1) ** 2 for value in values) for values, middle in zip(several, middles, strict=True)
    )
    return RunVariance(relative=squares / freedom, degrees_of_freedom=float(freedom))


def average_runs(side: Sequence[Average], between: RunVariance | None, step_ns: float) -> MeanTime:
    """The mean of one side's runs. ``step_ns``: the mean step."""
    number = len(side)
    value_ns = sum(average.value_ns for average in side) / number
    within = [error for error in map(_read_error, side) if error is not None]
    inside = combine_errors(within, [1 / number] * number) if len(within) == number else None
    if between is None:
        return MeanTime(value_ns=value_ns, error=inside)
    error = between.estimate_error(value_ns, number, step_ns)
    if inside is not None and inside.variance >= error.variance:
        return MeanTime(value_ns=value_ns, error=inside)
    return MeanTime(value_ns=value_ns, error=error, pooled=True)


def _read_error(average: Average) -> MeanError | None:
    if average.variance_ns2 is None:
        return None
    freedom = average.degrees_of_freedom
    return MeanError(variance=average.variance_ns2, degrees_of_freedom=math.inf if freedom is None else freedom)


def compare_time(
    base: Sequence[Figure], new: Sequence[Figure], *, num_rows: int, limit_ratio: float, step_ns: float
) -> ComparedTime:
    """One time on both sides.

    Args:
        base: Of each run of the first side.
        new: Of each run of the other.
        num_rows: How many times of this scope are compared.
        limit_ratio: What counts as no difference.
        step_ns: The mean step of the first side.
    """
    first = base[0]
    alpha = ALPHA * ALPHA_SHARES[first.scope] / max(num_rows, 1) / NUM_AVERAGES
    floor_ns = 0.0 if first.scope == "step" else MIN_SHARE_RATIO * step_ns
    mean = _compare([each.mean for each in base], [each.mean for each in new], alpha, limit_ratio, floor_ns, step_ns)
    old, now = ([each.usual for each in side if each.usual is not None] for side in (base, new))
    usual = None
    if len(old) == len(base) and len(now) == len(new):
        usual = _compare(old, now, alpha, limit_ratio, floor_ns, step_ns)
    verdict = mean.verdict
    if verdict not in DIFFERENT and usual is not None and usual.verdict in DIFFERENT:
        verdict = usual.verdict
    if max(mean.base_ns, mean.new_ns) < floor_ns:
        verdict = "too small"
    return ComparedTime(
        scope=first.scope, name=first.name, rank=first.rank, place=first.place, clock=first.clock, mean=mean,
        usual=usual, level=1 - alpha, verdict=verdict,
    )  # fmt: skip


def _compare(
    base: Sequence[Average], new: Sequence[Average], alpha: float, limit_ratio: float, floor_ns: float, step_ns: float
) -> ComparedAverage:
    between = measure_run_variance(base, new)
    old, now = average_runs(base, between, step_ns), average_runs(new, between, step_ns)
    difference_ns = now.value_ns - old.value_ns
    reach_ns, (low, high) = _bound(old, now, alpha)
    return ComparedAverage(
        base_ns=old.value_ns, new_ns=now.value_ns, difference_ns=difference_ns,
        ratio=now.value_ns / old.value_ns if old.value_ns > 0 else None, low_ratio=low, high_ratio=high,
        verdict=judge(difference_ns, reach_ns, max(limit_ratio * old.value_ns, floor_ns)),
    )  # fmt: skip


def judge(difference_ns: float, reach_ns: float | None, least_ns: float) -> CompareVerdict:
    """What an interval says: half its width is ``reach_ns``, None: not known; differences of ``least_ns`` matter."""
    if reach_ns is None:
        return "inconclusive"
    if abs(difference_ns) > reach_ns:
        return "worse" if difference_ns > 0 else "better"
    return "no difference" if abs(difference_ns) + reach_ns <= least_ns else "inconclusive"


def judge_limit(step: ComparedTime, limit_ratio: float) -> LimitVerdict:
    """Whether the step, its mean or the usual one, is longer by more than a limit."""
    most = 1 + limit_ratio
    averages = [step.mean, *([] if step.usual is None else [step.usual])]
    if any(each.low_ratio is not None and each.low_ratio > most for each in averages):
        return "over"
    within = all(each.high_ratio is not None and each.high_ratio <= most for each in averages)
    return "within" if within else "inconclusive"


def _bound(old: MeanTime, now: MeanTime, alpha: float) -> tuple[float | None, tuple[float | None, float | None]]:
    """How far the difference reaches, ns, and Fieller's bounds of the ratio; None: not known, or none."""
    if old.error is None or now.error is None:
        return None, (None, None)
    error = combine_errors([old.error, now.error], [1.0, 1.0])
    if old.pooled and now.pooled:  # one estimate, not two that are independent
        error = MeanError(variance=error.variance, degrees_of_freedom=old.error.degrees_of_freedom)
    far = 0.0 if error.variance <= 0 else t_quantile(alpha / 2, error.degrees_of_freedom)
    reach_ns = far * math.sqrt(error.variance)
    lead = old.value_ns**2 - far**2 * old.error.variance
    if old.value_ns <= 0 or lead <= 0:  # the base may be 0
        return reach_ns, (None, None)
    product = old.value_ns * now.value_ns
    rest = now.value_ns**2 - far**2 * now.error.variance
    root = math.sqrt(max(product * product - lead * rest, 0.0))
    return reach_ns, (max((product - root) / lead, 0.0), (product + root) / lead)
