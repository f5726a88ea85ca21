"""Where and when does a job lose its time? The tables behind the page's drawings: all ranks and steps, small."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from distprof.analyze.stats.measured_steps import (
    MeasuredSteps,
    choose_measured_steps,
    hides_waits,
    measure_own_between,
    read_timing,
    subtract_exposed,
    sum_exposed,
)
from distprof.analyze.stats.statistics import medians_of_others
from distprof.analyze.summary.step_blocks import Blocks, plan_blocks
from distprof.analyze.summary.who_waits import MAX_COLUMNS as MAX_WAITING
from distprof.analyze.summary.who_waits import MAX_ROWS as MAX_LAST
from distprof.analyze.summary.who_waits import measure_who_waits
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import PHASES, Clock, Run
from distprof.report.page_report import PageReport, StepBlocks
from distprof.report.report import Report

MAX_ROWS, MAX_COLUMNS, MAX_CELLS = 128, 1_200, 36_000
"""Of a table; there are about ten of them, and a cell takes three bytes of the page."""
MAX_EXCESS_CELLS, MAX_PHASE_CELLS, MAX_WAIT_CELLS = 72_000, 120_000, 30_000
"""Of the means by blocks of steps, all tables of each kind together."""
MAX_WAIT_SUMS = 4_000_000
"""Of who waits for whom while it is measured, all blocks together."""


def measure_page(run: Run, report: Report) -> PageReport | None:
    """The tables of a run that this report is of. None: no step was recorded, as in traces without steps."""
    clock = Clock(report.headline.clock)
    step_ns = run.step_ns(clock)
    there = np.flatnonzero(np.isfinite(step_ns).any(axis=0))
    if not len(there):
        return None
    measured_steps = choose_measured_steps(run)
    step_ns = step_ns[:, there]
    exposed_ns = _read_exposed(run, clock)[:, there]
    own_ns = subtract_exposed(step_ns, exposed_ns)
    columns = min(MAX_COLUMNS, MAX_CELLS // min(len(step_ns), MAX_ROWS))
    excess_ns, compared = _measure_excess(measured_steps, own_ns, clock, there)
    most, counted = (MAX_ROWS, columns), measured_steps.counted[there]
    cells = {"step": step_ns, "own": own_ns, "wait": exposed_ns}
    cells |= {phase.value: _read_phase(run, code, clock)[:, there] for code, phase in enumerate(PHASES)}
    cells = {name: table for name, table in cells.items() if name in ("step", "own", "wait") or np.nansum(table) > 0}
    shrunk = {name: shrink(table, most) for name, table in cells.items()}
    ranks_each, steps_each = shrunk["step"][1]
    first = np.arange(0, len(there), steps_each)
    means = {name: _mean(table) for name, table in cells.items() if name not in ("own", "wait")}
    shown = _find_longest(means["step"], steps_each)
    plan = partial(plan_blocks, there, run.rows.shape[1], steps_each=steps_each)
    numbers = np.nanmax(run.column("step")[:, there], axis=0).astype(np.int64)
    return PageReport(
        clock=clock.value, ranks_each=ranks_each, steps_each=steps_each, steps=tuple(numbers[first].tolist()),
        shown=tuple(numbers[shown].tolist()), measured=tuple(counted[shown].tolist()),
        mean_ns={name: values[shown] for name, values in means.items()},
        cells_ns={name: table for name, (table, _) in shrunk.items() if np.isfinite(table).any()},
        excess_ns=np.full(len(excess_ns), np.nan) if not len(compared) else excess_ns.mean(axis=1),
        excess_by_block=_average_excess(excess_ns, compared, plan(rows=len(own_ns), most=MAX_EXCESS_CELLS)),
        phases_by_block=_average_phases(measured_steps, clock, plan),
        who_waits=measure_who_waits(measured_steps, plan(rows=_count_wait_cells(run), most=MAX_WAIT_CELLS)),
        places=_list_places(report),
    )  # fmt: skip


def _read_exposed(run: Run, clock: Clock) -> FloatArray:
    """Exposed communication, ``[num_ranks, num_steps]``; NaN: not known."""
    exposed_ns = sum_exposed(run.rows, clock)
    exposed_ns[hides_waits(run, exposed_ns, clock)] = np.nan
    return exposed_ns


def _read_phase(run: Run, code: int, clock: Clock) -> FloatArray:
    return run.phase_ns(clock)[:, :, code]


def shrink(values: FloatArray, most: tuple[int, int]) -> tuple[FloatArray, tuple[int, int]]:
    """At most so many rows and columns, each the largest value of several, and of how many; NaN only if all are."""
    sizes = [-(-count // limit) for count, limit in zip(values.shape, most, strict=True)]
    cells = np.where(np.isfinite(values), values, -np.inf)
    for axis, size in enumerate(sizes):
        if size > 1:
            cells = np.maximum.reduceat(cells, np.arange(0, cells.shape[axis], size), axis=axis)
    return np.where(np.isfinite(cells), cells, np.nan), (sizes[0], sizes[1])


def _mean(table: FloatArray) -> FloatArray:
    """Over the ranks that measured it; NaN: none did."""
    known = np.isfinite(table)
    count = known.sum(axis=0)
    total = np.where(known, table, 0.0).sum(axis=0)
    mean: FloatArray = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return mean


def _find_longest(values: FloatArray, each: int) -> list[int]:
    """Of every so many values, the position of the largest."""
    known = np.where(np.isfinite(values), values, -np.inf)
    return [begin + int(np.argmax(known[begin : begin + each])) for begin in range(0, len(known), each)]


def _average_excess(excess_ns: FloatArray, compared: IntArray, blocks: Blocks | None) -> StepBlocks | None:
    if blocks is None or not len(compared):
        return None
    return blocks.pack(compared, excess=blocks.average(excess_ns, compared))


def _average_phases(
    measured_steps: MeasuredSteps, clock: Clock, plan: Callable[..., Blocks | None]
) -> StepBlocks | None:  # fmt: skip
    """Over the steps of the report's own means."""
    timing = read_timing(measured_steps, clock)
    if timing is None:
        return None
    codes = np.flatnonzero(np.nansum(timing.mean_phase_ns, axis=0) > 0).tolist()
    blocks = plan(rows=len(timing.step_ns) * (1 + len(codes)), most=MAX_PHASE_CELLS)
    if blocks is None:
        return None
    used = np.flatnonzero(timing.used)
    tables = {PHASES[code].value: blocks.average(timing.phase_ns[:, :, code], used) for code in codes}
    return blocks.pack(used, step=blocks.average(timing.step_ns, used), **tables)


def _count_wait_cells(run: Run) -> int:
    """At most, of who waits for whom; counted as more where what is summed up for a block would take too much."""
    count = len(run.ranks)
    columns = min(count, MAX_WAITING)
    return max((min(count, MAX_LAST) + 2) * columns, -(-(count + 1) * columns * MAX_WAIT_CELLS // MAX_WAIT_SUMS))


def _measure_excess(
    measured_steps: MeasuredSteps, own_ns: FloatArray, clock: Clock, there: IntArray
) -> tuple[FloatArray, IntArray]:
    """What each step loses to each rank, ``[num_ranks, num_compared]``, and the steps; none with fewer than two ranks,
    or where own time is not known."""
    own_ns = own_ns + _read_between(measured_steps, clock)[:, there]
    chosen = measured_steps.present & np.isfinite(own_ns[:, measured_steps.counted[there]]).any(axis=1)
    used = measured_steps.counted[there] & np.isfinite(own_ns[chosen]).all(axis=0)
    if chosen.sum() < 2 or not used.any():
        return np.empty((len(own_ns), 0)), there[:0]
    excess_ns = np.full((len(own_ns), int(used.sum())), np.nan)
    mine_ns = own_ns[np.ix_(chosen, used)]
    excess_ns[chosen] = np.maximum(mine_ns - medians_of_others(mine_ns), 0)
    return excess_ns, there[used]


def _read_between(measured_steps: MeasuredSteps, clock: Clock) -> FloatArray:
    """Own time from the step before to each step, ``[num_ranks, num_steps]``; 0: not known, as on the device clock."""
    if clock is not Clock.HOST:
        return np.zeros(measured_steps.run.rows.shape[:2])
    own_ns: FloatArray = np.nan_to_num(measure_own_between(measured_steps, clock))
    return own_ns


def _list_places(report: Report) -> tuple[tuple[str, tuple[int | None, ...]], ...]:
    if report.mesh is not None and report.mesh.axes:
        at = report.mesh.coordinates
        return tuple(
            (axis, tuple(None if place is None else place[index] for place in at))
            for index, axis in enumerate(report.mesh.axes)
        )
    if report.pipeline is None:
        return ()
    stages = {item.rank: item for item in report.pipeline.stages}
    own = [stages.get(rank.rank) for rank in report.ranks]
    return (
        ("pp", tuple(None if item is None else item.stage for item in own)),
        ("replica", tuple(None if item is None else item.replica for item in own)),
    )
