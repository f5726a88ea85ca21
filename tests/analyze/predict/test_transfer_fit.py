"""Latency and bandwidth from recorded transfers: by hand, and where there is no answer."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.analyze.predict.transfer_fit import Fit, fit_transfers, share_time
from distprof.facts.run import FloatArray
from distprof.report.forecast_report import NoForecast
from tests.factories import MS

SIZES_BYTES = np.array([1e6, 2e6, 5e6, 5e6])
NUM_CYCLES = 20


def make_times(latency_ns: float, ns_per_byte: float, *, spread: float = 0.0) -> FloatArray:
    noise = np.random.default_rng(1).normal(0, spread, (NUM_CYCLES, len(SIZES_BYTES)))
    times_ns: FloatArray = (latency_ns + ns_per_byte * SIZES_BYTES) * (1 + noise)
    return times_ns


def require_fit(times_ns: FloatArray) -> Fit:
    fit = fit_transfers(SIZES_BYTES, times_ns)
    assert isinstance(fit, Fit)
    return fit


def test_transfers_one_after_the_other_have_the_network_to_themselves() -> None:
    """Ready at 0, 5 and 40 ms, over at 10, 30 and 45: the second one starts at 10."""
    shared_ns = share_time(np.array([[0.0, 5, 40]]) * MS, np.array([[10.0, 30, 45]]) * MS, at_once=1)
    assert shared_ns / MS == pytest.approx(np.array([[10, 20, 5]]))


def test_two_at_once_have_half_of_the_network_each() -> None:
    """Ready at 0, 0 and 5 ms, over at 20, 20 and 30: the third one starts when the first two have ended."""
    arrived_ns, ended_ns = np.array([[0.0, 0, 5]]) * MS, np.array([[20.0, 20, 30]]) * MS
    assert share_time(arrived_ns, ended_ns, at_once=2) / MS == pytest.approx(np.array([[10, 10, 10]]))


def test_one_that_starts_later_takes_half_from_then_on() -> None:
    """0 to 20 and 10 to 25 ms: 10 alone, 10 together, 5 alone."""
    shared_ns = share_time(np.array([[0.0, 10]]) * MS, np.array([[20.0, 25]]) * MS, at_once=2)
    assert shared_ns / MS == pytest.approx(np.array([[15, 10]]))


def test_latency_and_bandwidth_by_hand() -> None:
    fit = require_fit(make_times(2 * MS, 0.01))
    assert fit.terms == pytest.approx([2 * MS, 0.01]) and fit.error_ratio == pytest.approx(0, abs=1e-9)
    assert fit.find_time(np.array([3e6])) == pytest.approx([2 * MS + 30_000])


def test_a_stall_does_not_count() -> None:
    times_ns = make_times(2 * MS, 10, spread=0.01)
    usual = require_fit(times_ns).terms
    times_ns[7, 0] *= 1000
    assert require_fit(times_ns).terms == pytest.approx(usual, rel=0.02)


def test_the_true_terms_lie_within_four_errors() -> None:
    fit = require_fit(make_times(2 * MS, 10, spread=0.05))
    assert (np.abs(fit.terms - [2 * MS, 10]) < 4 * np.sqrt(np.diag(fit.covariance))).all()


def test_what_a_line_misses_counts_as_error() -> None:
    """Two transfers of one size take 49 and 51 ms, in every cycle: of 32.5 ms on average, 0.7 are missed."""
    times_ns = make_times(0, 10)
    times_ns[:, 2:] = np.array([49, 51]) * MS
    fit = require_fit(times_ns)
    assert 0.7 / 32.5 < fit.error_ratio < 0.1 and fit.covariance[1, 1] > 0


def test_a_latency_just_below_zero_counts_as_zero() -> None:
    """The noise of single transfers is larger than it."""
    assert require_fit(make_times(-0.02 * MS, 10, spread=0.05)).terms[0] == 0


@pytest.mark.parametrize(
    ("times_ns", "reason"),
    [
        (make_times(-9 * MS, 10), NoForecast.NEGATIVE),
        (make_times(90 * MS, -10), NoForecast.NEGATIVE),
        (make_times(0, 0), NoForecast.ENDS_UNSEEN),
        (make_times(0, 10) * [1, 1, 0.3, 1.7], NoForecast.INEXACT),
    ],
    ids=["latency", "bandwidth", "unseen", "inexact"],
)
def test_no_answer(times_ns: FloatArray, reason: NoForecast) -> None:
    assert fit_transfers(SIZES_BYTES, times_ns) is reason


def test_sizes_that_are_alike_tell_nothing() -> None:
    sizes_bytes = np.array([3e6, 4e6, 5.9e6])
    assert fit_transfers(sizes_bytes, np.tile(2 * MS + 10 * sizes_bytes, (NUM_CYCLES, 1))) is NoForecast.ALIKE
    assert fit_transfers(SIZES_BYTES[:2], make_times(2 * MS, 10)[:, :2]) is NoForecast.FEW
