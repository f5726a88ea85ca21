"""Simulated jobs with known truth: ranks, buckets, links, delays, jitter and clocks are chosen.

Apart from them, `benchmarks.simulate.device` is a made-up device that a recorder runs on.
"""

from benchmarks.simulate.draw import Fault
from benchmarks.simulate.job import Between, Clocks, Delay, SimulatedBucket, SimulatedJob, Stop
from benchmarks.simulate.truth import FaultCost, Simulated, Truth, draw_truth, simulate

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
    "draw_truth",
    "simulate",
]
