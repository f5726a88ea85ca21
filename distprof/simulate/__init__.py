"""Simulated jobs with known truth: ranks, buckets, links, delays, jitter and clocks are chosen."""

from distprof.simulate.draw import Cause
from distprof.simulate.job import Between, Clocks, Delay, SimulatedJob, Stop
from distprof.simulate.truth import CauseCost, Simulated, Truth, simulate

__all__ = [
    "Between", "Cause", "CauseCost", "Clocks", "Delay", "Simulated", "SimulatedJob", "Stop", "Truth", "simulate",
]  # fmt: skip
