"""Cycles of ranks that work on their own and meet once, in one all-reduce; a test chooses their own times."""

from __future__ import annotations

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.facts.run import OWN_PHASES, Clock, FloatArray
from tests.factories import MS

MEAN_NS = np.array([5, 30, 50, 3, 10, 2]) * float(MS)
"""By own phase: 100 ms in all, and 10 of transfer."""
PHASE = {phase: index for index, phase in enumerate(OWN_PHASES)}


def draw_own(draws: np.random.Generator, num_ranks: int, num_cycles: int, *, sigma: float = 0.02) -> FloatArray:
    """Own times of ranks that are alike, log-normal, ``[num_ranks, num_cycles, len(OWN_PHASES)]``."""
    return MEAN_NS * draws.lognormal(0, sigma, (num_ranks, num_cycles, len(MEAN_NS)))


def draw_drift(draws: np.random.Generator, num_ranks: int, num_cycles: int, *, related: float) -> FloatArray:
    """Own times that drift: AR(1) of a tenth in standard deviation, same shape as `draw_own`."""
    noise = draws.standard_normal((num_ranks, num_cycles, len(MEAN_NS)))
    for step in range(1, num_cycles):
        noise[:, step] = related * noise[:, step - 1] + np.sqrt(1 - related**2) * noise[:, step]
    drifting: FloatArray = MEAN_NS * np.exp(0.1 * noise)
    return drifting


def make_cycles(phase_ns: FloatArray, *, first_step: int = 1) -> SyncCycles:
    """The cycles in which ranks with these own times wait for the last of them."""
    num_ranks, num_cycles = phase_ns.shape[:2]
    everyone = np.arange(num_ranks)
    gap_ns = phase_ns.sum(axis=2)[:, :, None]
    transfer_ns = np.full_like(gap_ns, 10 * MS)
    return SyncCycles(
        source="collectives", clock=Clock.HOST, positions=everyone, steps=first_step + np.arange(num_cycles),
        parties=((("default", everyone),),), blocking=np.array([True]), gap_ns=gap_ns,
        exposed_ns=gap_ns.max(axis=0) - gap_ns + transfer_ns, transfer_ns=transfer_ns,
        start_ns=np.zeros((num_ranks, num_cycles)), phase_ns=phase_ns,
    )  # fmt: skip
