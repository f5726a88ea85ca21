"""What of a run is compared? Its mean times per step, each with the error of the mean, and what it ran on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from distprof.analyze.compare.split_waits import split_exposed
from distprof.analyze.stats.mean_interval import influence_on_midmean, measure_error_of_sets, measure_mean_error
from distprof.analyze.stats.measured_steps import (
    MeasuredSteps,
    Timing,
    choose_headline,
    choose_measured_steps,
    hides_waits,
    read_timing,
    sum_exposed,
)
from distprof.analyze.stats.statistics import FEW, midmean
from distprof.analyze.summary.mesh import name_groups
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, KINDS, OWN_PHASES, PHASE_CODE, PHASES, Clock, Run, Stretch, name_ranks
from distprof.report.comparison_report import Average, Figure, RunFigures, Scope
from distprof.report.report import MeshReport

OWN_TIME = "own time"
"""Of a rank: its step without exposed communication."""
WAITS, TRANSFERS, EXPOSED = "waits for other ranks", "transfers", "exposed communication"
MAX_PHASED_RANKS = 16
"""Ranks of which each phase is compared; of more, their own time as a whole is."""
MAX_NAMES = 60
"""Modules, and kernels, with most time."""
VOLATILE_KEYS = ("run_dir", "runs_dir", "name", "hydra")
"""Of the configuration: where a run lies and what it is called makes no difference."""
MAX_KEYS, MAX_TEXT = 400, 200


def measure_figures(run: Run) -> RunFigures | None:
    """What is compared of a run. None: it has no measured step."""
    run, mesh = name_groups(run)
    measured_steps = choose_measured_steps(run)
    on_host, on_device = (read_timing(measured_steps, clock) for clock in (Clock.HOST, Clock.DEVICE))
    timing = choose_headline(measured_steps, on_host, on_device)
    if timing is None or not timing.elapsed_ns.mean() > 0:  # records may claim anything
        return None
    clock = timing.clock.value
    figures = [
        make_figure("step", "step", clock, timing.elapsed_ns),
        *_measure_phases(timing), *_measure_parts(measured_steps, timing),
        *_measure_ranks(measured_steps, timing, _name_places(run, mesh)), *_measure_collectives(measured_steps, timing),
        *_measure_modules(run), *_measure_kernels(run),
    ]  # fmt: skip
    early = [info.rank for info in run.ranks if info.source != "trace" and info.ended != "completed"]
    return RunFigures(
        name=run.meta.name, started_utc=run.meta.started_utc,
        complete=not (measured_steps.num_missing or run.unread or early), figures=tuple(figures),
        environment=describe_environment(run),
        notes=(f"{run.meta.name}: has ended early on {name_ranks(early)}, or still runs",) if early else (),
    )  # fmt: skip


def make_figure(
    scope: Scope, name: str, clock: str, series_ns: FloatArray, *, rank: int | None = None, place: str | None = None
) -> Figure:
    """The averages of a series over steps, ``[num_steps]``, and their errors."""
    usual = None
    if len(series_ns) >= FEW:
        usual = _average(float(midmean(series_ns)), influence_on_midmean(series_ns))
    return Figure(
        scope=scope, name=name, rank=rank, place=place, clock=clock, steps=len(series_ns),
        mean=_average(float(series_ns.mean()), series_ns), usual=usual,
    )  # fmt: skip


def _average(value_ns: float, series_ns: FloatArray) -> Average:
    """An average whose error is that of the mean of a series."""
    number = len(series_ns)
    if number < FEW:
        error = measure_error_of_sets(series_ns, np.zeros(number, dtype=np.int64))
    else:
        error = measure_mean_error(series_ns)
    freedom = error.degrees_of_freedom
    return Average(
        value_ns=value_ns, variance_ns2=error.variance if number > 1 else None,
        degrees_of_freedom=freedom if number > 1 and math.isfinite(freedom) else None,
        autocorrelation=error.autocorrelation,
    )  # fmt: skip


def _measure_phases(timing: Timing) -> Iterator[Figure]:
    """The partition of the step, mean over ranks; nothing where phases were not measured."""
    phases_ns = timing.phase_ns[timing.measured]
    if not np.isfinite(phases_ns).all():
        return
    for phase in PHASES:
        series_ns = phases_ns[:, :, PHASE_CODE[phase]].mean(axis=0)
        if series_ns.any():
            yield make_figure("phase", phase.value, timing.clock.value, series_ns)
    between_ns = _find_between(timing)
    if between_ns.any():
        yield make_figure("phase", Stretch.BETWEEN.value, timing.clock.value, between_ns)


def _find_between(timing: Timing) -> FloatArray:
    between_ns: FloatArray = timing.elapsed_ns - timing.step_ns[timing.measured].mean(axis=0)
    between_ns[np.abs(between_ns) < 0.5] = 0  # rounding errors
    return between_ns


def _measure_parts(measured_steps: MeasuredSteps, timing: Timing) -> Iterator[Figure]:
    """The step as own work by phase, waits, transfers, and the time between steps; they add up to it as phases do."""
    phases_ns = timing.phase_ns[timing.measured]
    if not np.isfinite(phases_ns).all():
        return
    clock = timing.clock.value
    waits_ns = _read_waits(measured_steps, timing)[timing.measured]
    for code, phase in enumerate(OWN_PHASES):
        own_ns = (phases_ns[:, :, PHASE_CODE[phase]] - waits_ns[:, :, code]).mean(axis=0)
        if own_ns.any():
            yield make_figure("part", phase.value, clock, own_ns)
    exposed_ns = sum_exposed(measured_steps.run.rows, timing.clock)[:, timing.used][timing.measured]
    split = split_exposed(measured_steps, timing, exposed_ns)
    named = {EXPOSED: exposed_ns} if split is None else {WAITS: split, TRANSFERS: exposed_ns - split}
    for name, series_ns in named.items():
        if series_ns.any():
            yield make_figure("part", name, clock, series_ns.mean(axis=0))
    between_ns = _find_between(timing)
    if between_ns.any():
        yield make_figure("part", Stretch.BETWEEN.value, clock, between_ns)


def _read_waits(measured_steps: MeasuredSteps, timing: Timing) -> FloatArray:
    """Waits inside own phases, ``[num_ranks, num_used, len(OWN_PHASES)]``; 0 where they were not measured."""
    waits_ns: FloatArray = np.nan_to_num(measured_steps.run.wait_ns(timing.clock)[:, timing.used])
    return waits_ns


def _measure_ranks(measured_steps: MeasuredSteps, timing: Timing, places: Mapping[int, str]) -> Iterator[Figure]:
    """Each rank's own time and, of few ranks, what it consists of."""
    exposed_ns = sum_exposed(measured_steps.run.rows, timing.clock)[:, timing.used]
    own_ns = timing.step_ns - exposed_ns
    known = timing.measured & np.isfinite(own_ns).all(axis=1)
    known &= ~hides_waits(measured_steps.run, exposed_ns, timing.clock)
    rows, clock = np.flatnonzero(known).tolist(), timing.clock.value
    phased = OWN_PHASES if 1 < len(rows) <= MAX_PHASED_RANKS else ()
    by_phase_ns = timing.phase_ns[:, :, [PHASE_CODE[phase] for phase in phased]]
    if phased:
        by_phase_ns = by_phase_ns - _read_waits(measured_steps, timing)
    for row in rows:
        rank = measured_steps.numbers[row]
        yield make_figure("rank", OWN_TIME, clock, own_ns[row], rank=rank, place=places.get(rank))
        for code, phase in enumerate(phased):
            if by_phase_ns[row, :, code].any():
                series_ns = by_phase_ns[row, :, code]
                yield make_figure("rank", phase.value, clock, series_ns, rank=rank, place=places.get(rank))


def _name_places(run: Run, mesh: MeshReport | None) -> dict[int, str]:
    """The ranks' coordinates in words, in an order that does not depend on how ranks are numbered."""
    if mesh is None:
        return {}
    return {
        info.rank: ", ".join(f"{axis} {place}" for axis, place in sorted(zip(mesh.axes, at, strict=True)))
        for info, at in zip(run.ranks, mesh.coordinates, strict=True) if at
    }  # fmt: skip


def _measure_collectives(measured_steps: MeasuredSteps, timing: Timing) -> Iterator[Figure]:
    """Exposed time by kind, mean over ranks."""
    rows = measured_steps.run.rows[timing.measured][:, timing.used]
    for kind in KINDS:
        values_ns = rows[:, :, COLUMN[f"{kind}_exposed_{timing.clock}_ns"]]
        if np.isfinite(values_ns).all() and values_ns.any():
            yield make_figure("collective", kind.value, timing.clock.value, values_ns.mean(axis=0))


def _measure_modules(run: Run) -> Iterator[Figure]:
    """Forward, backward and recomputation of each module with its submodules, mean over the ranks that ran it."""
    found: dict[tuple[str, str], list[FloatArray]] = {}
    for table in run.modules:
        took_ns = np.nansum([table.forward_ns, table.backward_ns, table.recomputed_ns], axis=0)
        for name, series_ns in zip(table.names, took_ns, strict=True):
            if len(series_ns) and series_ns.any():
                found.setdefault((name or "the model", table.clock), []).append(series_ns)
    alike = {
        key: np.mean(several, axis=0) for key, several in found.items() if len({len(each) for each in several}) == 1
    }
    for name, clock in sorted(alike, key=lambda key: -float(alike[key].mean()))[:MAX_NAMES]:
        yield make_figure("module", name, clock, alike[name, clock])


def _measure_kernels(run: Run) -> Iterator[Figure]:
    """Device time of each kernel per step, mean over the traced ranks: of whole windows, hence without an error."""
    windows = [summary for summary in run.activity if summary.num_steps > 0]
    totals: dict[str, float] = {}
    for summary in windows:
        for kernel in summary.kernels:
            totals[kernel.name] = totals.get(kernel.name, 0.0) + kernel.total_ns / summary.num_steps / len(windows)
    steps = min((summary.num_steps for summary in windows), default=0)
    for name in sorted(totals, key=lambda each: -totals[each])[:MAX_NAMES]:
        yield Figure(
            scope="kernel", name=name, rank=None, place=None, clock=Clock.DEVICE.value, steps=steps, usual=None,
            mean=Average(value_ns=totals[name], variance_ns2=None, degrees_of_freedom=None, autocorrelation=None),
        )  # fmt: skip


def describe_environment(run: Run) -> dict[str, dict[str, str]]:
    """What a run was: texts by key, by group."""
    meta = run.meta
    job = {
        "ranks": meta.world_size, "backend": meta.backend, "strategy": meta.strategy, "precision": meta.precision,
        "commit": meta.git,
    }  # fmt: skip
    hosts = {info.host for info in run.ranks}
    devices = {info.snapshot.name if info.snapshot is not None else info.device for info in run.ranks}
    return {
        "job": {key: show_value(value) for key, value in job.items() if value is not None},
        "configuration": dict(list(flatten(meta.config))[:MAX_KEYS]),
        "versions": {key: show_value(value) for key, value in sorted(meta.versions.items())},
        "hosts": {"names": _join(hosts), "number": f"{len(hosts)}"},
        "devices": {"names": _join(name for name in devices if name is not None)},
    }


def _join(names: set[str] | Iterator[str]) -> str:
    return show_value(", ".join(sorted(set(names))))


def flatten(config: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    """A nested configuration by dotted key, without what says where a run lies."""
    for key, value in config.items():
        name = f"{before}{key}"
        if name in VOLATILE_KEYS:
            continue
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name[:MAX_TEXT], show_value(value)


def show_value(value: object) -> str:
    """As in a configuration file, cut."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else str(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
