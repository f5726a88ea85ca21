"""Live runs of pipelines, played here: who is named, what it costs by a replay of all that the ranks did."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from msgspec import Struct, structs

from distprof.analyze.make_report import analyze
from distprof.analyze.pipeline.job_parts import find_slow_part
from distprof.facts.arrays import BoolArray
from distprof.facts.micro_batches import RankOperations
from distprof.facts.run import COLUMN, CollectiveKind, Collectives, Phase, Run
from distprof.render.sections.coverage import describe_replay
from distprof.render.sections.verdict import describe_verdict
from distprof.report.operations_report import PipelineCauseKind
from distprof.report.report import Report
from distprof.report.wait_report import Cause, VerdictKind
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


@pytest.mark.parametrize("meets", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_without_a_change_the_replay_is_what_was_recorded(replicas: int, meets: bool) -> None:
    found = report(replicas=replicas, meets=meets, noise_ratio=0.2)
    assert found.pipeline is not None and found.pipeline.judged
    assert found.replay is not None
    assert found.replay.median_ratio == pytest.approx(0, abs=1e-9)
    assert found.replay.worst_ratio == pytest.approx(0, abs=1e-9)
    assert describe_replay(found.replay).startswith("without a change, steps differ")


@pytest.mark.parametrize("disturbed_ratio", [0.0, 0.6])
def test_nobody_is_named_where_nobody_is_late(disturbed_ratio: float) -> None:
    for seed in range(6):
        for replicas, stages in ((1, 4), (2, 2)):
            found = report(seed, replicas=replicas, stages=stages, disturbed_ratio=disturbed_ratio)
            assert list_causes(found) == []
            assert (found.verdict.kind, found.verdict.rank) == (VerdictKind.NONE, None)
            assert describe_verdict(found).startswith("no straggler: no rank, stage or link")


@pytest.mark.parametrize("disturbed_ratio", [0.0, 0.5])
@pytest.mark.parametrize(("kind", "phase"), [(FORWARD, "forward"), (BACKWARD, "backward")])
def test_a_rank_late_in_one_micro_batch_is_named_even_without_replicas(
    kind: int, phase: str, disturbed_ratio: float
) -> None:
    found = report(
        longer=lambda rank, step, passed, batch: 5 * MS * (rank == 2 and passed == kind and batch == 0),
        disturbed_ratio=disturbed_ratio,
    )  # fmt: skip
    assert list_causes(found) == [(PipelineCauseKind.HELD_UP, 0, 2)]
    verdict = found.verdict
    assert (verdict.kind, verdict.rank, verdict.phase, verdict.cause) == (
        VerdictKind.SLOW_RANK, 2, phase, Cause.COMPUTE,
    )  # fmt: skip
    assert verdict.late_ns == pytest.approx(5 * MS, rel=0.1)
    assert "rank 2 (stage 2) is" in describe_verdict(found)
    assert f"late in {phase}, in 1 of 8 micro-batches of each step" in describe_verdict(found)


def test_a_rank_late_with_its_data_is_named_and_its_cost_is_that_of_really_removing_it() -> None:
    job = Job(replicas=2, stages=2, data_ns=lambda rank, step: (12 if rank == 3 else 0.2) * MS)
    found = analyze(play(job))
    assert list_causes(found) == [(PipelineCauseKind.HELD_UP, 1, 1)]
    assert (found.verdict.rank, found.verdict.phase, found.verdict.cause) == (3, "data", Cause.INPUT)
    require_cost(found, measure_saved(job, Job(replicas=2, stages=2)), rel=0.1)
    assert found.causes is not None and found.causes.causes[0].rank == 3
    assert next(item.change for item in found.what_if) == "rank 3 at normal speed"


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_rank_late_between_steps_is_named_and_its_cost_is_that_of_really_removing_it(replicas: int) -> None:
    job = Job(replicas=replicas, stages=4 // replicas, between_ns=lambda rank, step: (12 if rank == 1 else 0.2) * MS)
    found = analyze(play(job))
    assert list_causes(found) == [(PipelineCauseKind.HELD_UP, 0, 1)]
    assert (found.verdict.rank, found.verdict.phase, found.verdict.cause) == (1, "between steps", Cause.BETWEEN)
    assert found.verdict.late_ns == pytest.approx(11.8 * MS, rel=0.05)
    without = structs.replace(job, between_ns=lambda rank, step: 0.2 * MS)
    require_cost(found, measure_saved(job, without), rel=0.1)
    said = describe_verdict(found)
    assert "ms longer than the other stages between steps" in said if replicas == 1 else "late between steps" in said


@pytest.mark.parametrize(("replicas", "meets"), [(1, True), (1, False), (2, True)])
def test_a_rank_late_after_its_last_backward_is_named_and_its_cost_is_that_of_really_removing_it(
    replicas: int, meets: bool
) -> None:
    stages = 4 // replicas
    job = Job(replicas=replicas, stages=stages, meets=meets, after_ns=lambda rank, step: (13 if rank == 0 else 1) * MS)
    found = analyze(play(job))
    assert list_causes(found) == [(PipelineCauseKind.HELD_UP, 0, 0)]
    assert (found.verdict.rank, found.verdict.phase, found.verdict.cause) == (0, "other", Cause.OUTSIDE)
    assert found.verdict.late_ns == pytest.approx(12 * MS, rel=0.05)
    require_cost(found, measure_saved(job, Job(replicas=replicas, stages=stages, meets=meets)), rel=0.1)


def test_a_rank_that_does_little_more_between_steps_than_others_is_not_named() -> None:
    for seed in range(3):
        assert list_causes(report(seed, between_ns=lambda rank, step: (0.5 + 0.3 * (rank == 0)) * MS)) == []


def test_a_rank_slow_in_all_micro_batches_is_told_from_its_stage_by_the_other_replica() -> None:
    job = Job(replicas=2, stages=2, longer=lambda rank, step, kind, batch: 1 * MS * (rank == 1 and kind == BACKWARD))
    found = analyze(play(job))
    assert list_causes(found) == [(PipelineCauseKind.SLOW_WORKER, 0, 1)]
    assert (found.verdict.rank, found.verdict.phase) == (1, "backward")
    require_cost(found, measure_saved(job, Job(replicas=2, stages=2)), rel=0.15)


@pytest.mark.parametrize(
    ("first", "last", "when"),
    [(21, 41, "since step 21, "), (0, 20, "until step 19, "), (13, 28, "from step 13 to step 27, ")],
)
def test_a_rank_that_is_slow_in_a_part_of_the_job_only_is_named_with_that_part(
    first: int, last: int, when: str
) -> None:
    job = Job(
        replicas=2, stages=2,
        longer=lambda rank, step, kind, batch: MS * (rank == 1 and kind == BACKWARD and first <= step < last),
    )  # fmt: skip
    found = analyze(play(job))
    assert list_causes(found) == [(PipelineCauseKind.SLOW_WORKER, 0, 1)]
    assert (found.verdict.rank, found.verdict.phase) == (1, "backward")
    assert describe_verdict(found).startswith(f"{when}rank 1 (replica 0, stage 1) is slow: its backward takes ")
    assert found.verdict.late_ns == pytest.approx(8 * MS, rel=0.1)
    assert found.pipeline is not None and found.causes is not None
    saved_ratio, steps = measure_saved(job, Job(replicas=2, stages=2)), STEPS - WARMUP
    require_cost(found, saved_ratio, rel=0.15)
    (cause,), (told,) = found.pipeline.causes, found.causes.causes
    assert (told.first_step, told.last_step, told.whole) == (max(first, WARMUP), last - 1, False)
    assert told.stretch_saved_if_only_this_ratio == cause.stretch_lost_ratio == found.verdict.stretch_lost_ratio
    assert cause.stretch_lost_ratio is not None
    then = saved_ratio * steps / (told.last_step - told.first_step + 1)
    assert cause.stretch_lost_ratio.value == pytest.approx(then, rel=0.2)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_rank_that_gets_its_data_late_since_some_step_is_named(replicas: int) -> None:
    found = report(
        replicas=replicas, stages=4 // replicas,
        data_ns=lambda rank, step: (12 if rank == 3 and step >= 25 else 0.2) * MS,
    )  # fmt: skip
    assert list_causes(found) == [(PipelineCauseKind.HELD_UP, replicas - 1, 4 // replicas - 1)]
    assert (found.verdict.rank, found.verdict.phase) == (3, "data")
    assert describe_verdict(found).removeprefix("critical: ").startswith("since step 25, rank 3 (")


def test_where_few_steps_are_recorded_the_others_say_since_when_and_how_much_of_the_job_it_is() -> None:
    job = Job(
        replicas=2, stages=2, steps=121,
        longer=lambda rank, step, kind, batch: MS * (rank == 1 and kind == BACKWARD and step >= 70),
    )  # fmt: skip
    number = np.arange(121)
    run = thin(play(job), (number < 24) | ((number >= 64) & (number < 68)) | ((number >= 96) & (number < 106)))
    found = analyze(run)
    assert list_causes(found) == [(PipelineCauseKind.SLOW_WORKER, 0, 1)]
    assert describe_verdict(found).startswith("since step 70, rank 1 (replica 0, stage 1) is slow: its backward takes ")
    saved_ratio = measure_saved(job, structs.replace(job, longer=Job().longer))
    require_cost(found, saved_ratio, rel=0.15)  # 10 of 38 recorded steps are not 51 of 121
    (cause,) = found.causes.causes if found.causes is not None else ()
    assert (cause.first_step, cause.last_step, cause.unseen_before) == (70, 120, 0)


def test_a_stage_that_takes_longer_until_some_step_is_named_with_it() -> None:
    found = report(longer=lambda rank, step, kind, batch: MS * (rank == 2 and kind == FORWARD and step < 24))
    assert list_causes(found) == [(PipelineCauseKind.UNEVEN_STAGE, None, 2)]
    assert found.verdict.rank is None
    assert describe_verdict(found).startswith("until step 23, stage 2 (rank 2) takes 8")


@pytest.mark.parametrize("replicas", [1, 2])
def test_where_steps_become_longer_for_all_nobody_is_named(replicas: int) -> None:
    for seed in range(5):
        assert list_causes(report(
            seed, replicas=replicas, stages=4 // replicas, sizes=lambda replica, step, batch: 1.0 + 0.2 * (step >= 20)
        )) == []  # fmt: skip


def test_a_stage_that_is_far_slower_in_a_part_is_not_told_by_the_little_that_it_always_takes_longer() -> None:
    """Stage 1 of three takes 10 % longer in every backward, and 4 ms longer in forwards from step 16 to 27."""
    job = Job(stages=3, batches=3, longer=lambda rank, step, kind, batch: (
        0.0 if rank != 1 else 0.4 * MS if kind == BACKWARD else 4 * MS * (16 <= step < 28)
    ))  # fmt: skip
    found = analyze(play(job))
    assert [(kind, stage) for kind, _, stage in list_causes(found)] == [(PipelineCauseKind.UNEVEN_STAGE, 1)]
    assert describe_verdict(found).startswith("from step 16 to step 27, stage 1 (rank 1) takes 1")
    always = analyze(play(structs.replace(job, longer=lambda rank, step, kind, batch: 0.4 * MS * (
        rank == 1 and kind == BACKWARD
    ))))  # fmt: skip
    assert always.pipeline is not None
    assert [cause.first_step for cause in always.pipeline.causes] == [None]


def test_what_a_rank_does_between_its_passes_is_said_not_to_be_compared_where_there_is_one_replica() -> None:
    def pause(rank: int, step: int, kind: int, batch: int) -> float:
        return 1.5 * MS if rank == 1 and kind == BACKWARD and step >= 20 else 0.0

    found = analyze(play(Job(pauses=pause)))
    assert list_causes(found) == []
    assert describe_verdict(found).endswith(
        "; what rank 1 does between forwards and backwards is not compared without a replica, and takes longer than on "
        "the other ranks"
    )
    assert "is not compared" not in describe_verdict(report())
    two = analyze(play(Job(replicas=2, stages=2, pauses=pause)))
    assert "is not compared" not in describe_verdict(two)


def test_a_slow_part_of_which_few_steps_were_recorded_is_said_and_not_judged() -> None:
    job = Job(
        steps=121, longer=lambda rank, step, kind, batch: 4 * MS * (rank == 1 and kind == FORWARD and 50 <= step < 90)
    )
    number = np.arange(121)
    found = analyze(thin(play(job), (number < 40) | ((number >= 60) & (number < 64)) | (number >= 110)))
    assert list_causes(found) == []
    assert describe_verdict(found).endswith(
        "; steps 50 to 89 take longer than the others, and too few of them were recorded"
    )


def test_what_parts_of_a_job_cost_and_the_rest_are_the_step() -> None:
    job = Job(
        replicas=2, stages=2, steps=121,
        longer=lambda rank, step, kind, batch: MS * (rank == 1 and kind == BACKWARD and step >= 70),
    )  # fmt: skip
    number = np.arange(121)
    found = analyze(thin(play(job), (number < 48) | (number >= 105))).causes
    assert found is not None
    (cause,) = found.causes
    assert found.ideal_ns + cause.joint_ns + found.remainder_ns == pytest.approx(found.step_ns)
    assert cause.joint_ns / found.step_ns == pytest.approx(cause.saved_if_only_this_ratio.value)
    assert abs(found.remainder_ns) < 0.02 * found.step_ns


def test_the_slow_part_of_a_job_is_where_steps_take_longest() -> None:
    steady_ns = np.random.default_rng(1).normal(100.0, 1.0, 90)
    steady_ns[7] = 1_000.0
    assert find_slow_part(steady_ns) is None and find_slow_part(np.full(90, 100.0)) is None
    for first, end in ((60, 90), (0, 30), (40, 70)):
        step_ns = steady_ns.copy()
        step_ns[first:end] += 5
        assert find_slow_part(step_ns) == pytest.approx((first, end), abs=1)
        step_ns[first:end] -= 4  # by 1 %: too little
        assert find_slow_part(step_ns) is None
    step_ns = steady_ns + 5
    step_ns[20:45] -= 5
    assert find_slow_part(step_ns) == pytest.approx((45, 90), abs=1)
    step_ns = steady_ns.copy()
    step_ns[50:80] += 8
    step_ns[80:] += 6  # nearer to the slow steps than to the others
    assert find_slow_part(step_ns) == pytest.approx((50, 90), abs=1)
    step_ns[80:] -= 4
    assert find_slow_part(step_ns) == pytest.approx((50, 80), abs=1)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_uneven_stage_is_called_that_and_no_rank_is_blamed(replicas: int) -> None:
    found = report(
        replicas=replicas, longer=lambda rank, step, kind, batch: (0.5 if kind == FORWARD else 1) * MS * (rank % 4 == 2)
    )
    assert list_causes(found) == [(PipelineCauseKind.UNEVEN_STAGE, None, 2)]
    assert (found.verdict.kind, found.verdict.rank) == (VerdictKind.UNEVEN_STAGE, None)
    assert found.pipeline is not None
    assert found.pipeline.causes[0].more_ratio == pytest.approx(
        0.25 * 1.08, abs=0.03
    )  # the shortest is 8 % below the mean
    words = describe_verdict(found)
    if replicas == 1:
        assert words.startswith("stage 2 (rank 2) takes")
        assert "it has more to do, or its rank is slow" in words
    else:
        assert words.startswith("stage 2 has")
        assert "more to do than the other stages, on both replicas" in words


def test_unequal_sequences_are_no_slow_rank() -> None:
    found = report(
        replicas=2, stages=2, sizes=lambda replica, step, batch: 1.5 if replica == 1 and step % 4 == 1 else 1.0
    )
    assert list_causes(found) == [(PipelineCauseKind.UNEQUAL_SEQUENCES, 1, None)]
    assert (found.verdict.kind, found.verdict.rank) == (VerdictKind.UNEQUAL_SEQUENCES, None)


def test_a_slow_link_is_named_by_its_stages() -> None:
    found = report(transfer_ns=lambda source, target: (3 if {source, target} == {1, 2} else 0.2) * MS)
    assert list_causes(found) == [(PipelineCauseKind.SLOW_LINK, None, 1)]
    assert found.verdict.kind is VerdictKind.SLOW_LINK
    assert "the link between stages 1 and 2 is slow" in describe_verdict(found)


def test_twice_the_micro_batches_by_hand() -> None:
    """Of p stages and m micro-batches without noise and transfers, m + p - 1 passes of each kind follow each other."""
    found = report(noise_ratio=0.0, transfer_ns=lambda source, target: 0.0, meets=False)
    change = next(item for item in found.what_if if item.change == "twice the micro-batches")
    saved_ns = (8 + 3) * 6 * MS - (16 + 3) * 3 * MS
    assert found.headline.step_mean_ns is not None
    assert change.saved_ratio.value == pytest.approx(saved_ns / found.headline.step_mean_ns, rel=0.02)


def test_where_the_replay_differs_from_what_was_recorded_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distprof.analyze.pipeline.chained_replay.ChainedReplay.compute_steps", lambda self, work_ns: (
        np.full(len(self.follows), 1e9)
    ))  # fmt: skip
    found = report(data_ns=lambda rank, step: (12 if rank == 3 else 0.2) * MS)
    assert found.pipeline is not None and found.pipeline.causes == () and found.causes is None and found.what_if == ()
    assert describe_verdict(found).startswith("no verdict: the stages of a pipeline wait for each other by design")
    assert "the steps differ too much from the recorded ones" in describe_verdict(found)


def test_what_was_sent_long_before_it_is_waited_for_does_not_hold_the_replay() -> None:
    def last(rank: int, step: int, kind: int, batch: int) -> float:
        return 3 * MS * (rank == 3)

    found = [report(longer=last, awaits_at_end=awaits).pipeline for awaits in (False, True)]
    usual, awaited = (each.causes[0] for each in found if each is not None)
    assert (usual.kind, usual.stage) == (awaited.kind, awaited.stage) == (PipelineCauseKind.UNEVEN_STAGE, 3)
    assert awaited.lost_ratio.value == pytest.approx(usual.lost_ratio.value, rel=0.05) and usual.lost_ratio.value > 0.1


@pytest.mark.parametrize("stages", [2, 4])
def test_of_stages_that_split_their_backwards_the_first_is_compared_by_its_forwards(stages: int) -> None:
    for seed in range(10):
        assert list_causes(report(seed, splits=True, stages=stages)) == [], seed
    for slow, (kind, more_ns) in itertools.product(range(stages), ((FORWARD, 1 * MS), (BACKWARD, 2 * MS))):
        found = report(
            slow, splits=True, stages=stages,
            longer=lambda rank, step, own, batch, slow=slow, kind=kind, more_ns=more_ns: (
                more_ns * (own == kind and rank == slow)
            ),
        )  # fmt: skip
        if kind == BACKWARD and (slow == 0 or stages == 2):
            assert list_causes(found) == []
            continue
        assert list_causes(found) == [(PipelineCauseKind.UNEVEN_STAGE, None, slow)]
        assert found.pipeline is not None and found.pipeline.causes[0].more_ratio == pytest.approx(0.5, abs=0.1)


def test_a_rank_that_splits_its_backwards_is_compared_with_its_replicas_by_all_of_them() -> None:
    for seed in range(10):
        assert list_causes(report(seed, splits=True, stages=2, replicas=2)) == [], seed
    found = report(
        splits=True, stages=2, replicas=2,
        longer=lambda rank, step, kind, batch: 2 * MS * (kind == BACKWARD and rank == 3),
    )  # fmt: skip
    assert list_causes(found) == [(PipelineCauseKind.SLOW_WORKER, 1, 1)]
    assert found.pipeline is not None and found.pipeline.causes[0].more_ratio == pytest.approx(0.5, abs=0.1)
