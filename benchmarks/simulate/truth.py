"""Simulates a job and its truth: plays it as it is and without each of its faults, with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.simulate.draw import Fault, Load, assemble, draw, list_faults
from benchmarks.simulate.job import SimulatedJob
from benchmarks.simulate.observe import write_run
from benchmarks.simulate.program import Program, list_issues, write_program
from benchmarks.simulate.schedule import Schedule, make_schedule
from benchmarks.simulate.shared_schedule import make_shared_schedule
from distprof.facts.arrays import FloatArray
from distprof.facts.run import PHASE_CODE, Phase, Run


class FaultCost(Struct, frozen=True, kw_only=True):
    """What one fault really costs, ``[num_steps]``; below 0 where its absence only moves time to the next step."""

    fault: Fault
    lost_ns: FloatArray
    """Step time less that without this fault alone."""
    alone_ns: FloatArray
    """Step time with this fault alone less that without any: what it costs once all others are gone."""


class Truth(Struct, frozen=True, kw_only=True):
    """What really happened on the true clock, and what would have happened without the faults; ns."""

    step_ns: FloatArray
    """From the end of one step's last wait to the end of the next one's; the first from its start, ``[num_steps]``.
    Where not every step has a wait, from the end of one step to that of the next."""
    exposed_ns: FloatArray
    """Communication that blocked a rank, including waits inside own phases, ``[num_ranks, num_steps]``."""
    wait_ns: FloatArray
    """Last arrival minus own arrival, ``[num_ranks, num_steps, num_collectives]``."""
    transfer_ns: FloatArray
    """End minus last arrival, ``[num_ranks, num_steps, num_collectives]``: the same for all ranks of a group."""
    columns: Mapping[str, tuple[int, ...]]
    """By partition: which of the collectives above the tables of its groups contain."""
    without_delays_ns: FloatArray
    """``step_ns`` without any `Delay`; the difference is what the delays cost, ``[num_steps]``. NaN, like the next two:
    not asked for."""
    without_transfer_ns: FloatArray
    """``step_ns`` if transfers took no time."""
    without_data_ns: FloatArray
    """``step_ns`` if data were always available."""
    without_faults_ns: FloatArray
    """``step_ns`` without all faults with a name. NaN: not asked for."""
    costs: tuple[FaultCost, ...]
    """Of each fault with a name. Empty: there is none, or not asked for."""


class Simulated(Struct, frozen=True, kw_only=True):
    """A simulated run and its truth."""

    run: Run
    truth: Truth


def simulate(job: SimulatedJob, *, seed: int, truth: bool = True, faults: bool = False) -> Simulated:
    """Simulates a job.

    Args:
        job: The job.
        seed: Seed of all draws; the same seed and job give the same run.
        truth: False: skip the schedules without delays, transfers and data, each of which takes as long as the first;
            they are NaN, and waits and transfers are empty.
        faults: Also play the job without each fault, and with it alone.
    """
    draws = np.random.default_rng(seed)
    program = write_program(job)
    told, schedule, tokens = _play(job, program, draws, np.random.default_rng([seed, 1]), truth=truth, faults=faults)
    return Simulated(run=write_run(job, program, tokens, schedule, draws), truth=told)


def draw_truth(job: SimulatedJob, *, seed: int) -> Truth:
    """What would happen in a job with other random numbers, and what its faults would cost; without a run."""
    more = np.random.default_rng([seed, 1])
    return _play(job, write_program(job), np.random.default_rng(seed), more, truth=False, faults=True)[0]


def _play(
    job: SimulatedJob,
    program: Program,
    draws: np.random.Generator,
    more: np.random.Generator,
    *,
    truth: bool,
    faults: bool,
) -> tuple[Truth, Schedule, FloatArray]:
    """What happens, the schedule, and the ranks' tokens; frees what it has drawn, which is much for many ranks."""
    drawn = draw(job, program, draws, more)
    there = list_faults(job)
    work = assemble(job, program, drawn, there)
    schedule = _schedule(job, program, work)
    first = sum(op.between for op in list_issues(program))
    unknown_ns, nothing = np.full(job.num_steps, np.nan), np.empty((0, 0, 0))

    def measure(other: Load) -> FloatArray:
        return _schedule(job, program, other).find_cycles(first)

    step_ns = schedule.find_cycles(first)
    without_ns, costs = unknown_ns, tuple[FaultCost, ...]()
    if faults:
        without_ns, costs = _find_costs(step_ns, there, lambda some: measure(assemble(job, program, drawn, some)))
    issues = list_issues(program)[first:]
    told = Truth(
        step_ns=step_ns,
        exposed_ns=np.nansum(schedule.exposed_ns[:, :, first:], axis=2),
        wait_ns=(schedule.last_arrival_ns - schedule.arrival_ns)[:, :, first:] if truth else nothing,
        transfer_ns=(schedule.over_ns - schedule.last_arrival_ns)[:, :, first:] if truth else nothing,
        columns={
            name: tuple(index for index, op in enumerate(issues) if op.partition == name)
            for name in ("world", "shard", "replica")
        },
        without_delays_ns=measure(assemble(replace(job, delays=()), program, drawn, there)) if truth else unknown_ns,
        without_transfer_ns=measure(_without_transfers(work)) if truth else unknown_ns,
        without_data_ns=measure(_without_data(work)) if truth else unknown_ns,
        without_faults_ns=without_ns,
        costs=costs,
    )
    return told, schedule, drawn.tokens


def _schedule(job: SimulatedJob, program: Program, work: Load) -> Schedule:
    return (make_shared_schedule if job.rules == "shared" else make_schedule)(job, program, work)


def _find_costs(
    step_ns: FloatArray, there: tuple[Fault, ...], play: Callable[[Collection[Fault]], FloatArray]
) -> tuple[FloatArray, tuple[FaultCost, ...]]:
    """The steps without any fault, and the cost of each, played with every set of faults that this needs."""
    known: dict[frozenset[Fault], FloatArray] = {frozenset(there): step_ns}

    def find(some: frozenset[Fault]) -> FloatArray:
        if some not in known:
            known[some] = play(some)
        return known[some]

    none_ns, everything = find(frozenset()), frozenset(there)
    costs = tuple(
        FaultCost(
            fault=fault, lost_ns=step_ns - find(everything - {fault}), alone_ns=find(frozenset({fault})) - none_ns
        )
        for fault in there
    )
    return none_ns, costs


def _without_transfers(work: Load) -> Load:
    nothing = np.zeros_like(work.transfer_ns)
    return replace(work, transfer_ns=nothing, link_transfer_ns=nothing[0])


def _without_data(work: Load) -> Load:
    own_ns = work.own_ns.copy()
    own_ns[:, :, PHASE_CODE[Phase.DATA]] = 0
    pieces = {key: late_ns for key, late_ns in work.piece_ns.items() if key[0] != PHASE_CODE[Phase.DATA]}
    return replace(work, own_ns=own_ns, piece_ns=pieces)
