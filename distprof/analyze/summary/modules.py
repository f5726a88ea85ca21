"""What do the modules of the model hold, compute and take on each rank, and what its tensors by kind?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.stats.measured_steps import Timing
from distprof.analyze.stats.statistics import as_number, fast_median, spread_over_ranks
from distprof.facts.arrays import FloatArray
from distprof.facts.modules import MEMORY_KINDS, ModuleTable, RankMemory
from distprof.facts.run import Clock, Run, name_ranks
from distprof.report.job_modules import JobModule, JobModules, MemoryKind
from distprof.report.module_report import ModuleFlops
from distprof.report.wait_report import Spread

MOST_NOTES = 20
"""Of those that ranks may each put in their own words."""


def choose_alike(tables: Sequence[ModuleTable]) -> list[ModuleTable]:
    """The profiles that can be compared: of the same model, on the same clock, as the lowest rank's."""
    return [table for table in tables if (table.structure, table.clock) == (tables[0].structure, tables[0].clock)]


def report_modules(run: Run, headline: Timing | None) -> JobModules | None:
    """The modules of the lowest rank's model, with the ranks that have the same. None: none were profiled.

    Args:
        run: The facts.
        headline: The clock of step times. None: there are none.
    """
    if not run.modules:
        return None
    tables = choose_alike(run.modules)
    first = tables[0]
    clock = Clock.HOST if headline is None else headline.clock
    counted = [] if first.counted_step is None else [first.counted_step]
    return JobModules(
        model=first.model, clock=first.clock, ranks=tuple(table.rank for table in tables),
        timed_steps=len(first.timed_steps), rows=_list_rows(tables),
        outside_flops=_make_flops(first, first.outside_flops), notes=_list_notes(run.modules, tables),
        step_ns=_median_slowest_step(run, clock, first.timed_steps),
        counted_step_ns=_median_slowest_step(run, clock, counted),
        usual_step_ns=None if headline is None else float(np.median(headline.step_ns[headline.measured].max(axis=0))),
        memory=report_memory(tables),
    )  # fmt: skip


def _list_rows(tables: Sequence[ModuleTable]) -> tuple[JobModule, ...]:
    first, numbers = tables[0], [table.rank for table in tables]
    held = np.array([table.held_parameters for table in tables], dtype=np.float64)
    stages = ("forward_ns", "backward_ns", "recomputed_ns")
    times = {stage: np.stack([_median_over_steps(getattr(table, stage)) for table in tables]) for stage in stages}
    return tuple(
        JobModule(
            name=name, kind=first.kinds[row], parent=first.parents[row], calls=first.calls[row],
            own_parameters=first.own_parameters[row], parameters=first.parameters[row],
            held_parameters=spread_over_ranks(held[:, row], numbers), flops=_make_flops(first, first.flops[row]),
            **{stage: spread_over_ranks(found[:, row], numbers) for stage, found in times.items()},
        )
        for row, name in enumerate(first.names)
    )  # fmt: skip


def _median_over_steps(times_ns: FloatArray) -> FloatArray:
    """Median over the steps in which a module ran, ``[num_modules]``; NaN: it never did."""
    ran = np.isfinite(times_ns).any(axis=1) if times_ns.shape[1] else np.zeros(len(times_ns), dtype=bool)
    usual_ns = np.full(len(times_ns), np.nan)
    usual_ns[ran] = np.nanmedian(times_ns[ran], axis=1) if ran.any() else np.nan
    return usual_ns


def _make_flops(table: ModuleTable, found: Sequence[int]) -> ModuleFlops | None:
    if table.counted_step is None:
        return None
    forward, backward, recomputed = found
    return ModuleFlops(forward=forward, backward=backward, recomputed=recomputed)


def _median_slowest_step(run: Run, clock: Clock, steps: Sequence[int]) -> float | None:
    """Median of some steps, each of its slowest rank."""
    chosen = np.isin(run.column("step"), list(steps)).any(axis=0)
    step_ns = run.step_ns(clock)[:, chosen]
    step_ns = step_ns[np.isfinite(step_ns).any(axis=1)]
    return as_number(float(fast_median(step_ns.max(axis=0)))) if step_ns.size else None


def _list_notes(everyone: Sequence[ModuleTable], alike: Sequence[ModuleTable]) -> tuple[str, ...]:
    distinct_notes = list(dict.fromkeys(note for table in alike for note in table.notes))
    notes = distinct_notes[:MOST_NOTES]
    if len(distinct_notes) > MOST_NOTES:
        notes.append(f"{len(distinct_notes) - MOST_NOTES} more notes of ranks are left out")
    if others := [table.rank for table in everyone if table not in alike]:
        notes.append(f"{name_ranks(others)}: another model, or another clock, which is not shown")
    if any(table.flops != alike[0].flops for table in alike):
        notes.append(f"ranks count different FLOPs: those of rank {alike[0].rank} are shown")
    return tuple(notes)


def report_memory(tables: Sequence[ModuleTable]) -> tuple[MemoryKind, ...]:
    """Each kind, then the allocator's peak and what it has beyond them; nothing if nothing is known."""
    ranks = [table.rank for table in tables]
    measured = [table.memory for table in tables]
    predicted = [table.predicted_memory for table in tables]
    if not any((*measured, *predicted)):
        return ()
    unknown = _spread([None] * len(ranks), ranks)
    return (
        *(
            MemoryKind(
                kind=kind, predicted_bytes=_spread(_pick(predicted, kind), ranks),
                measured_bytes=_spread(_pick(measured, kind), ranks),
            )
            for kind in MEMORY_KINDS
        ),
        MemoryKind(
            kind="rest", predicted_bytes=unknown,
            measured_bytes=_spread([_compute_other_bytes(each) for each in tables], ranks),
        ),
        MemoryKind(
            kind="peak", predicted_bytes=unknown, measured_bytes=_spread([each.peak_bytes for each in tables], ranks)
        ),
    )  # fmt: skip


def _pick(memories: Sequence[RankMemory | None], kind: str) -> list[int | None]:
    return [None if memory is None else getattr(memory, kind) for memory in memories]


def _compute_other_bytes(table: ModuleTable) -> int | None:
    """None: a kind is not known, or not all were alive at the peak."""
    total = None if table.memory is None else table.memory.total
    if total is None or table.peak_bytes is None or table.peak_bytes < total:
        return None
    return table.peak_bytes - total


def _spread(values: Sequence[int | None], ranks: Sequence[int]) -> Spread:
    return spread_over_ranks(np.array([np.nan if each is None else each for each in values], dtype=np.float64), ranks)
