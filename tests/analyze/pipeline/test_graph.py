"""What waits for what in a pipeline: by hand, by properties, and against published numbers of real jobs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate.pipeline_job import PipelineJob, make_operations, measure_steps
from distprof.analyze.pipeline import graph as graph_module
from distprof.analyze.pipeline.graph import OperationGraph, build_graph
from distprof.analyze.pipeline.replay import Replay, order_graph
from distprof.analyze.pipeline.report_operations import report_operations
from distprof.analyze.pipeline.whole_steps import choose_whole_steps
from distprof.errors import TableError
from distprof.facts.operations import NUMBERS, Kind, Operations

pytest.importorskip("pyarrow")
from distprof.traces.operations.read_operations import read_operations

DATA = Path(__file__).resolve().parents[2] / "data"
SHARED = DATA.parents[2] / "shared" / "data" / "pipeline"
CUT_NODELAY_S = {
    259: 2.1686773295441526, 261: 2.180068676636438, 263: 2.1849608312768396, 264: 2.17549448720456,
    266: 2.170086321511917, 273: 2.1781447899411432, 276: 2.1814288621098967, 278: 2.174692723849148,
}  # fmt: skip
"""As published, of the steps in ``tests/data/pipeline_8steps.parquet``."""
IN_TURN_RATIO = 1.2e-3
"""Where workers post receives in turn, ours wait for what is computed before, and those published do not."""

HAND = (
    # stage, kind, number, start, duration: forward 10, backward 20, transfers 1, optimizer 5, in ms
    (0, Kind.FORWARD, 0, 0, 10), (0, Kind.FORWARD, 1, 10, 10), (0, Kind.FORWARD_SEND, 0, 10, 1),
    (0, Kind.FORWARD_SEND, 1, 20, 2), (0, Kind.BACKWARD_RECV, 0, 10, 32), (0, Kind.BACKWARD, 0, 42, 20),
    (0, Kind.BACKWARD_RECV, 1, 62, 10), (0, Kind.BACKWARD, 1, 72, 20), (0, Kind.OPTIMIZER, 0, 92, 5),
    (1, Kind.FORWARD_RECV, 0, 0, 11), (1, Kind.FORWARD, 0, 11, 10), (1, Kind.BACKWARD, 0, 21, 20),
    (1, Kind.BACKWARD_SEND, 0, 41, 1), (1, Kind.FORWARD_RECV, 1, 21, 1), (1, Kind.FORWARD, 1, 41, 10),
    (1, Kind.BACKWARD, 1, 51, 20), (1, Kind.BACKWARD_SEND, 1, 71, 1), (1, Kind.OPTIMIZER, 0, 71, 5),
)  # fmt: skip
"""Two stages and two micro-batches, one forward, one backward."""


def make_table(rows: tuple[tuple[int, Kind, int, float, float], ...]) -> Operations:
    stage, kinds, number, start, duration = (list(column) for column in zip(*rows, strict=True))
    batch = [at if kind in (Kind.FORWARD, Kind.BACKWARD) else -1 for kind, at in zip(kinds, number, strict=True)]
    zeros = np.zeros(len(rows), dtype=np.int64)
    return Operations(
        replica=zeros, stage=np.array(stage), rank=np.array(stage), step=zeros + 7,
        kind=np.array([NUMBERS[kind] for kind in kinds], dtype=np.int8), start_ns=1e6 * np.array(start),
        duration_ns=1e6 * np.array(duration), number=np.array(number), chunk=zeros, micro_batch=np.array(batch),
    )  # fmt: skip


def connect(operations: Operations) -> tuple[OperationGraph, Replay]:
    graph = build_graph(operations)
    return graph, order_graph(graph)


def test_a_step_by_hand() -> None:
    graph, replay = connect(make_table(HAND))
    assert graph.base_ns.tolist() == [97e6]
    work_ms = {
        (int(stage), int(kind), int(number)): work / 1e6
        for stage, kind, number, work in zip(
            graph.operations.stage, graph.operations.kind, graph.operations.number, graph.work_ns, strict=True
        )
    }
    for direction in (Kind.FORWARD_SEND, Kind.FORWARD_RECV, Kind.BACKWARD_SEND, Kind.BACKWARD_RECV):
        stage = 0 if direction in (Kind.FORWARD_SEND, Kind.BACKWARD_RECV) else 1
        assert [work_ms[stage, NUMBERS[direction], number] for number in (0, 1)] == [1, 1], direction
    start_ns, end_ns = replay.compute_times(graph.work_ns)
    assert end_ns.max() == 97e6
    computes = np.isin(graph.operations.kind, [NUMBERS[Kind.FORWARD], NUMBERS[Kind.BACKWARD]])
    assert start_ns[computes].tolist() == graph.operations.start_ns[computes].tolist()


def test_a_stage_that_takes_twice_as_long_by_hand() -> None:
    """Stage 1: forward 11 to 31, backward 31 to 71, forward to 91, backward to 131, which arrives at 132; stage 0 is
    done with it at 152, and with its optimizer at 157."""
    graph, replay = connect(make_table(HAND))
    slow = (graph.operations.stage == 1) & np.isin(
        graph.operations.kind, [NUMBERS[Kind.FORWARD], NUMBERS[Kind.BACKWARD]]
    )
    assert replay.compute_steps(np.where(slow, 2 * graph.work_ns, graph.work_ns)).tolist() == [157e6]


@pytest.mark.parametrize(
    "job", [PipelineJob(steps=3), PipelineJob(steps=3, gpipe=True), PipelineJob(steps=2, stages=1)]
)
def test_properties_of_a_replay(job: PipelineJob) -> None:
    graph, replay = connect(make_operations(job))
    step_ns = replay.compute_steps(graph.work_ns)
    assert np.allclose(replay.compute_steps(3 * graph.work_ns), 3 * step_ns)
    assert (step_ns <= graph.base_ns * (1 + 1e-9)).all(), "a replay starts everything as early as it can"
    assert (step_ns > 0.98 * graph.base_ns).all(), "which the made-up job does, too"
    assert (replay.compute_steps(graph.work_ns * 0.5) <= step_ns).all()


def test_steps_of_one_structure_are_replayed_as_they_are_alone() -> None:
    operations = make_operations(PipelineJob(steps=4))
    graph, together = connect(operations)
    assert together.num_columns == 4
    alone = [connect(operations.choose(operations.step == step)) for step in range(4)]
    steps = [float(replay.compute_steps(one.work_ns)[0]) for one, replay in alone]
    assert together.compute_steps(graph.work_ns).tolist() == pytest.approx(steps)
    uneven = operations.choose((operations.step != 2) | (operations.kind != NUMBERS[Kind.OPTIMIZER]))
    graph, apart = connect(uneven)
    assert apart.num_columns == 1
    assert apart.compute_steps(graph.work_ns)[[0, 1, 3]].tolist() == pytest.approx([steps[0], steps[1], steps[3]])


def test_operations_that_wait_for_each_other_are_refused() -> None:
    """Stage 1 runs its second backward before its second forward, whose activations stage 0 sends afterwards."""
    rows = list(HAND)
    rows[1] = (0, Kind.FORWARD, 1, 65, 7)  # after the first backward of stage 0, which waits for that of stage 1 ...
    rows[11] = (1, Kind.BACKWARD, 0, 52, 9)  # ... which comes after the forward of what stage 0 has not sent
    with pytest.raises(TableError, match="waits for itself"):
        connect(make_table(tuple(rows)))


def test_steps_that_are_not_whole_are_left_out() -> None:
    operations = make_operations(PipelineJob(steps=10))
    lost = (operations.step == 4) & (operations.kind == NUMBERS[Kind.FORWARD_RECV]) & (operations.number == 2)
    whole = choose_whole_steps(operations.choose(~(lost & (operations.stage == 2) & (operations.replica == 1))))
    assert len(whole.left_out) == 1
    assert whole.left_out[0].startswith("step 4: dp 1, stage 2: some forward-recv is missing")
    assert sorted({*whole.operations.step.tolist()}) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    absent = operations.choose((operations.step != 3) | (operations.stage != 1) | (operations.micro_batch != 5))
    assert [reason[:6] for reason in choose_whole_steps(absent).left_out] == ["step 3"]
    with pytest.raises(TableError, match="no step can be replayed: step 0"):
        choose_whole_steps(operations.choose(operations.kind != NUMBERS[Kind.BACKWARD_SEND]))


def test_a_job_of_two_chunks_sends_around() -> None:
    """Interleaved: what the last stage computes in chunk 0 goes to chunk 1 on the first stage."""
    rows = []
    times = ((0, 0, 0), (1, 0, 11), (0, 1, 22), (1, 1, 33))  # stage, chunk, start of the forward
    for stage, chunk, start in times:
        rows.append((stage, Kind.FORWARD, chunk, start, 10, chunk))
        rows.append((stage, Kind.BACKWARD, 1 - chunk, 43 + (33 - start), 10, chunk))
    for direction, send, receive in (
        (0, Kind.FORWARD_SEND, Kind.FORWARD_RECV), (1, Kind.BACKWARD_SEND, Kind.BACKWARD_RECV)
    ):  # fmt: skip
        for source, target, sent, number in ((0, 1, 0, 0), (1, 0, 0, 1), (0, 1, 1, 2)):
            at = (10 + 11 * number) if not direction else 53 + 11 * number
            ends = (source, target) if not direction else (1 - source, 1 - target)
            place = 0 if number == 1 else sent
            rows += [(ends[0], send, place, at, 1, -1), (ends[1], receive, place, at, 1, -1)]
    table = make_table(tuple(row[:5] for row in rows))
    table = structs.replace(table, chunk=np.array([row[5] for row in rows]))
    graph, replay = connect(choose_whole_steps(table).operations)
    assert len(np.unique(graph.group)) == len(rows) - 6, "six transfers, each of two operations"
    assert replay.compute_steps(graph.work_ns).tolist() == [86e6]


@pytest.mark.parametrize("gpipe", [False, True])
@pytest.mark.parametrize("factor", [1.0, 5.0])
def test_receives_that_are_posted_in_turn_wait_for_what_is_computed_before(gpipe: bool, factor: float) -> None:
    """One forward, one backward: a forward's receive is posted after the backward before it. Replayed as if it were
    posted ahead, the step is shorter by 3 %, and without a slow link by another tenth of what that costs."""
    job = PipelineJob(steps=3, micro_batches=9, gpipe=gpipe, slow_links={0: factor} if factor > 1 else {})
    operations = make_operations(job)
    graph, replay = connect(operations)
    assert replay.compute_steps(graph.work_ns) == pytest.approx(measure_steps(operations), rel=1e-9)


def test_receives_that_are_posted_ahead_do_not() -> None:
    """Worker 1 posts its second receive at 21, while it computes its first backward until 41."""
    graph, _ = connect(make_table(HAND))
    inside = graph.operations
    (late,) = np.flatnonzero((inside.kind == NUMBERS[Kind.FORWARD_RECV]) & (inside.number == 1))
    (backward,) = np.flatnonzero((inside.kind == NUMBERS[Kind.BACKWARD]) & (inside.number == 0) & (inside.stage == 1))
    assert backward not in graph.waits_for[late]


def post_all_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the published rules alone hold, by which no worker posts its receives in turn."""
    monkeypatch.setattr(graph_module, "AHEAD_RATIO", -1.0)


def test_a_real_job_of_eight_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    operations, published_s = read_operations(DATA / "pipeline_8steps.parquet"), np.array([*CUT_NODELAY_S.values()])
    graph, replay = connect(operations)
    assert graph.steps.tolist() == list(CUT_NODELAY_S)
    replayed_s = replay.compute_steps(graph.work_ns) / 1e9
    assert replayed_s == pytest.approx(published_s, rel=IN_TURN_RATIO)
    assert (published_s - 1e-6 < replayed_s).all() and (replayed_s < graph.base_ns / 1e9).all()
    post_all_ahead(monkeypatch)
    graph, replay = connect(operations)
    assert replay.compute_steps(graph.work_ns) / 1e9 == pytest.approx(published_s, rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the published jobs are not here")
@pytest.mark.parametrize(("name", "in_turn_ratio"), [("AR", 1e-4), ("ST", IN_TURN_RATIO)])
def test_published_slowdowns(name: str, in_turn_ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the published rules, and by ours, by which the replay is as near to what was recorded, or nearer."""
    published = json.loads((SHARED / f"published-{name}.json").read_text())
    operations = read_operations(SHARED / f"trace-{name}.parquet")
    for ratio in (in_turn_ratio, 1e-4):
        report = report_operations(operations, name)
        assert report.slowdown_ratio == pytest.approx(published["blocking_slowdown"], rel=ratio)
        assert report.launch_ratio == pytest.approx(published["launch_slowdown"], rel=ratio)
        assert 1 <= report.launch_ratio <= published["launch_slowdown"] + 1e-6
        assert report.step_ns.value / 1e9 == pytest.approx(np.mean([*published["step_t_base"].values()]), rel=1e-6)
        for by, key in (("dp", "dp_rank"), ("stage", "stage"), ("kind", "optype")):
            found = {item.name: item.slowdown_ratio for item in report.slowdowns if item.by == by}
            assert found == pytest.approx(published[f"blocking_decompose_by_{key}"], rel=ratio), by
        post_all_ahead(monkeypatch)


def test_a_step_without_end_is_refused() -> None:
    count = 12_000
    kinds = np.tile([NUMBERS[Kind.FORWARD], NUMBERS[Kind.BACKWARD]], count).astype(np.int8)
    zeros, at = np.zeros(2 * count, dtype=np.int64), np.arange(2 * count)
    operations = Operations(
        replica=zeros, stage=zeros, rank=zeros, step=zeros, kind=kinds, start_ns=1e6 * at,
        duration_ns=np.full(2 * count, 1e6), number=at // 2, chunk=zeros, micro_batch=at // 2,
    )  # fmt: skip
    with pytest.raises(TableError, match="more than 20,000 operations of a step wait for each other"):
        connect(operations)
