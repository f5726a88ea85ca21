"""Pipelines whose schedule is played here, with times that can be computed by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze.cycles.pipeline_operations import PipelineOperations, list_operations
from distprof.analyze.make_report import analyze
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.facts.micro_batches import OPERATION_CODE, OperationKind, RankOperations
from distprof.facts.operations import KINDS
from distprof.facts.run import COLUMN, Run
from distprof.render.sections.pipeline import describe_shape, list_pipeline, show_pipeline
from distprof.render.sections.sections import list_sections
from distprof.report.pipeline_report import PipelineReport
from tests.factories import make_run

FORWARD, BACKWARD, WEIGHT, SEND, RECEIVE, WAIT = (OPERATION_CODE[kind] for kind in OperationKind)
F_NS, B_NS = 1000, 2000
Row = tuple[int, int, int, int, int, float, float, float]
"""Step, kind, micro-batch, other rank, tag, begin, duration, waiting."""


def order_gpipe(stage: int, stages: int, batches: int) -> list[tuple[int, int]]:
    return [*((FORWARD, batch) for batch in range(batches)), *((BACKWARD, batch) for batch in range(batches))]


def order_1f1b(stage: int, stages: int, batches: int) -> list[tuple[int, int]]:
    ahead = min(batches, stages - stage)
    forwards, backwards = (
        [(FORWARD, batch) for batch in range(batches)],
        [(BACKWARD, batch) for batch in range(batches)],
    )
    mixed = [each for pair in zip(backwards, [*forwards[ahead:], None], strict=False) for each in pair if each]
    return [*forwards[:ahead], *mixed, *backwards[len(mixed) - (batches - ahead) :]]


def play(
    stages: int, batches: int, order: Callable[[int, int, int], list[tuple[int, int]]], *, steps: int = 12,
    slow_ns: Sequence[int] = (), first_rank: int = 0, transfer_ns: float = 0.0,
) -> list[list[Row]]:  # fmt: skip
    """The operations of each stage, which waits where it receives; sends take a stage no time."""
    now_ns, rows = [0.0] * stages, [list[Row]() for _ in range(stages)]
    for step in range(steps):
        todo = [order(stage, stages, batches) for stage in range(stages)]
        there: dict[tuple[int, int, int], float] = {}
        while any(todo):
            for stage in range(stages):
                while todo[stage]:
                    kind, batch = todo[stage][0]
                    source, target = (stage - 1, stage + 1) if kind == FORWARD else (stage + 1, stage - 1)
                    if 0 <= source < stages and (kind, batch, stage) not in there:
                        break
                    todo[stage].pop(0)
                    if 0 <= source < stages:
                        waited = max(there[kind, batch, stage] - now_ns[stage], 0.0)
                        rows[stage].append((step, RECEIVE, -1, source + first_rank, 0, now_ns[stage], waited, waited))
                        now_ns[stage] += waited
                    lasted = (F_NS if kind == FORWARD else B_NS) + (slow_ns[stage] if slow_ns else 0)
                    rows[stage].append((step, kind, batch, -1, 0, now_ns[stage], lasted, 0))
                    now_ns[stage] += lasted
                    if 0 <= target < stages:
                        rows[stage].append((step, SEND, -1, target + first_rank, 0, now_ns[stage], 0, 0))
                        there[kind, batch, target] = now_ns[stage] + transfer_ns
    return rows


def make_operations(rows: Sequence[Row]) -> RankOperations:
    table = np.array(rows, dtype=np.float64).T
    step, kind, micro_batch, peer, tag = table[:5].astype(np.int64)
    return RankOperations(
        step=step, kind=kind, micro_batch=micro_batch, stage=np.full(len(step), -1), peer=peer, tag=tag,
        size_bytes=np.full(len(step), 64), start_ns=10.0**9 + table[5], duration_ns=table[6], waited_ns=table[7],
        on_device=np.zeros(len(step), dtype=bool),
    )  # fmt: skip


def make_job(rows: Sequence[Sequence[Row]], *, steps: int = 12) -> Run:
    run = make_run(num_ranks=len(rows), num_steps=steps)
    return structs.replace(run, operations=tuple(map(make_operations, rows)))


def report(run: Run) -> PipelineReport:
    found = analyze(run).pipeline
    assert found is not None
    return found


def list_all(run: Run) -> PipelineOperations:
    found = list_operations(choose_measured_steps(run))
    assert found is not None
    return found


@pytest.mark.parametrize("order", [order_gpipe, order_1f1b])
@pytest.mark.parametrize(("stages", "batches"), [(2, 1), (2, 4), (4, 8), (8, 3)])
def test_where_stages_are_equal_the_bubble_is_that_of_the_schedule(
    order: Callable[[int, int, int], list[tuple[int, int]]], stages: int, batches: int
) -> None:
    rows = [[row for row in own if row[0] > 0] for own in play(stages, batches, order)]  # the first step is filled
    found = report(make_job(rows))
    theory = (stages - 1) / (batches + stages - 1)
    assert (found.num_stages, found.micro_batches, found.replicas, found.notes) == (stages, batches, 1, ())
    assert found.theory_ratio == pytest.approx(theory) == found.bubble_ratio
    for at, stage in enumerate(found.stages):
        assert (stage.rank, stage.stage, stage.chunks, stage.micro_batches) == (at, at, 1, batches)
        assert (stage.forward_ns, stage.backward_ns) == (batches * F_NS, batches * B_NS)
        assert stage.waiting_ns == pytest.approx((stages - 1) * (F_NS + B_NS))
        assert stage.late_sender_ns == pytest.approx(stage.waiting_ns) and stage.transfer_ns == pytest.approx(0)


def test_warm_up_steady_state_and_cool_down_by_hand() -> None:
    """Two ranks and two micro-batches: rank 1 first waits for the forward, then for a collective at the end."""
    first: list[Row] = []
    second: list[Row] = []
    for step in range(12):
        at = step * 100.0
        first += [
            (step, FORWARD, 0, -1, 0, at, 10, 0), (step, SEND, -1, 1, 0, at + 10, 4, 1),
            (step, BACKWARD, 0, -1, 0, at + 40, 20, 5),
        ]  # fmt: skip
        second += [
            (step, RECEIVE, -1, 0, 0, at + 3, 11, 11), (step, FORWARD, 0, -1, 0, at + 14, 6, 0),
            (step, BACKWARD, 0, -1, 0, at + 20, 9, 0), (step, WAIT, -1, -1, 0, at + 40, 25, 25),
        ]  # fmt: skip
    one, two = report(make_job([first, second])).stages
    assert (two.warmup_ns, two.steady_ns, two.cooldown_ns) == (11, 0, 25)
    assert (two.late_sender_ns, two.late_receiver_ns, two.transfer_ns) == (7, 0, 4)  # sent at 10, waited from 3 to 14
    assert two.bubble_ratio == pytest.approx(36 / 51)
    assert (one.forward_ns, one.backward_ns, one.steady_ns, one.waiting_ns) == (10, 15, 1, 1)
    assert (one.late_sender_ns, one.late_receiver_ns, one.transfer_ns) == (0, 0, 1)


@pytest.mark.parametrize("known", [True, False])
def test_on_devices_the_clocks_of_the_devices_are_compared(known: bool) -> None:
    """Each device's clock has a zero of its own. Where no reading relates it to its host's, waits are not split."""
    run = make_job(play(2, 4, order_1f1b, transfer_ns=5))
    zeros_ns = [3e12, 9e12]
    timed = [
        structs.replace(own, start_ns=own.start_ns + zero_ns, on_device=np.ones_like(own.step, dtype=bool))
        for own, zero_ns in zip(run.operations, zeros_ns, strict=True) if own is not None
    ]  # fmt: skip
    if known:
        at_ns = np.array([10.0**9, 2 * 10.0**9])
        for position, zero_ns in enumerate(zeros_ns):
            run.rows[position, :2, COLUMN["anchor_host_ns"]] = at_ns
            run.rows[position, :2, COLUMN["anchor_device_ns"]] = at_ns + zero_ns
            run.rows[position, :2, COLUMN["anchor_bound_ns"]] = 0.1
    on_host, found = report(run), report(structs.replace(run, operations=tuple(timed)))
    assert (on_host.clock, found.clock, found.notes) == ("host", "device", ())
    for one, other in zip(on_host.stages, found.stages, strict=True):
        same = ("stage", "forward_ns", "backward_ns", "waiting_ns", "warmup_ns", "steady_ns", "cooldown_ns")
        assert [getattr(other, name) for name in same] == pytest.approx([getattr(one, name) for name in same])
        assert other.late_sender_ns == (pytest.approx(one.late_sender_ns, abs=5) if known else None)
    assert found.bubble_ratio == pytest.approx(on_host.bubble_ratio)


def test_a_sender_waits_for_a_receiver_that_is_not_ready() -> None:
    first: list[Row] = []
    second: list[Row] = []
    for step in range(12):
        at = step * 100.0
        first += [(step, FORWARD, 0, -1, 0, at, 10, 0), (step, SEND, -1, 1, 0, at + 10, 30, 28)]
        first += [(step, BACKWARD, 0, -1, 0, at + 41, 9, 0)]
        second += [(step, RECEIVE, -1, 0, 0, at + 35, 5, 5), (step, FORWARD, 0, -1, 0, at + 40, 6, 0)]
        second += [(step, BACKWARD, 0, -1, 0, at + 50, 9, 0)]
    one, two = report(make_job([first, second])).stages
    assert (one.late_sender_ns, one.late_receiver_ns, one.transfer_ns) == (0, 23, 5)
    assert (two.late_sender_ns, two.transfer_ns) == (0, 5)


def test_every_send_has_its_receive_with_the_micro_batch_and_the_direction() -> None:
    found = list_all(make_job(play(3, 4, order_1f1b, transfer_ns=7)))
    names = np.array([kind.value for kind in KINDS])[found.kind]
    for direction in ("forward", "backward"):
        sends, receives = (np.flatnonzero(names == f"{direction}-{what}") for what in ("send", "recv"))
        assert len(sends) == len(receives) == 2 * 4 * 11  # the first step is warm-up
        other = found.partner[sends]
        assert sorted(other.tolist()) == receives.tolist() and (found.partner[other] == sends).all()
        assert (found.micro_batch[sends] == found.micro_batch[other]).all() and (found.micro_batch[sends] >= 0).all()
        assert (found.peer[sends] == found.rank[other]).all() and (found.step[sends] == found.step[other]).all()
        assert (found.start_ns[other] + found.duration_ns[other] >= found.start_ns[sends] + 7).all()
    assert found.pp.tolist() == found.rank.tolist() and set(found.dp.tolist()) == set(found.tp.tolist()) == {0}


def test_replicas_are_ranks_that_send_to_each_other() -> None:
    rows = [*play(2, 3, order_gpipe), *play(2, 3, order_gpipe, first_rank=2)]
    found = report(make_job(rows))
    assert (found.num_stages, found.replicas) == (2, 2)
    assert [(stage.replica, stage.stage) for stage in found.stages] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def drop_a_send(rows: list[list[Row]], steps: Sequence[int] = range(4, 8)) -> str:
    for step in steps:
        rows[0].remove(next(row for row in rows[0] if row[0] == step and row[1] == SEND))
    return "their numbers differ"


def send_later(rows: list[list[Row]]) -> str:
    at = max(at for at, row in enumerate(rows[0]) if row[0] == 7 and row[1] == SEND)
    rows[0][at] = (*rows[0][at][:5], rows[0][at][5] + 10**6, *rows[0][at][6:])
    return "received before it was sent"


def count_steps_otherwise(rows: list[list[Row]]) -> str:
    """Rank 1 counts one more step: what it receives seems to be sent a step before, and to be answered before that."""
    rows[1] = [(row[0] + 1, *row[1:]) for row in rows[1] if row[0] < 11]
    return "received before it was sent"


def receive_from_anyone(rows: list[list[Row]]) -> str:
    rows[1] = [(*row[:3], -1, *row[4:]) if row[1] == RECEIVE else row for row in rows[1]]
    return "they take what any rank sends"


@pytest.mark.parametrize("spoil", [drop_a_send, send_later, count_steps_otherwise, receive_from_anyone])
def test_what_cannot_be_matched_is_not_and_the_report_says_why(spoil: Callable[[list[list[Row]]], str]) -> None:
    rows = play(2, 3, order_gpipe)
    why = spoil(rows)
    found = report(make_job(rows))
    assert any(why in note for note in found.notes)
    unknown = spoil in (count_steps_otherwise, receive_from_anyone)
    assert all((stage.late_sender_ns is None) == unknown for stage in found.stages)
    assert found.micro_batches == 3 and found.bubble_ratio is not None


def test_a_step_in_which_an_exchange_was_not_seen_is_left_out_and_the_others_are_judged() -> None:
    rows = play(2, 3, order_gpipe)
    drop_a_send(rows, steps=[6])
    found = report(make_job(rows))
    assert [stage.steps_used for stage in found.stages] == [10, 10]  # 12 without the warm-up step and that one
    assert found.notes == ("1 step(s) are left out, in which a rank sends more than another receives, or less",)
    assert found.judged


def test_steps_that_only_some_ranks_have_kept_are_left_out() -> None:
    rows = play(2, 3, order_gpipe)
    rows[1] = [row for row in rows[1] if row[0] % 2]
    found = report(make_job(rows))
    assert [stage.steps_used for stage in found.stages] == [6, 6]
    assert found.notes == ()


@pytest.mark.parametrize("lost", [subset for size in (1, 2, 3) for subset in itertools.combinations(range(4), size)])
@pytest.mark.parametrize("whole", [True, False])
def test_ranks_that_have_recorded_nothing_or_not_all_cost_no_report(lost: tuple[int, ...], whole: bool) -> None:
    """Of four stages, some have no operations, or those of the first four steps: what others sent them is there."""
    rows = play(4, 4, order_1f1b)
    run = make_job([[row for row in own if rank not in lost or row[0] < 4] for rank, own in enumerate(rows)])
    if whole:
        there = tuple(None if rank in lost else own for rank, own in enumerate(run.operations))
        run = structs.replace(run, operations=there)
    found = analyze(run)
    assert {stage.rank for stage in found.pipeline.stages} <= set(range(4)) if found.pipeline else whole
    assert list_sections(found, max_notes=9, note_limit=400)


def test_split_backwards_have_no_theory_and_count_as_backward() -> None:
    rows = play(2, 3, order_gpipe)
    rows[0] = [*rows[0], *((step, WEIGHT, 0, -1, 0, row_ns, 10, 0) for step, row_ns in find_ends(rows[0]))]
    found = report(make_job(rows))
    assert found.theory_ratio is None and any("zero-bubble" in note for note in found.notes)
    assert found.stages[0].backward_ns == 3 * B_NS + 10


def find_ends(rows: Sequence[Row]) -> list[tuple[int, float]]:
    return [(step, max(row[5] + row[6] for row in rows if row[0] == step)) for step in range(12)]


@pytest.mark.parametrize(("sent", "is_pipeline"), [(5, False), (75, False), (51, True)])
def test_what_is_exchanged_inside_a_forward_or_after_all_of_them_makes_no_pipeline(
    sent: int, is_pipeline: bool
) -> None:
    """As in sequence parallelism, or where ranks pass their gradients around in a ring."""
    rows: list[list[Row]] = [
        [
            row
            for step in range(12)
            for row in (
                (step, FORWARD, 0, -1, 0, step * 100.0, 50, 20),
                (step, SEND, -1, 1 - rank, 0, step * 100.0 + sent, 2, 2),
                (step, RECEIVE, -1, 1 - rank, 0, step * 100.0 + sent + 2, 2, 2),
                (step, BACKWARD, 0, -1, 0, step * 100.0 + 55, 20, 0),
            )
        ]
        for rank in range(2)
    ]
    found = analyze(make_job(rows))
    assert (found.pipeline is not None) == is_pipeline == ("pipeline" in found.verdict.reason)
    assert analyze(make_run(num_ranks=2, num_steps=12)).pipeline is None


def test_the_table_and_the_line_on_the_screen() -> None:
    run = make_job([[row for row in own if row[0] > 0] for own in play(4, 8, order_1f1b)])
    whole = analyze(run)
    (fact,) = list_pipeline(whole)
    assert fact.text == "4 stages, 8 micro-batches: bubble 27.3 % (equal stages: 27.3 %)"
    assert whole.pipeline is not None
    for chunks, text in (((2, 2, 2, 2), "4 ranks of 2 stages,"), ((2, 2, 1, 1), "4 ranks of 1 or 2 stages,")):
        stages = zip(whole.pipeline.stages, chunks, strict=True)
        changed = tuple(structs.replace(stage, chunks=number) for stage, number in stages)
        assert describe_shape(structs.replace(whole.pipeline, stages=changed)).startswith(text)
    section = show_pipeline(whole)
    assert [column.head for column in section.columns][:3] == ["rank", "stage", "micro-batches"]
    assert [row[1:3] for row in section.rows] == [(str(stage), "8") for stage in range(4)]
    assert show_pipeline(analyze(make_run(num_ranks=2, num_steps=12))).columns == ()
    many = show_pipeline(analyze(make_job(play(20, 2, order_gpipe))))
    assert len(many.rows) == 8 and "12 ranks" in many.notes[-1]


@pytest.mark.parametrize("kind", [SEND, RECEIVE, FORWARD])
def test_ranks_that_do_one_thing_only_are_no_pipeline(kind: int) -> None:
    rows: list[Row] = [(step, kind, -1, 0, 0, step * 100.0, 10, 5) for step in range(12)]
    assert analyze(make_job([rows, rows])).pipeline is None
