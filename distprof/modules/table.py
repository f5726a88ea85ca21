"""What a rank of a job found about its modules, as columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.facts.modules import ModuleTable, RankMemory
from distprof.facts.run import FloatArray
from distprof.modules.calls import ModulePass
from distprof.modules.memory_watch import MemoryWatch
from distprof.modules.profile import ModuleProfiler
from distprof.report.module_report import ModuleFlops


def make_table(
    profiler: ModuleProfiler,
    *,
    rank: int,
    counted_step: int | None,
    timed_steps: Sequence[int],
    watch: MemoryWatch,
    predicted_memory: RankMemory | None,
    peak_bytes: int | None,
) -> ModuleTable:
    """The columns of a profile.

    Args:
        profiler: Has counted one step, and taken the time of others.
        rank: This rank.
        counted_step: None: it failed.
        timed_steps: As many as passes were timed.
        watch: Has seen the counted step.
        predicted_memory: By the configuration.
        peak_bytes: Of the device's allocator.
    """
    report = profiler.report()
    rows = report.rows
    kept = rows[0].activation_bytes if rows[0].calls else None  # its forward may run outside the step
    memory = watch.measure(activations=kept, gathered=profiler.gathered_bytes)
    return ModuleTable(
        rank=rank, model=report.model, clock=profiler.clock, counted_step=counted_step,
        timed_steps=tuple(timed_steps), names=tuple(row.name for row in rows), kinds=tuple(row.kind for row in rows),
        parents=tuple(row.parent for row in rows), calls=tuple(row.calls for row in rows),
        own_parameters=tuple(row.own_parameters for row in rows), parameters=tuple(row.parameters for row in rows),
        held_parameters=tuple(row.held_parameters for row in rows),
        flops=tuple(_list_flops(row.total_flops) for row in rows), outside_flops=_list_flops(report.outside_flops),
        forward_ns=_take(profiler, ModulePass.FORWARD, len(rows)),
        backward_ns=_take(profiler, ModulePass.BACKWARD, len(rows)),
        recomputed_ns=_take(profiler, ModulePass.RECOMPUTED, len(rows)),
        memory=None if counted_step is None else memory, predicted_memory=predicted_memory,
        peak_bytes=None if counted_step is None else peak_bytes, notes=report.notes,
    )  # fmt: skip


def _list_flops(flops: ModuleFlops) -> tuple[int, ...]:
    return flops.forward, flops.backward, flops.recomputed


def _take(profiler: ModuleProfiler, stage: ModulePass, num_rows: int) -> FloatArray:
    passes = profiler.list_times()
    found = [[by_stage.get(stage, np.nan) for by_stage in rows] for rows in passes]
    times_ns = np.array(found, dtype=np.float64).reshape(len(passes), num_rows).T
    return np.maximum(times_ns, 0.0)  # events are read as rounded differences; NaN stays
