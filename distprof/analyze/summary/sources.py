"""Where does each number come from?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing
from distprof.facts.run import Clock, Collectives

STAMPS = {
    Clock.HOST: "timestamps at their boundaries",
    Clock.DEVICE: "CUDA events at their borders on the compute stream, read later",
}
TRACES = {
    Clock.HOST: "named ranges in the traces",
    Clock.DEVICE: "when the device finished what the ranges launched, without collectives, in the traces",
}

MAX_GROUPS = 4
"""Groups that a line names."""


def list_sources(measured_steps: MeasuredSteps, timings: Sequence[Timing], cycles: SyncCycles | None) -> Iterator[str]:
    """One line per kind of number that the report has.

    Args:
        measured_steps: The ranks and steps that count.
        timings: The clocks measured.
        cycles: What the verdict is based on.
    """
    foreign = all(info.source == "trace" for info in measured_steps.run.ranks)
    for timing in timings:
        if np.isfinite(timing.mean_phase_ns).any():
            yield f"phases on the {timing.clock} clock: {(TRACES if foreign else STAMPS)[timing.clock]}"
    timed = measured_steps.run.device_collectives
    tables = [table for table in timed or measured_steps.run.collectives if len(table.ranks) > 1]
    groups = sorted({table.group for table in tables})
    if groups:
        steps = np.unique(np.concatenate([table.steps for table in tables]))
        kept = int(measured_steps.counted[steps].sum())
        stamps = "device events" if timed else "host stamps"
        seen = "begin and end of every rank's kernel" if foreign else f"every rank's {stamps}"
        yield (
            f"waits and transfers: {seen} of each collective, {len(groups)} group(s), "
            f"{kept:,} of {int(measured_steps.counted.sum()):,} measured steps"
            f"{_describe_matching(tables) if foreign else ''}"
        )
    if cycles is not None:
        of_what = "each collective" if cycles.source == "collectives" else "the step as a whole"
        count = f"{len(cycles.steps):,} steps"
        yield f"verdict and what-if: own times and waits of {of_what}, {cycles.clock} clock, {count}"
    if measured_steps.run.meta.clock_readings:
        rounds = len({reading.at_ns for reading in measured_steps.run.meta.clock_readings})
        apart = any(reading.offset_ns or reading.bound_ns for reading in measured_steps.run.meta.clock_readings)
        if foreign:
            yield f"clocks: {'compared by when ranks left common collectives' if apart else 'the ranks share one'}"
        else:
            yield f"hosts' clocks: {rounds} reading(s) against rank 0"


def _describe_matching(tables: Sequence[Collectives]) -> str:
    """How the collectives of traces were matched between ranks."""
    numbered = {table.group for table in tables if table.by_number}
    ordered = sorted({table.group for table in tables} - numbered)
    by_number = "by their number within the group (Seq)"
    by_order = "by their order in the step, as the traces do not number them"
    if not ordered:
        return f", matched between ranks {by_number}"
    if not numbered:
        return f", matched between ranks {by_order}"
    names = ", ".join(ordered[:MAX_GROUPS]) + (", ..." if len(ordered) > MAX_GROUPS else "")
    return f", matched between ranks {by_number}; those of {names} by their order in the step"
