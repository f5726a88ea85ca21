"""Simulated jobs with known truth: ranks, buckets, links, delays, jitter and clocks are chosen.

Apart from them, `distprof.simulate.device` is a made-up device that a recorder runs on.
"""

from distprof.simulate.draw import Fault
from distprof.simulate.job import Between, Clocks, Delay, SimulatedBucket, SimulatedJob, Stop
from distprof.simulate.truth import FaultCost, Simulated, Truth, simulate

__all__ = [
    "Between",
    "Clocks",
    "Delay",
    "Fault",
    "FaultCost",
    "Simulated",
    "SimulatedBucket",
    "SimulatedJob",
    "Stop",
    "Truth",
    "simulate",
]
