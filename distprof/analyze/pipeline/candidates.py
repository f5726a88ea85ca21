"""What a finder of this room hands on, and the statistics that its finders share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.pipeline.work import Recorded
from distprof.analyze.stats.mean_interval import MIN_DEGREES_OF_FREEDOM, estimate, influence_on_midmean
from distprof.analyze.stats.significance import JOB_ALPHA, t_survival
from distprof.analyze.stats.statistics import LEVEL, bound_share, medians_of_others, midmean
from distprof.analyze.stats.step_memory import estimate_memory
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.operations import Kind
from distprof.facts.run import Part, Phase
from distprof.report.operations_report import PipelineCauseKind
from distprof.report.wait_report import Estimate

PIPELINE_SHARES: Mapping[PipelineCauseKind, float] = MappingProxyType({
    PipelineCauseKind.SLOW_WORKER: 0.25, PipelineCauseKind.SLOW_REPLICA: 0.1, PipelineCauseKind.UNEVEN_STAGE: 0.15,
    PipelineCauseKind.UNEQUAL_SEQUENCES: 0.2, PipelineCauseKind.SLOW_LINK: 0.1,
    PipelineCauseKind.HELD_UP: 0.1, PipelineCauseKind.STALLS: 0.1,
})  # fmt: skip
"""What each test may use up of `JOB_ALPHA` (Bonferroni); it divides its share by all that it looks at."""

PHASES_OF: Mapping[Kind, Phase] = MappingProxyType({Kind.FORWARD: Phase.FORWARD, Kind.BACKWARD: Phase.BACKWARD})
LEAST_VARIANCE_RATIO = 0.1
"""Of a short series of long memory: its own variance holds at least this share of the whole."""
DEGREES_RATIO = 0.5
"""What a step tells of the variance of a mean, beyond its neighbours, as in `distprof.analyze.stats.lateness`."""


class JobPart(Struct, frozen=True, kw_only=True):
    """Some steps of a job that follow each other."""

    first: int
    """Positions of the first of them among those that are judged, and of the one after the last."""
    end: int
    first_step: int
    """Numbers of the first and the last one, of all steps, which need not be judged."""
    last_step: int
    share_ratio: float
    """Of the time of all steps, without and with instruments."""
    more_ratio: float
    """By how much longer its median step is than that of the others."""


class PipelineCandidate(Struct, frozen=True, kw_only=True):
    """Something that stands out; fields as of `distprof.report.operations_report.PipelineCause`."""

    kind: PipelineCauseKind
    what: str
    more_ratio: float
    steps_count: int
    work_ns: FloatArray
    """Durations and transfers without it, ``[num_operations]``."""
    replica: int | None = None
    stage: int | None = None
    alone: bool = False
    excess: FloatArray | None = None
    """By unit: its midmean is what it takes longer, and the error of that counts in the interval of its cost. None: it
    does not."""
    phase: Part | None = None
    micro_batches: tuple[int, ...] = ()
    late_ns: float | None = None
    acting: BoolArray | None = None
    """In which steps it acts, ``[num_steps]``: what these and the others differ by is no error of its cost. None: in
    all."""
    is_sampled: bool = False
    """It acts in more steps than were recorded: in how many is known as well as a sample tells."""
    period: int | None = None
    """Of stalls: every so many steps. None: at no period, or another kind."""
    part: JobPart | None = None
    """Of the job, in which it acts. None: it acts in the whole job."""


def estimate_cost(
    candidate: PipelineCandidate, saved_ns: FloatArray, step_ns: FloatArray, error_ns: FloatArray | None = None
) -> tuple[Estimate, Estimate, Estimate | None]:
    """What fixing it saves: per step, ns, as a share of the step, and as a share of the steps of its part of the job.

    Of a part, as many steps are judged as were recorded: how much of the job it is, the times of all steps say.

    Args:
        candidate: What stands out.
        saved_ns: By how much each step would be shorter, ``[num_steps]``.
        step_ns: How long the steps are.
        error_ns: As of `estimate`.
    """
    whole_ns = float(step_ns.mean())
    if candidate.part is None or candidate.acting is None:
        sets = None if candidate.acting is None else candidate.acting.astype(np.int64)
        saved, ratio = estimate(saved_ns, whole_ns, error_ns=error_ns, sets=sets)
        if candidate.acting is not None and candidate.is_sampled:
            saved, ratio = (_widen_by_count(cost, candidate.acting) for cost in (saved, ratio))
        return saved, ratio, None
    _, then = estimate(saved_ns[candidate.acting], float(step_ns[candidate.acting].mean()))
    ratio = then.scale(candidate.part.share_ratio)
    return ratio.scale(whole_ns), ratio, then


def _widen_by_count(cost: Estimate, acting: BoolArray) -> Estimate:
    """With the 95 % interval of in how many steps it acts, if a sample of them tells."""
    hits, number, level = int(acting.sum()), len(acting), (1 + LEVEL) / 2
    low, high = 1 - bound_share(number - hits, number, level), bound_share(hits, number, level)
    return structs.replace(cost, low=cost.low * low * number / hits, high=cost.high * high * number / hits)


def share_alpha(recorded: Recorded, kind: PipelineCauseKind, tests: int = 1) -> float:
    """The significance level of one of so many tests of a finder."""
    return JOB_ALPHA * PIPELINE_SHARES[kind] / (tests * recorded.looks)


def compute_p_values(excess: FloatArray) -> FloatArray:
    """How probable midmeans so far above 0 are by chance, ``[num_series]``: Student's t.

    How much neighbouring steps are alike is estimated from all series together, of which one alone says little; so the
    degrees of freedom are those that all of them have.

    Args:
        excess: ``[num_steps, num_series]``
    """
    series = np.ascontiguousarray(excess.T)
    number, memory = series.shape[1], estimate_memory(series)
    inflation = memory.compute_inflation(number)
    centre = midmean(series)
    variance = np.array([float(np.var(influence_on_midmean(values), ddof=1)) for values in series]) * inflation / number
    variance /= max(1 - inflation / number, LEAST_VARIANCE_RATIO)
    free = max(MIN_DEGREES_OF_FREEDOM, min(number - 1, DEGREES_RATIO * len(series) * number / inflation))
    p_values = np.where((centre > 0) & (variance == 0), 0.0, 1.0)
    for row in np.flatnonzero((centre > 0) & (variance > 0)).tolist():
        p_values[row] = t_survival(float(centre[row]) / math.sqrt(variance[row]), free)
    return p_values


def compare_with_others(values: FloatArray, axis: int) -> FloatArray:
    """Each value less the median of the others along an axis of two or more."""
    moved = np.moveaxis(values, axis, 0)
    excess: FloatArray = np.moveaxis(moved - medians_of_others(moved), 0, axis)
    return excess
