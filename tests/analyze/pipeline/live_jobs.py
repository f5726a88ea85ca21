"""Live runs of pipelines, played here, and what their reports say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec import Struct, structs

from distprof.analyze.make_report import analyze
from distprof.facts.arrays import BoolArray
from distprof.facts.micro_batches import RankOperations
from distprof.facts.run import COLUMN, CollectiveKind, Collectives, Phase, Run
from distprof.report.operations_report import PipelineCauseKind
from distprof.report.report import Report
from tests.analyze.summary.test_pipeline import BACKWARD, FORWARD, RECEIVE, SEND, WEIGHT, order_1f1b
from tests.factories import make_run

MS = 1e6
STEPS, WARMUP = 41, 1
START_NS = 10.0**9
Row = tuple[int, int, int, int, float, float, float]
"""Step, kind, micro-batch, other rank, begin, duration, waiting."""
Lasting = Callable[[int, int, int, int], float]
"""How much longer a forward or backward takes, ns: of rank, step, kind and micro-batch."""


class Job(Struct, frozen=True, kw_only=True):
    """Replicas that meet at the end of each step, or do not; ranks are numbered by replica and then by stage."""

    replicas: int = 1
    stages: int = 4
    batches: int = 8
    noise_ratio: float = 0.03
    steps: int = STEPS
    longer: Lasting = lambda rank, step, kind, batch: 0.0
    pauses: Lasting = lambda rank, step, kind, batch: 0.0
    """What a rank does before a forward or backward that belongs to neither."""
    data_ns: Callable[[int, int], float] = lambda rank, step: 0.2 * MS
    between_ns: Callable[[int, int], float] = lambda rank, step: 0.0
    """From the end of the step before."""
    after_ns: Callable[[int, int], float] = lambda rank, step: 1 * MS
    """From the last backward until the ranks meet."""
    transfer_ns: Callable[[int, int], float] = lambda source, target: 0.2 * MS
    meets: bool = True
    sizes: Callable[[int, int, int], float] = lambda replica, step, batch: 1.0
    awaits_at_end: bool = False
    """What was sent is waited for once the step has nothing else to do."""
    disturbed_ratio: float = 0.0
    """Of the forwards and backwards: they take up to three times as long."""
    splits: bool = False
    """As torch's zero-bubble schedules: the first stage needs no gradients of its inputs, so its whole backward is that
    of the weights; the others have both halves, and compute the weights' once they have nothing else to do."""


def play(job: Job, seed: int = 0) -> Run:
    draws = np.random.default_rng(seed)
    ranks = job.replicas * job.stages
    now_ns = [START_NS] * ranks
    rows: list[list[Row]] = [[] for _ in range(ranks)]
    begins, ends, data = (np.zeros((ranks, job.steps)) for _ in range(3))
    arrival, left = (np.zeros((ranks, job.steps)) for _ in range(2))
    for step in range(job.steps):
        for rank in range(ranks):
            if between_ns := job.between_ns(rank, step):
                now_ns[rank] += between_ns * draws.lognormal(0, job.noise_ratio)
            begins[rank, step] = now_ns[rank]
            data[rank, step] = job.data_ns(rank, step) * draws.lognormal(0, job.noise_ratio)
            now_ns[rank] += data[rank, step]
        for replica in range(job.replicas):
            _play_replica(job, replica, step, now_ns, rows, draws)
        for rank in range(ranks):
            now_ns[rank] += job.after_ns(rank, step) * draws.lognormal(0, job.noise_ratio)
            arrival[rank, step] = now_ns[rank]
        if job.meets:
            now_ns = [max(now_ns) + 0.5 * MS] * ranks
        left[:, step] = now_ns
        now_ns = [each + 0.3 * MS * draws.lognormal(0, job.noise_ratio) for each in now_ns]
        ends[:, step] = now_ns
    run = make_run(num_ranks=ranks, num_steps=job.steps, num_warmup=WARMUP, columns={
        "begin_host_ns": begins, "step_host_ns": ends - begins, "data_host_ns": data, "data_wait_host_ns": 0,
        "optimizer_host_ns": ends - left, "optimizer_wait_host_ns": 0, "grad_norm_host_ns": 0,
        "grad_norm_wait_host_ns": 0, "forward_host_ns": 0, "forward_wait_host_ns": 0, "backward_host_ns": 0,
        "backward_wait_host_ns": 0, "between_data_host_ns": 0,
    }, infos={rank: {"point_to_point": True} for rank in range(ranks)})  # fmt: skip
    met = Collectives(
        group="norm", ranks=np.arange(ranks), size=ranks, kinds=(CollectiveKind.ALL_REDUCE,),
        phases=(Phase.GRAD_NORM,), sizes_bytes=(8,), steps=np.arange(job.steps), arrival_ns=arrival[:, :, None],
        end_ns=left[:, :, None], exposed_ns=(left - arrival)[:, :, None],
    )  # fmt: skip
    return structs.replace(run, operations=tuple(map(make_operations, rows)), collectives=(met,) if job.meets else ())


def _play_replica(
    job: Job, replica: int, step: int, now_ns: list[float], rows: list[list[Row]], draws: np.random.Generator
) -> None:
    first = replica * job.stages
    todo = [order_1f1b(stage, job.stages, job.batches) for stage in range(job.stages)]
    there: dict[tuple[int, int, int], float] = {}
    later: list[list[tuple[int, float]]] = [[] for _ in range(job.stages)]
    while any(todo):
        for stage in range(job.stages):
            rank = first + stage
            while todo[stage]:
                kind, batch = todo[stage][0]
                source, target = (stage - 1, stage + 1) if kind == FORWARD else (stage + 1, stage - 1)
                if 0 <= source < job.stages and (kind, batch, stage) not in there:
                    break
                todo[stage].pop(0)
                if 0 <= source < job.stages:
                    waited = max(there[kind, batch, stage] - now_ns[rank], 0.0)
                    rows[rank].append((step, RECEIVE, -1, first + source, now_ns[rank], waited, waited))
                    now_ns[rank] += waited
                now_ns[rank] += job.pauses(rank, step, kind, batch)
                lasted = (2 if kind == FORWARD else 4) * MS * job.sizes(replica, step, batch)
                lasted = lasted * draws.lognormal(0, job.noise_ratio) + job.longer(rank, step, kind, batch)
                lasted *= 1 + 2 * draws.random() * (draws.random() < job.disturbed_ratio)
                halves = [(kind, lasted)]
                if job.splits and kind == BACKWARD:
                    halves = [(kind, 0.0), (WEIGHT, lasted)] if stage == 0 else [(kind, lasted / 2)]
                    later[stage] += [(batch, lasted / 2)] if stage else []
                for part, lasted in halves:
                    rows[rank].append((step, part, batch, -1, now_ns[rank], lasted, 0))
                    now_ns[rank] += lasted + 0.05 * MS
                if 0 <= target < job.stages:
                    rows[rank].append((step, SEND, -1, first + target, now_ns[rank], 0, 0))
                    there[kind, batch, target] = now_ns[rank] + job.transfer_ns(stage, target)
    for stage, weights in enumerate(later):
        for batch, lasted in weights:
            rows[first + stage].append((step, WEIGHT, batch, -1, now_ns[first + stage], lasted, 0))
            now_ns[first + stage] += lasted
    for rank in range(first, first + job.stages) if job.awaits_at_end else ():
        rows[rank] = [
            (*row[:5], now_ns[rank] - row[4], 0) if row[:2] == (step, SEND) else row for row in rows[rank]
        ]  # fmt: skip


def make_operations(rows: list[Row]) -> RankOperations:
    table = np.array(rows, dtype=np.float64).T
    step, kind, micro_batch, peer = table[:4].astype(np.int64)
    return RankOperations(
        step=step, kind=kind, micro_batch=micro_batch, stage=np.full(len(step), -1), peer=peer,
        tag=np.zeros_like(step), size_bytes=np.full(len(step), 64), start_ns=table[4], duration_ns=table[5],
        waited_ns=table[6], on_device=np.zeros(len(step), dtype=bool),
    )  # fmt: skip


def thin(run: Run, kept: BoolArray) -> Run:
    """The same if only some steps had been recorded, ``[num_steps]``."""
    rows, number = run.rows.copy(), np.arange(len(kept))
    rows[:, ~kept, COLUMN["shadow"]] = 1
    for name in (f"{phase}{wait}_host_ns" for phase in Phase for wait in ("", "_wait")):
        if name in COLUMN:
            rows[:, ~kept, COLUMN[name]] = np.nan
    operations = []
    for own in run.operations:
        assert own is not None
        there = np.isin(own.step, number[kept])
        operations.append(
            RankOperations(**{name: getattr(own, name)[there] for name in RankOperations.__struct_fields__})
        )
    tables = [
        structs.replace(table, steps=table.steps[kept], arrival_ns=table.arrival_ns[:, kept],
                        end_ns=table.end_ns[:, kept], exposed_ns=table.exposed_ns[:, kept])
        for table in run.collectives
    ]  # fmt: skip
    return structs.replace(run, rows=rows, operations=tuple(operations), collectives=tuple(tables))


def report(seed: int = 0, **changes: object) -> Report:
    return analyze(play(Job(**changes), seed))  # type: ignore[arg-type]


def list_causes(found: Report) -> list[tuple[PipelineCauseKind, int | None, int | None]]:
    assert found.pipeline is not None
    return [(cause.kind, cause.replica, cause.stage) for cause in found.pipeline.causes]


def measure_saved(job: Job, without: Job, seed: int = 0) -> float:
    """What the fault really costs, as a share of the step: against the same draws without it."""
    slow, quick = (
        np.ptp(play(each, seed).rows[0, WARMUP:, COLUMN["begin_host_ns"]]) for each in (job, without)
    )  # fmt: skip
    return float(1 - quick / slow)


def require_cost(found: Report, saved_ratio: float, *, rel: float) -> None:
    """The verdict's cost is what removing the fault really saves."""
    lost = found.verdict.lost_ratio
    assert lost is not None and lost.value == pytest.approx(saved_ratio, rel=rel)
