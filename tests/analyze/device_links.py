"""Simulated jobs of several hosts as they would be seen on the device clock, over NCCL."""

from __future__ import annotations

import dataclasses

from distprof.analyze.measured_steps import MeasuredSteps
from distprof.analyze.sync_cycles import SyncCycles
from distprof.facts.run import Clock
from distprof.simulate import SimulatedJob
from tests.analyze.linked_runs import measure, simulate_run


def measure_on_device(job: SimulatedJob, seed: int = 3) -> tuple[MeasuredSteps, SyncCycles]:
    """The job's collectives on the device clock only, and probes over NCCL."""
    measured_steps, cycles = measure(simulate_run(job, seed))
    run = measured_steps.run
    links, last = (
        tuple(dataclasses.replace(link, network="nccl") for link in links)
        for links in (run.meta.link_readings, run.meta.last_link_readings)
    )
    run = dataclasses.replace(
        run, collectives=(),
        device_collectives=tuple(dataclasses.replace(table, clock=Clock.DEVICE) for table in run.collectives),
        meta=dataclasses.replace(run.meta, backend="nccl", link_readings=links, last_link_readings=last),
    )  # fmt: skip
    return dataclasses.replace(measured_steps, run=run), dataclasses.replace(cycles, clock=Clock.DEVICE, ahead=None)
