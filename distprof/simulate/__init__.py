"""Simulated jobs with known truth: ranks, buckets, links, delays, jitter and clocks are chosen."""

from distprof.simulate.job import Clocks, Delay, SimulatedJob, Stop
from distprof.simulate.truth import Simulated, Truth, simulate

__all__ = ["Clocks", "Delay", "Simulated", "SimulatedJob", "Stop", "Truth", "simulate"]
