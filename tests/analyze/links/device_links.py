"""Simulated jobs of several hosts as NCCL would run them: seen on the device clocks of their ranks alone."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from benchmarks.simulate import SimulatedJob
from distprof.analyze.cycles.sync_cycles import SyncCycles, build_cycles
from distprof.analyze.stats.measured_steps import MeasuredSteps, choose_measured_steps, read_timing
from distprof.facts.run import COLUMN, OWN_PHASES, PHASES, Clock, Collectives, LinkReading, Run
from tests.analyze.links.linked_runs import simulate_run

COPIED = ("step_{}_ns", *(f"{phase}_{{}}_ns" for phase in PHASES), *(f"{phase}_wait_{{}}_ns" for phase in OWN_PHASES))


def measure_on_device(job: SimulatedJob, seed: int = 3) -> tuple[MeasuredSteps, SyncCycles]:
    """The cycles of `make_device_run`."""
    measured_steps = choose_measured_steps(make_device_run(job, seed))
    cycles = build_cycles(measured_steps, read_timing(measured_steps, Clock.DEVICE))
    assert cycles is not None and (cycles.clock, cycles.source) == (Clock.DEVICE, "collectives")
    return measured_steps, cycles


def make_device_run(job: SimulatedJob, seed: int = 3) -> Run:
    """The job with its times on device clocks that have nothing in common, and probes over NCCL."""
    run = simulate_run(job, seed)
    rows, shift_ns = run.rows.copy(), 1e9 * np.arange(len(run.ranks))
    for name in COPIED:
        rows[:, :, COLUMN[name.format("device")]] = run.column(name.format("host"))
    rows[:, :, COLUMN["begin_device_ns"]] = run.column("begin_host_ns") - 10**12 + shift_ns[:, None]
    meta = structs.replace(
        run.meta, backend="nccl", device_type="cuda", link_readings=_rename(run.meta.link_readings),
        last_link_readings=(),
    )  # fmt: skip
    tables = tuple(_move(table, shift_ns[table.ranks] - 10**12) for table in run.collectives)
    return structs.replace(run, meta=meta, rows=rows, collectives=(), device_collectives=tables)


def _rename(links: tuple[LinkReading, ...]) -> tuple[LinkReading, ...]:
    return tuple(structs.replace(link, network="nccl") for link in links)


def _move(table: Collectives, shift_ns: np.ndarray) -> Collectives:
    left_ns = table.arrival_ns + table.exposed_ns
    end_ns = np.where(np.isfinite(table.end_ns), table.end_ns, left_ns)
    away_ns = shift_ns[:, None, None]
    return structs.replace(
        table, clock=Clock.DEVICE, arrival_ns=table.arrival_ns + away_ns, end_ns=end_ns + away_ns,
        left_ns=np.where(table.exposed_ns > 0, left_ns + away_ns, np.nan),
    )  # fmt: skip
