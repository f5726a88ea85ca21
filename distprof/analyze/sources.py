"""Where does each number come from?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from distprof.analyze.basis import Basis, Timing
from distprof.analyze.cycles import Cycles
from distprof.run import Clock

STAMPS = {
    Clock.HOST: "stamps at their borders",
    Clock.DEVICE: "CUDA events at their borders on the compute stream, read later",
}


def list_sources(basis: Basis, timings: Sequence[Timing], cycles: Cycles | None) -> Iterator[str]:
    """One line per kind of number that the report has.

    Args:
        basis: The ranks and steps that count.
        timings: The clocks measured.
        cycles: What the verdict stands on.
    """
    for timing in timings:
        if np.isfinite(timing.mean_phase_ns).any():
            yield f"phases on the {timing.clock} clock: {STAMPS[timing.clock]}"
    groups = sorted({table.group for table in basis.run.collectives})
    if groups:
        steps = np.unique(np.concatenate([table.steps for table in basis.run.collectives]))
        kept = int(basis.counted[steps].sum())
        yield (
            f"waits and transfers: every rank's host stamps of each collective, {len(groups)} group(s), "
            f"{kept:,} of {int(basis.counted.sum()):,} measured steps"
        )
    if cycles is not None:
        of_what = "each collective" if cycles.source == "collectives" else "the step as a whole"
        count = f"{len(cycles.steps):,} steps"
        yield f"verdict and what-if: own times and waits of {of_what}, {cycles.clock} clock, {count}"
    if basis.run.meta.clock_readings:
        rounds = len({reading.at_ns for reading in basis.run.meta.clock_readings})
        yield f"hosts' clocks: {rounds} reading(s) against rank 0"
