"""How long would a collective of another size take? Latency and bandwidth, fitted to recorded transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.stats.statistics import CUT_SPREADS, draw_blocks, find_median, mad_sigma
from distprof.facts.run import FloatArray
from distprof.report.forecast_report import NoForecast

MIN_TRANSFERS = 3
"""Of a step; fewer do not tell what a straight line misses."""
MIN_SIZE_RATIO = 2.0
"""The largest transfer over the smallest; below, latency and bandwidth cannot be told apart."""
MAX_ERROR_RATIO = 0.1
"""Relative error of a fit; above, it is not used."""
SURE = 1.96
"""Standard errors of a 95 % interval ..."""
SURE_OF_FEW = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""... and of one from 1, 2, ... values to spare, by Student's t."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A transfer takes ``terms[0] + terms[1] * bytes`` ns."""

    terms: FloatArray
    """``[2]``"""
    covariance: FloatArray
    """Of the terms: by chance, from step to step, and by what a straight line misses, ``[2, 2]``; wider where few
    transfers tell that, so that `SURE` of its errors are a 95 % interval."""
    error_ratio: float

    def find_time(self, sizes_bytes: FloatArray, shift: FloatArray | None = None) -> FloatArray:
        """Transfer times, ns; with ``shift`` added to the terms. Never below 0."""
        terms = self.terms if shift is None else self.terms + shift
        time_ns: FloatArray = np.maximum(terms[0] + terms[1] * sizes_bytes, 0)
        return time_ns


def share_time(arrived_ns: FloatArray, ended_ns: FloatArray, *, at_once: int) -> FloatArray:
    """The time each collective of a group had the network for: while several are under way, each has its part of it.

    So the times of a queue add up to the time in which anything is under way, however many run at once.

    Args:
        arrived_ns: When the last rank arrived, ``[num_cycles, num_collectives]``, like the next and the result.
        ended_ns: When it ended.
        at_once: How many of them run at a time; the others queue in order of issue.
    """
    count = arrived_ns.shape[1]
    began_ns, over_ns = np.empty_like(arrived_ns), np.empty_like(arrived_ns)
    free_ns = np.full((len(arrived_ns), at_once), -np.inf)
    cycles = np.arange(len(arrived_ns))
    for index in range(count):
        place = free_ns.argmin(axis=1)
        began_ns[:, index] = np.maximum(arrived_ns[:, index], free_ns[cycles, place])
        over_ns[:, index] = free_ns[cycles, place] = np.maximum(ended_ns[:, index], began_ns[:, index])
    times_ns = np.concatenate([began_ns, over_ns], axis=1)
    order = np.argsort(times_ns, axis=1, kind="stable")
    under_way = np.cumsum(np.where(order < count, 1, -1), axis=1)[:, :-1]
    passed_ns = np.diff(np.take_along_axis(times_ns, order, axis=1), axis=1)
    shared_ns = np.where(under_way > 0, passed_ns / np.maximum(under_way, 1), 0.0).cumsum(axis=1)
    at_ns = np.zeros_like(times_ns)
    np.put_along_axis(at_ns, order[:, 1:], shared_ns, axis=1)
    own_ns: FloatArray = at_ns[:, count:] - at_ns[:, :count]
    return own_ns


def fit_transfers(sizes_bytes: FloatArray, shared_ns: FloatArray) -> Fit | NoForecast:
    """Fits a straight line by least squares to transfers, each cut to three spreads about its median over the cycles.

    A latency below 0 by no more than its error counts as 0.

    Args:
        sizes_bytes: ``[num_collectives]``
        shared_ns: As from `share_time`, ``[num_cycles, num_collectives]``.
    """
    if len(sizes_bytes) < MIN_TRANSFERS or sizes_bytes.min() <= 0:
        return NoForecast.FEW
    if sizes_bytes.max() < MIN_SIZE_RATIO * sizes_bytes.min():
        return NoForecast.ALIKE
    middle_ns, spread_ns = find_median(shared_ns, axis=0), mad_sigma(shared_ns.T)
    if not (middle_ns > 0).all():
        return NoForecast.ENDS_UNSEEN
    usual_ns = np.clip(shared_ns, middle_ns - CUT_SPREADS * spread_ns, middle_ns + CUT_SPREADS * spread_ns)
    line = np.stack([np.ones_like(sizes_bytes), sizes_bytes], axis=1)
    terms, covariance = _solve(line, usual_ns)
    if terms[1] <= 0 or terms[0] + SURE * np.sqrt(covariance[0, 0]) < 0:
        return NoForecast.NEGATIVE
    if terms[0] < 0:
        slope, error = _solve(line[:, 1:], usual_ns)
        terms, covariance = np.array([0.0, slope[0]]), np.diag([covariance[0, 0], error[0, 0]])
    mean_ns = usual_ns.mean(axis=0)
    missed_ns = mean_ns - line @ terms
    middle = line.mean(axis=0)
    variance = float((missed_ns**2).mean()) + float(middle @ covariance @ middle)
    error_ratio = float(np.sqrt(variance) / mean_ns.mean())
    if error_ratio > MAX_ERROR_RATIO:
        return NoForecast.INEXACT
    return Fit(terms=terms, covariance=covariance, error_ratio=error_ratio)


def _solve(line: FloatArray, usual_ns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The terms that miss least, in squares, and their covariance.

    Args:
        line: What each term is multiplied by, ``[num_collectives, num_terms]``.
        usual_ns: ``[num_cycles, num_collectives]``
    """
    by_cycle = usual_ns @ np.linalg.pinv(line).T
    terms = by_cycle.mean(axis=0)
    drawn = by_cycle[draw_blocks(len(by_cycle))].mean(axis=1)
    covariance = np.atleast_2d(np.cov(drawn, rowvar=False))
    spare = len(line) - line.shape[1]
    missed_ns = usual_ns.mean(axis=0) - line @ terms
    wider = (SURE_OF_FEW[spare - 1] if spare <= len(SURE_OF_FEW) else SURE) / SURE
    missed = wider**2 * float(missed_ns @ missed_ns) / spare * np.linalg.inv(line.T @ line)
    return terms, covariance + missed
