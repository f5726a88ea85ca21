"""How long ranks wait for batches that their DataLoaders do not have in time, and what it is that takes so long.

Each rank measures its own waits. What a rank waits longer than the others is left to the finders that name ranks; what
they have in common is taken out. Where all loaders have workers, how much slower than the others' they are tells how
much that is, and not the waits: of loaders that are all too slow, the one that is slowest by a little has nearly all of
the waiting.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.causes.measured_pauses import take_out
from distprof.analyze.cycles.cycle_parts import take_columns
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import CandidateCause, Unexplained
from distprof.analyze.replay.replay import Counterfactual, replay_without
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.scheduling import read_scheduling
from distprof.analyze.stats.statistics import medians_of_others
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.columns import LOADER_FIELDS
from distprof.facts.run import Part, Phase, Run, Stretch
from distprof.report.loader_report import LoaderLimit, SlowLoader
from distprof.report.wait_report import Cause, VerdictKind

BRINGING_NS = 1.3e6
"""What it takes to bring a batch from a worker to the training process, measured on a busy machine: so much stays of
what a process without workers takes for one."""
LONG_NS = 2 * BRINGING_NS
"""Batches that a process makes sooner need no workers."""
KEEPS_UP_RATIO = 0.9
"""Of a step: workers that need so much of it for its batches have them in time, though no two take equally long."""
READY_RATIO, UNPINNED_RATIO = 0.5, 0.5
"""Batches, each time that one is asked for."""
EXPLAINED_RATIO = 0.5
"""Of what a rank is late by: waiting for its loader must explain so much to be named."""
FEW_CORES_RATIO = 0.5
"""Of a worker's time for a batch: one that computes for less needs no core of its own."""
_WAITS: tuple[tuple[Part, str], ...] = (
    (Phase.DATA, "data_loader_host_ns"), (Phase.DATA, "between_data_loader_host_ns"),
    (Stretch.BETWEEN, "between_loader_host_ns"),
)  # fmt: skip


class _Load(Struct, frozen=True, kw_only=True):
    """What the loader of a rank does for a step; ns."""

    workers: int
    prefetch: int
    wait_ns: float
    batches: float
    batch_ns: float | None
    """None, as for the next two: not known."""
    collate_ns: float | None
    cpu_ns: float | None
    ready: float
    unpinned: float

    @property
    def needed_ns(self) -> float | None:
        """What its workers, all at once, need for the batches of a step. None: there are none, or it is not known."""
        return self.batches * self.batch_ns / self.workers if self.workers and self.batch_ns is not None else None


def detect_slow_loader(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """At most one candidate. Where ranks are compared on their devices' clocks, a wait counts as far as getting batches
    takes the device as long: one whose host is ahead works meanwhile."""
    if cycles.span > 1:
        return [], unexplained
    measured_steps = unexplained.measured_steps
    taken_ns = take_columns(measured_steps, _WAITS, cycles.positions, cycles.steps, cycles.tail_phases)
    if not taken_ns.any():
        return [], unexplained
    loads = [_read_load(measured_steps.run, position, cycles.steps) for position in cycles.positions.tolist()]
    if None in loads:
        return [], unexplained
    known = [load for load in loads if load is not None]
    for row, load in enumerate(known):
        if not load.workers and load.wait_ns < load.batches * LONG_NS:
            taken_ns[row] = 0.0
    reason = "each rank measured how long it waited for its loader"
    every, _ = take_out(cycles, unexplained, taken_ns, VerdictKind.SLOW_LOADER, reason)
    if not every:
        return [], unexplained
    gone = [item.counterfactual for item in every]
    step_ns = float(replay_without(cycles, gone).mean())
    taken_ns *= _measure_common(known, taken_ns.sum(axis=(1, 2)), step_ns)[:, None, None]
    brought_ns = np.array([load.batches * BRINGING_NS * (not load.workers) for load in known])[:, None, None]
    taken_ns *= np.maximum(1 - brought_ns / np.maximum(taken_ns.sum(axis=2, keepdims=True), 1.0), 0.0)
    found, left = take_out(cycles, unexplained, taken_ns, VerdictKind.SLOW_LOADER, reason)
    return [_allow_for_bringing(item, brought_ns[:, 0]) for item in found], left


def _measure_common(loads: list[_Load], waits_ns: FloatArray, step_ns: float) -> FloatArray:
    """Of each rank's waits, the share that the median of the others would have in its place, ``[num_ranks]``; the step
    without any of them takes ``step_ns``."""
    longer_ns = np.array([math.nan if load.needed_ns is None else load.needed_ns - step_ns for load in loads])
    chosen = np.isfinite(longer_ns).all() & (longer_ns > 0)
    shares: FloatArray = np.zeros(len(loads))
    for own_ns, where in ((waits_ns, ~chosen), (longer_ns, chosen)):
        usual_ns = medians_of_others(own_ns)
        np.divide(usual_ns, own_ns, out=shares, where=where & (own_ns > 0))
    return np.clip(shares, 0.0, 1.0)


def _allow_for_bringing(item: CandidateCause, brought_ns: FloatArray) -> CandidateCause:
    """Of ranks without workers, those that they then have may bring batches in no time, or need twice as long."""
    if not brought_ns.any():
        return item
    more = {}
    for row, taken_ns in item.counterfactual.work_ns.items():
        total_ns = taken_ns.sum(axis=1, keepdims=True)
        more[row] = taken_ns * np.divide(brought_ns[row], total_ns, out=np.zeros_like(total_ns), where=total_ns > 0)
    ends = (more, {row: -more_ns for row, more_ns in more.items()})
    return structs.replace(item, ends=tuple(Counterfactual(work_ns=each) for each in ends))


def _read_load(run: Run, position: int, steps: IntArray) -> _Load | None:
    """What a rank's loader does in some steps. None: it has none that is known, or not the same all the time."""
    values = {name: run.column(name)[position, steps] for name in LOADER_FIELDS}
    there = np.isfinite(values["loader_batches"])
    settings = {(name, value) for name in LOADER_FIELDS[-2:] for value in values[name][there].tolist()}
    if not there.any() or len(settings) != 2:
        return None
    sums = {name: float(column[there].sum()) for name, column in values.items()}
    batches, made = sums["loader_batches"], sums["worker_batches"]
    workers = int(values["loader_workers"][there][0])

    def per_batch(name: str) -> float | None:
        return sums[name] / made if made else None

    return _Load(
        workers=workers, prefetch=int(values["loader_prefetch"][there][0]), batches=batches / len(steps),
        wait_ns=sum(sums[name] for _, name in _WAITS) / len(steps), batch_ns=per_batch("worker_host_ns"),
        collate_ns=per_batch("worker_collate_host_ns") if workers else None, cpu_ns=per_batch("worker_cpu_ns"),
        ready=sums["loader_ready"] / batches, unpinned=sums["loader_unpinned"] / batches,
    )  # fmt: skip


def explain_loader(
    measured_steps: MeasuredSteps, cycles: SyncCycles, item: CandidateCause, cause: Cause | None, saved_ns: float
) -> SlowLoader | None:
    """What is known of the loaders of a cause that they are. None: they are not, or nothing is known.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: The waits between which the cause was found.
        item: The cause.
        cause: What its ranks do where they lose the time.
        saved_ns: How much shorter a cycle is without it, mean.
    """
    common = item.kind is VerdictKind.SLOW_LOADER
    if not common and (cause is not Cause.INPUT or len(item.rows) != 1):
        return None
    run, steps = measured_steps.run, cycles.steps if common else cycles.steps[item.acts]
    loads = {position: _read_load(run, position, steps) for position in cycles.positions.tolist()}
    named = [*loads] if common else [int(cycles.positions[int(item.rows[0])])]
    chosen = [load for position in named if (load := loads[position]) is not None]
    least_ns = 0.0 if common else EXPLAINED_RATIO * (item.late_ns or 0.0)
    if len(chosen) < len(named) or not any(load.wait_ns > least_ns for load in chosen):
        return None
    longest = [load.needed_ns or load.batches * (load.batch_ns or 0.0) for load in chosen]
    load = chosen[int(np.argsort(longest)[len(longest) // 2])]
    others = [each.batch_ns for position, each in loads.items() if position not in named and each is not None]
    waits_ns = [taken_ns.sum(axis=1) for taken_ns in item.counterfactual.work_ns.values()]
    step_ns = float(cycles.cycle_ns.mean()) - saved_ns
    limit = _find_limit(load, step_ns)
    needed = None
    if limit is LoaderLimit.WORKERS and load.batch_ns is not None:
        needed = math.ceil(load.batches * load.batch_ns / (KEEPS_UP_RATIO * step_ns))
        fits = _fits_cores(measured_steps, cycles, loads, step_ns)
        limit, needed = (LoaderLimit.CORES, None) if fits is False else (limit, needed if fits else None)
    return SlowLoader(
        workers=load.workers, prefetch=load.prefetch if load.workers else None,
        wait_ns=float(np.max(waits_ns, axis=0).mean()) if common else load.wait_ns,
        batches_per_step=load.batches, batch_ns=load.batch_ns, collate_ns=load.collate_ns,
        others_batch_ns=None if not others or None in others else float(np.median(np.array(others, dtype=float))),
        ready=load.ready if load.workers else None, step_ns=step_ns, limit=limit, workers_needed=needed,
    )  # fmt: skip


def _find_limit(load: _Load, step_ns: float) -> LoaderLimit | None:
    if load.unpinned >= UNPINNED_RATIO:
        return LoaderLimit.PINNING
    if not load.workers:
        return LoaderLimit.WORKERS
    if load.needed_ns is None:
        return None
    if load.needed_ns > KEEPS_UP_RATIO * step_ns:
        return LoaderLimit.WORKERS
    return LoaderLimit.ORDER if load.ready >= READY_RATIO else None


def _fits_cores(
    measured_steps: MeasuredSteps, cycles: SyncCycles, loads: dict[int, _Load | None], step_ns: float
) -> bool | None:
    """Whether the cores have room for the workers that keep up, and for training that does not wait. None: it is not
    known on how many cores the ranks are, and workers compute."""
    run, first, end = measured_steps.run, int(cycles.steps[0]), int(cycles.steps[-1]) + 1
    cycle_ns = float(cycles.cycle_ns.mean())
    used: dict[tuple[str, float], float] = {}
    cores: dict[tuple[str, float], float] = {}
    for position, load in loads.items():
        if load is None or load.cpu_ns is None or load.batch_ns is None:
            return None
        read = read_scheduling(run, position, first, end)
        share = None if read is None else read.find_share("used_ns", "at_ns")
        number, core_set = (None, None) if read is None else map(read.find_last, ("cores", "core_set"))
        if share is None or number is None or core_set is None:
            return True if load.cpu_ns < FEW_CORES_RATIO * load.batch_ns else None
        place, loading_ns = (run.ranks[position].host, core_set), load.batches * load.cpu_ns
        training_ns = share * cycle_ns - (0.0 if load.workers else loading_ns)
        used[place] = used.get(place, 0.0) + (training_ns + loading_ns) / step_ns
        cores[place] = number
    return all(used[place] <= number for place, number in cores.items())
