"""The analyses against hundreds of simulated jobs whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Clocks, Delay, Simulated, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.causes.find_causes import find_causes
from distprof.analyze.clocks.clocks import map_clocks
from distprof.analyze.cycles.sync_cycles import SyncCycles, build_cycles
from distprof.analyze.predict.what_if import list_what_ifs
from distprof.analyze.replay.replay import replay
from distprof.analyze.stats.measured_steps import MeasuredSteps, choose_measured_steps, read_timing
from distprof.analyze.summary.waits import measure_waits
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, Collectives, Phase, Run

NUM_RUNS, NUM_BATCHES = 500, 10
MS = 1_000_000
DELAYED = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.OPTIMIZER, Phase.OTHER)


def draw_job(draws: np.random.Generator) -> SimulatedJob:
    """Any job: strategy, sizes, speed, jitter, a delay, clocks that are seconds apart and drift."""
    scale = float(draws.uniform(0.2, 5))
    phases = {phase: float(draws.uniform(0.5, 40)) * MS * scale for phase in DELAYED}
    num_ranks = 2 * int(draws.integers(1, 5))
    delay = Delay(
        rank=int(draws.integers(num_ranks)), phase=DELAYED[draws.integers(len(DELAYED))],
        delay_ns=float(draws.uniform(0.1, 0.8)) * sum(phases.values()),
    )  # fmt: skip
    return SimulatedJob(
        strategy=("ddp", "fsdp", "hsdp")[draws.integers(3)], num_ranks=num_ranks,
        ranks_per_host=int(draws.integers(1, num_ranks + 1)), num_steps=20, num_buckets=int(draws.integers(1, 4)),
        phase_ns=phases, transfer_ns=float(draws.uniform(1, 60)) * MS * scale,
        jitter_ratio=float(draws.choice([0, 0.001, 0.003])), delays=(delay,),
        clocks=Clocks(offset_ns=3e9, drift_ratio=50e-6, bound_ns=float(draws.choice([0, 5_000]))),
    )  # fmt: skip


def prepare(run: Run) -> SyncCycles:
    measured_steps = choose_measured_steps(run)
    cycles = build_cycles(measured_steps, read_timing(measured_steps, Clock.HOST))
    assert cycles is not None
    return cycles


def require_close(what: str, found: FloatArray | float, truth: FloatArray | float) -> None:
    """Within 3 % or 50 us, whichever is more."""
    error = np.abs(np.asarray(found) - truth)
    allowed = np.maximum(0.03 * np.abs(truth), 50_000)
    assert (error <= allowed).all(), f"{what}: off by up to {np.max(error / allowed):.1f} times what is allowed"


def gather_by_table(made: Simulated, table: Collectives, number: int, values: FloatArray) -> FloatArray:
    """The truth of a table's collectives, which stand in the job's order in ``values``."""
    job_tables = made.run.collectives
    partition = table.group.partition("-")[0]
    programs = {"default": "world", "shard": "shard", "replica": "replica"}
    columns = made.truth.columns[programs[partition]]
    assert job_tables[number] is table
    return values[table.ranks][:, :, list(columns)]


def require_causes(made: Simulated, measured_steps: MeasuredSteps, cycles: SyncCycles, seed: int) -> None:
    """The delayed rank is named, with its phase and its cost, and nobody else is."""
    cause_costs = find_causes(measured_steps, cycles)
    assert cause_costs is not None
    step_ns, (delay,) = made.truth.step_ns[cycles.steps], draw_job(np.random.default_rng(seed)).delays
    lost_ns = step_ns - made.truth.without_delays_ns[cycles.steps]
    assert cause_costs.named or lost_ns.mean() < 0.05 * step_ns.mean(), seed
    for candidate, cost in cause_costs.named:
        assert (candidate.rows.tolist(), candidate.part) == ([delay.rank], delay.phase), seed
        require_close("lost", cost.lost_ns.value, float(lost_ns.mean()))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_hundreds_of_simulated_jobs_are_seen_as_they_were(batch: int) -> None:
    for seed in range(batch, NUM_RUNS, NUM_BATCHES):
        draws = np.random.default_rng(seed)
        job = draw_job(draws)
        made = simulate(job, seed=seed)
        cycles = prepare(made.run)
        clocks = map_clocks(made.run)
        for number, table in enumerate(made.run.collectives):
            waits = measure_waits(table, np.arange(len(table.steps)), clocks)
            require_close("wait", waits.wait_ns, gather_by_table(made, table, number, made.truth.wait_ns))
            require_close("transfer", waits.transfer_ns, gather_by_table(made, table, number, made.truth.transfer_ns))
        at = cycles.steps  # all but the first, before which nothing is recorded
        step_ns = made.truth.step_ns[at]
        require_close("exposed", cycles.blocked_ns.sum(axis=2), made.truth.exposed_ns[:, at])
        require_close("cycle", cycles.cycle_ns, step_ns)
        require_close("replay", replay(cycles), step_ns)
        measured_steps = choose_measured_steps(made.run)
        if seed % (4 * NUM_BATCHES) < NUM_BATCHES:  # a quarter of them
            require_causes(made, measured_steps, cycles, seed)
        changes = {
            item.change: item.step_ns
            for item in list_what_ifs(measured_steps, cycles, None, step_ns=None, tokens_per_s=None)
        }
        for change, truth in (
            ("perfect overlap", made.truth.without_transfer_ns), ("no data wait", made.truth.without_data_ns),
        ):  # fmt: skip
            require_close(change, changes.get(change, float(replay(cycles).mean())), float(truth[at].mean()))
        identity = made.run.phase_ns(Clock.HOST).sum(axis=2) - made.run.step_ns(Clock.HOST)
        assert np.abs(identity).max() < 1


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_relabelled_ranks_get_relabelled_answers(strategy: str) -> None:
    job = SimulatedJob(
        strategy=strategy, num_ranks=6, ranks_per_host=6, delays=(Delay(rank=1, phase=Phase.FORWARD, delay_ns=9 * MS),)
    )  # fmt: skip
    run = simulate(job, seed=5).run
    order = np.array([3, 5, 1, 0, 2, 4])  # the rank that stands at each place now
    moved = np.argsort(order)
    infos = tuple(structs.replace(run.ranks[old], rank=new) for new, old in enumerate(order))
    tables = tuple(
        structs.replace(
            table, ranks=np.arange(6), arrival_ns=table.arrival_ns[order], end_ns=table.end_ns[order],
            exposed_ns=table.exposed_ns[order],
        )
        for table in run.collectives
    )  # fmt: skip
    relabelled = structs.replace(run, ranks=infos, rows=run.rows[order], collectives=tables)
    before, after = analyze(run), analyze(relabelled)
    assert before.verdict.rank == 1 and after.verdict.rank == moved[1]
    assert after.verdict.lost_ns == before.verdict.lost_ns
    assert after.verdict.evidence == before.verdict.evidence
    assert [item.step_ns for item in after.what_if][:3] == pytest.approx([item.step_ns for item in before.what_if][:3])
    for was, now in zip(before.waits, after.waits, strict=True):
        assert now.wait_ns == pytest.approx([was.wait_ns[old] for old in order])
        assert now.last_ratio == tuple(was.last_ratio[old] for old in order)
