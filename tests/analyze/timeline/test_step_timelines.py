"""Which steps are shown, of whom, and where things lie in the picture."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from distprof.analyze import analyze
from distprof.analyze.timeline.step_timelines import MAX_LANES
from distprof.facts.mesh import RankGroup
from distprof.facts.run import COLUMN, PHASE_CODE, Phase, Run
from distprof.facts.segments import Segments
from distprof.report.step_timeline import STEP, WAIT, StepChoice, StepTimeline
from tests.factories import MS, keep_segments, make_run
from tests.render.files.test_timeline_file import make_pipeline_run, make_table


def make_kept_run(num_ranks: int = 2, num_steps: int = 5, **changes: object) -> Run:
    """Steps of 100 ms but for the last, of 150, with a forward of 40 ms and the rest in backward."""
    long_ms = np.full(num_steps, 100)
    long_ms[-1] = 150
    run = make_run(
        num_ranks=num_ranks, num_steps=num_steps, num_warmup=1,
        host_ns={"forward": 40 * MS, "backward": (long_ms - 40) * MS}, **changes,  # type: ignore[arg-type]
    )  # fmt: skip
    codes = (PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.BACKWARD])
    begins_ns = run.column("begin_host_ns")
    segments = {
        (rank, step): Segments(
            begin_ns=int(begins_ns[rank, step]), codes=codes,
            durations_ns=(40 * MS, (int(long_ms[step]) - 40) * MS),
        )
        for rank in range(num_ranks) for step in range(num_steps)
    }  # fmt: skip
    return replace(run, segments=keep_segments(segments))


def get(run: Run, choice: StepChoice) -> StepTimeline:
    (found,) = [each for each in analyze(run).timelines if each.choice is choice]
    return found


def test_the_usual_step_and_the_longest() -> None:
    typical, worst = analyze(make_kept_run()).timelines
    assert (typical.choice, typical.step, typical.step_ns) == (StepChoice.TYPICAL, 1, 100 * MS)
    assert (worst.choice, worst.step, worst.step_ns, worst.of_all) == (StepChoice.WORST, 4, 150 * MS, True)
    assert worst.span_ns == 150 * MS and worst.bound_ns == 0.0
    blocks = worst.lanes[1].blocks
    assert [*zip(blocks.kinds, blocks.begin_ns, blocks.end_ns, strict=True)] == [
        ("forward", 0, 40 * MS), ("backward", 40 * MS, 150 * MS),
    ]  # fmt: skip


def test_a_step_that_was_not_kept_gives_way_to_one_that_was() -> None:
    run = make_kept_run()
    kept = {key: segments for key, segments in run.segments.items() if key != (1, 4)}
    (timeline,) = analyze(replace(run, segments=keep_segments(kept))).timelines
    assert timeline.step == 1, "of those that were kept none is longer"
    kept = {key: segments for key, segments in run.segments.items() if key[1] in (2, 4) and key != (1, 4)}
    (timeline,) = analyze(replace(run, segments=keep_segments(kept))).timelines
    assert timeline.step == 2 and not timeline.of_all


def test_a_step_whose_number_is_lost_gives_way_to_one_that_has_it() -> None:
    run = make_kept_run()
    rows = run.rows.copy()
    rows[0, 4, COLUMN["step"]] = np.nan
    assert [timeline.step for timeline in analyze(replace(run, rows=rows)).timelines] == [1]


def test_a_step_without_phases_is_one_block() -> None:
    timeline = get(replace(make_kept_run(), segments=keep_segments({})), StepChoice.WORST)
    assert timeline.lanes[0].blocks.kinds == (STEP,) and timeline.lanes[0].blocks.end_ns == (150 * MS,)


def test_arrivals_and_the_last_of_them() -> None:
    run = make_kept_run(num_ranks=3)
    table = make_table(run, [[45], [70], [60]], [[82], [81], [80]])
    (collective,) = get(replace(run, collectives=(table,)), StepChoice.TYPICAL).collectives
    assert collective.arrival_ns == (45 * MS, 70 * MS, 60 * MS) and collective.end_ns[0] == 82 * MS
    assert collective.last_arrival_ns == 70 * MS
    partly = replace(table, size=4)
    (collective,) = get(replace(run, collectives=(partly,)), StepChoice.TYPICAL).collectives
    assert collective.last_arrival_ns is None, "one that is not here may have come later"


def test_hosts_whose_clocks_are_not_known_begin_at_their_own_zero() -> None:
    run = make_kept_run(infos={1: {"host": "elsewhere"}})
    rows = run.rows.copy()
    kept = {
        (rank, step): replace(each, begin_ns=each.begin_ns + rank * 10**9)
        for (rank, step), each in run.segments.items()
    }
    timeline = get(replace(run, rows=rows, segments=keep_segments(kept)), StepChoice.TYPICAL)
    assert timeline.bound_ns is None
    assert [lane.blocks.end_ns[-1] - lane.blocks.begin_ns[0] for lane in timeline.lanes] == [100 * MS] * 2
    assert timeline.lanes[0].blocks.begin_ns[0] == 0


def test_a_pipeline_by_micro_batch_with_waits_and_transfers() -> None:
    timeline = get(make_pipeline_run(), StepChoice.TYPICAL)
    assert [(lane.rank, lane.replica, lane.stage) for lane in timeline.lanes] == [(0, 0, 0), (1, 0, 1)]
    blocks = timeline.lanes[0].blocks
    drawn = [*zip(blocks.kinds, blocks.micro_batches, blocks.begin_ns, blocks.end_ns, strict=True)]
    assert drawn[:4] == [
        ("forward", 0, 0, 10 * MS), ("forward", 1, 12 * MS, 22 * MS), (WAIT, None, 23 * MS, 33 * MS),
        ("backward", 0, 33 * MS, 53 * MS),
    ]  # fmt: skip
    transfers = timeline.transfers
    sent = [
        *zip(
            transfers.sources, transfers.targets, transfers.begin_ns, transfers.end_ns, transfers.backward, strict=True
        )
    ]
    assert sent == [
        (0, 1, 10 * MS, 11 * MS, False), (0, 1, 22 * MS, 34 * MS, False),
        (1, 0, 32 * MS, 33 * MS, True), (1, 0, 64 * MS, 65 * MS, True),
    ]  # fmt: skip


@pytest.mark.parametrize("num_ranks", [MAX_LANES, 200])
def test_of_many_ranks_the_slowest_and_the_usual_are_shown(num_ranks: int) -> None:
    forward = np.full((num_ranks, 1), 20 * MS)
    forward[37] = 90 * MS
    run = make_run(num_ranks=num_ranks, num_steps=6, host_ns={"forward": forward, "backward": 40 * MS})
    timeline = get(run, StepChoice.TYPICAL)
    shown = [lane.rank for lane in timeline.lanes]
    assert 37 in shown and shown == sorted(shown)  # type: ignore[type-var]
    assert (len(shown), timeline.lanes_left_out) == (MAX_LANES, num_ranks - MAX_LANES)


def test_lanes_are_in_the_order_of_their_coordinates() -> None:
    tp = [RankGroup(name="tp", ranks=ranks) for ranks in ((3, 1), (2, 0))]
    dp = [RankGroup(name="dp", ranks=ranks) for ranks in ((3, 2), (1, 0))]
    report = analyze(make_kept_run(num_ranks=4, meta={"groups": (*tp, *dp)}))
    assert report.mesh is not None and report.mesh.coordinates == ((1, 1), (1, 0), (0, 1), (0, 0))
    assert [lane.rank for lane in report.timelines[0].lanes] == [3, 2, 1, 0]


def test_the_longest_steps_say_which_rank_took_longer_in_what() -> None:
    forward_ms = np.full((3, 30), 40)
    forward_ms[1, 7], forward_ms[2, 20] = 140, 70
    run = make_run(
        num_ranks=3, num_steps=30, num_warmup=2, host_ns={"forward": forward_ms * MS, "backward": 50 * MS},
        columns={"between_after_host_ns": 0},
    )  # fmt: skip
    found = analyze(run).longest_steps
    assert [(each.step, each.rank, each.phase, each.more_ns) for each in found] == [
        (7, 1, "forward", 100 * MS), (20, 2, "forward", 30 * MS),
    ]  # fmt: skip
    assert found[0].usual_ns == 90 * MS and found[0].step_ns > found[1].step_ns
    assert analyze(replace(run, rows=np.full_like(run.rows, np.nan))).longest_steps == ()


def test_exposed_communication_is_waiting_until_the_last_rank_arrives() -> None:
    """Ranks arrive after 50 and 70 ms and wait from the end of their backward on."""
    run = make_run(
        num_ranks=2, num_steps=3, host_ns={"backward": [[60 * MS], [70 * MS]], "all_reduce": [[40 * MS], [30 * MS]]}
    )
    codes = (PHASE_CODE[Phase.BACKWARD], PHASE_CODE[Phase.ALL_REDUCE])
    kept = {
        (rank, step): Segments(
            begin_ns=int(run.column("begin_host_ns")[rank, step]), codes=codes, durations_ns=durations_ns
        )
        for rank, durations_ns in enumerate(((60 * MS, 40 * MS), (70 * MS, 30 * MS))) for step in range(3)
    }  # fmt: skip
    table = make_table(run, [[50], [70]], [[99], [99]])
    first, second = get(replace(run, segments=keep_segments(kept), collectives=(table,)), StepChoice.TYPICAL).lanes
    assert [*zip(first.blocks.kinds, first.blocks.end_ns, strict=True)] == [
        ("backward", 60 * MS), (WAIT, 70 * MS), ("all_reduce", 100 * MS),
    ]  # fmt: skip
    assert second.blocks.kinds == ("backward", "all_reduce"), "it came last"
