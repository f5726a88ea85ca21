"""Simulates a job and its truth: schedules it as it is and without each of its faults, with the same draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distprof.facts.run import PHASE_CODE, PHASES, FloatArray, Phase, Run
from distprof.simulate.job import Compute, Issue, SimulatedJob, write_program
from distprof.simulate.observe import write_run
from distprof.simulate.schedule import Schedule, make_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What really happened on the true clock, and what would have happened without the causes; ns."""

    step_ns: FloatArray
    """From the end of one step's last wait to the end of the next one's; the first from its start, ``[num_steps]``."""
    exposed_ns: FloatArray
    """Communication that blocked a rank, including waits inside own phases, ``[num_ranks, num_steps]``."""
    wait_ns: FloatArray
    """Last arrival minus own arrival, ``[num_ranks, num_steps, num_collectives]``."""
    transfer_ns: FloatArray
    """End minus last arrival, ``[num_ranks, num_steps, num_collectives]``: the same for all ranks of a group."""
    columns: Mapping[str, tuple[int, ...]]
    """By partition: which of the collectives above the tables of its groups contain."""
    without_delays_ns: FloatArray
    """``step_ns`` without any `Delay`; the difference is what the delays cost, ``[num_steps]``."""
    without_transfer_ns: FloatArray
    """``step_ns`` if transfers took no time."""
    without_data_ns: FloatArray
    """``step_ns`` if data were always available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A simulated run and its truth."""

    run: Run
    truth: Truth


def simulate(job: SimulatedJob, *, seed: int, truth: bool = True) -> Simulated:
    """Simulates a job.

    Args:
        job: The job.
        seed: Seed of all draws; the same seed and job give the same run.
        truth: False: skip the schedules without faults, which take as long as the first one; they are then NaN.
    """
    draws = np.random.default_rng(seed)
    program = write_program(job)
    issues = [op for op in program if isinstance(op, Issue)]
    own_ns, delay_ns = _draw_own(job, draws)
    transfer_ns = _draw_transfers(job, program, draws)
    schedule = make_schedule(job, program, own_ns + delay_ns, transfer_ns)

    def replay(own: FloatArray, transfers: FloatArray) -> FloatArray:
        if not truth:
            return np.full(job.num_steps, np.nan)
        return _cycle(make_schedule(job, program, own, transfers))

    without_data = own_ns + delay_ns
    without_data[:, :, PHASE_CODE[Phase.DATA]] = 0
    told = Truth(
        step_ns=_cycle(schedule),
        exposed_ns=schedule.exposed_ns.sum(axis=2),
        wait_ns=schedule.last_arrival_ns - schedule.arrival_ns,
        transfer_ns=schedule.over_ns - schedule.last_arrival_ns,
        columns={
            name: tuple(index for index, op in enumerate(issues) if op.partition == name)
            for name in ("world", "shard", "replica")
        },
        without_delays_ns=replay(own_ns, transfer_ns),
        without_transfer_ns=replay(own_ns + delay_ns, np.zeros_like(transfer_ns)),
        without_data_ns=replay(without_data, transfer_ns),
    )
    del own_ns, delay_ns, without_data, transfer_ns  # half a gigabyte with a thousand ranks and steps
    return Simulated(run=write_run(job, program, schedule, draws), truth=told)


def _draw_own(job: SimulatedJob, draws: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Own time by phase with jitter and tails, and the delays, ns, ``[num_ranks, num_steps, len(PHASES)]`` each."""
    shape = (job.num_ranks, job.num_steps, len(PHASES))
    means = np.array([job.phase_ns.get(phase, 0.0) for phase in PHASES])
    own_ns = means * draws.lognormal(0, job.jitter_ratio, shape)
    own_ns *= np.where(draws.random(shape[:2]) < job.tail_share_ratio, job.tail_factor, 1.0)[:, :, None]
    delay_ns = np.zeros(shape)
    steps = np.arange(job.num_steps)
    for delay in job.delays:
        struck = (steps >= delay.first_step) & (draws.random(job.num_steps) < delay.share_ratio)
        ranks = draws.integers(job.num_ranks, size=job.num_steps)
        if delay.rank is not None:
            ranks[:] = delay.rank
        delay_ns[ranks[struck], steps[struck], PHASE_CODE[delay.phase]] += delay.delay_ns
    return own_ns, delay_ns


def _draw_transfers(job: SimulatedJob, program: list[Compute | Issue], draws: np.random.Generator) -> FloatArray:
    """Transfer time of each collective for each rank, ns, ``[num_ranks, num_steps, num_collectives]``."""
    means = np.array([op.transfer_ns for op in program if isinstance(op, Issue)])
    drawn: FloatArray = means * draws.lognormal(0, job.jitter_ratio, (job.num_steps, len(means)))
    slow = max(job.slow_hosts.values(), default=1.0) if job.num_hosts > 1 else 1.0
    return np.broadcast_to(drawn * slow, (job.num_ranks, *drawn.shape)).copy()


def _cycle(schedule: Schedule) -> FloatArray:
    """From the end of one step's last wait to that of the next, on the rank where it ends last, ``[num_steps]``."""
    marks = schedule.over_ns[:, :, -1].max(axis=0) if schedule.over_ns.shape[2] else schedule.end_ns.max(axis=0)
    return np.diff(marks, prepend=0.0)
