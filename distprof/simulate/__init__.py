"""Made-up jobs with their truth: ranks, buckets, links, delays, jitter and clocks that somebody chose."""

from distprof.simulate.job import Clocks, Delay, SimulatedJob
from distprof.simulate.truth import Simulated, Truth, simulate

__all__ = ["Clocks", "Delay", "Simulated", "SimulatedJob", "Truth", "simulate"]
