"""Cycles of ranks that work on their own and meet once, in one all-reduce; a test chooses their own times."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.analyze.causes.find_causes import begin, list_candidates
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import CandidateCause, Finder, Unexplained
from distprof.analyze.replay.replay import replay
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PHASES, Clock
from tests.factories import MS, make_run

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
    work_ns = phase_ns.sum(axis=2)[:, :, None]
    transfer_ns = np.full_like(work_ns, 10 * MS)
    return SyncCycles(
        source="collectives", clock=Clock.HOST, positions=everyone, steps=first_step + np.arange(num_cycles),
        groups=((("default", everyone),),), is_waited_on=np.array([True]), work_ns=work_ns,
        blocked_ns=work_ns.max(axis=0) - work_ns + transfer_ns, transfer_ns=transfer_ns,
        start_ns=np.zeros((num_ranks, num_cycles)), phase_ns=phase_ns,
    )  # fmt: skip


def leave_all(cycles: SyncCycles) -> Unexplained:
    """What finders of these cycles begin with, of a job of which nothing else is known."""
    return begin(choose_measured_steps(make_run(num_ranks=len(cycles.positions), num_steps=2)), cycles)


def detect(cycles: SyncCycles, *finders: Finder) -> list[CandidateCause]:
    """What these finders find, one after the other."""
    return list(list_candidates(leave_all(cycles).measured_steps, cycles, finders))


def measure_saved(cycles: SyncCycles, **changes: Any) -> FloatArray:
    """How much shorter the cycles get with such a change, as `replay` takes it; rounding errors are cut off."""
    return np.asarray(np.maximum(replay(cycles) - replay(cycles, **changes), 0))
