"""What the numbers stand on: ranks, steps, losses and notes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.facts.run import Run, name_ranks
from distprof.report.report import Coverage
from tests.factories import USUAL_NS, drop_rows, make_run

PLAN = {"train": {"steps": 3, "warmup_steps": 1}}


def cover(run: Run) -> Coverage:
    return analyze(run).coverage


def test_a_whole_run_is_complete() -> None:
    facts = cover(make_run(meta={"config": PLAN}))
    assert facts.complete
    assert (facts.world_size, facts.ranks_present, facts.ranks_missing) == (2, (0, 1), ())
    assert (facts.steps_measured, facts.steps_warmup, facts.steps_planned) == (3, 1, 4)
    assert (facts.rows_lost, facts.segments_lost, facts.clocks, facts.notes) == (0, 0, ("host",), ())


INCOMPLETE: dict[str, dict[str, Any]] = {
    "a rank failed": {"infos": {1: {"ended": "failed"}}},
    "a rank is silent": {"infos": {0: {"ended": None}}},
    "rows lost": {"infos": {1: {"rows_lost": 1}}},
    "a rank has no stream": {"meta": {"world_size": 3}},
    "steps to come": {"meta": {"config": {"train": {"steps": 4, "warmup_steps": 1}}}},
    "no steps": {"num_steps": 0},
}


@pytest.mark.parametrize("changes", INCOMPLETE.values(), ids=INCOMPLETE)
def test_incomplete_runs(changes: dict[str, Any]) -> None:
    assert not cover(make_run(**changes)).complete


def test_a_hole_in_one_rank_is_incomplete_and_noted() -> None:
    facts = cover(drop_rows(make_run(num_steps=6), 1, 2, 3))
    assert not facts.complete
    assert facts.steps_measured == 3
    assert "2 measured step(s) were not reported whole by every rank present and are left out" in facts.notes


def test_a_rank_whose_input_ended_first_is_said_to_have_completed() -> None:
    facts = cover(drop_rows(make_run(num_steps=6), 1, 4, 5))
    assert (
        "2 measured step(s) were not reported whole by every rank present, of which rank 1 completed and took none "
        "after step 3, and are left out"
    ) in facts.notes
    failed = cover(drop_rows(make_run(num_steps=6, infos={1: {"ended": "failed"}}), 1, 4, 5))
    assert not any("took none" in note for note in failed.notes)


def test_missing_are_ranks_without_rows_or_without_an_end() -> None:
    infos = {1: {"ended": None}, 2: {"ended": "failed"}, 3: {"ended": "failed"}}
    run = drop_rows(make_run(num_ranks=4, infos=infos, meta={"world_size": 6}), 2, 0)
    facts = cover(run)
    assert facts.ranks_missing == (1, 2, 4, 5)
    assert facts.ranks_present == (0, 1, 3)


def test_a_rank_in_the_middle_may_be_absent() -> None:
    run = make_run(num_ranks=3, host_ns={"forward": np.array([[10], [20], [30]])})
    run = structs.replace(run, rows=run.rows[[0, 2]], ranks=(run.ranks[0], run.ranks[2]))
    report = analyze(run)
    assert report.coverage.ranks_missing == (1,)
    assert report.phases[0].spread_ns.max_rank == 2
    assert report.headline.busiest is not None and report.headline.busiest.rank == 2


def test_losses_are_summed() -> None:
    lost = np.array([[1, 0, 2, 0], [0, 0, np.nan, 4]])
    facts = cover(make_run(columns={"segments_lost": lost}, infos={0: {"rows_lost": 2}, 1: {"rows_lost": 3}}))
    assert (facts.rows_lost, facts.segments_lost) == (5, 7)


def test_notes_come_once_with_the_ranks_that_made_them() -> None:
    infos = {rank: {"notes": ("everywhere",)} for rank in range(4)}
    infos[0] = infos[1] = infos[3] = {"notes": ("everywhere", "here and there")}
    run = make_run(num_ranks=4, infos=infos, meta={"notes": ("shortened", "shortened")}, warnings=("damaged",))
    assert cover(run).notes == ("shortened", "damaged", "everywhere", "ranks 0-1, 3: here and there")


def test_ranks_that_share_a_gpu_are_noted_once() -> None:
    uuids = {rank: {"device_uuid": f"GPU-{rank // 2}" if rank < 4 else f"GPU-{rank}"} for rank in range(6)}
    run = make_run(num_ranks=6, infos=uuids)
    assert cover(run).notes == (
        "ranks share a GPU (ranks 0-1; ranks 2-3): device times include the other ranks' turns",
    )
    own = "4 ranks share 2 GPU(s): device times include the other ranks' turns"
    assert cover(make_run(num_ranks=6, infos=uuids, meta={"notes": (own,)})).notes == (own,)
    assert cover(make_run(num_ranks=2, infos={rank: {"device_uuid": f"GPU-{rank}"} for rank in range(2)})).notes == ()


def test_failed_steps_are_noted() -> None:
    failed = np.zeros((2, 4))
    failed[1, 3] = 1
    facts = cover(make_run(columns={"failed": failed}))
    assert facts.notes[0] == "1 step(s) failed on some rank and are left out"
    assert facts.steps_measured == 2


def test_ranks_that_never_met_are_noted() -> None:
    alone = {"all_reduce_count": 0, "all_reduce_bytes": 0}
    assert "no collective was seen" in cover(make_run(columns=alone)).notes[0]
    between = {"between_count": np.arange(4) % 2}  # as where parameters are averaged after every second step
    assert not any("no collective" in note for note in cover(make_run(columns={**alone, **between})).notes)
    assert cover(make_run(num_ranks=1, columns=alone)).notes == ()
    assert cover(make_run(columns=alone, infos={0: {"point_to_point": True}})).notes == ()  # the stages of a pipeline


@pytest.mark.parametrize(
    "config", [{}, {"train": None}, {"train": {"steps": 3}}, {"train": {"steps": "3", "warmup_steps": 1}}]
)
def test_without_a_plan_nothing_is_planned(config: dict[str, Any]) -> None:
    assert cover(make_run(meta={"config": config})).steps_planned is None


@pytest.mark.parametrize(
    ("ranks", "name"),
    [([3], "rank 3"), ([2, 0, 1], "ranks 0-2"), ([0, 1, 5, 7, 8], "ranks 0-1, 5, 7-8"), ([1, 3], "ranks 1, 3")],
)
def test_ranks_are_named_in_few_words(ranks: list[int], name: str) -> None:
    assert name_ranks(ranks) == name


def test_every_number_says_where_it_comes_from() -> None:
    two_clocks = analyze(make_run(num_ranks=2, num_steps=12, device_ns=USUAL_NS)).coverage.sources
    assert two_clocks == (
        "phases (device clock): CUDA events at phase boundaries on the compute stream, read later",
        "phases (host clock): timestamps at phase boundaries",
        "verdict and what-if: own times and waits of the step as a whole, device clock, 11 steps",
    )
    simulated = analyze(simulate(SimulatedJob(num_steps=20, num_warmup=2), seed=1).run).coverage.sources
    assert simulated == (
        "phases (host clock): timestamps at phase boundaries",
        "waits and transfers: every rank's host stamps of each collective, 1 group(s), 18 of 18 measured steps",
        "verdict and what-if: own times and waits of each collective, host clock, 18 steps",
        "host clocks: compared with rank 0's, 2 reading(s)",
    )
    assert analyze(make_run(num_ranks=1, host_ns={"forward": np.nan})).coverage.sources == ()
