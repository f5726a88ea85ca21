"""What the verdict still says where ranks, collectives or steps are missing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.facts.run import Phase, Run
from distprof.render.sections.headline import describe_busiest
from distprof.render.sections.verdict import describe_verdict
from distprof.render.wandb.wandb_summary import make_summary
from tests.factories import MS, make_run


def test_with_a_rank_missing_nothing_is_critical() -> None:
    run = simulate(SimulatedJob(num_ranks=4, delays=(Delay(rank=2, phase=Phase.DATA, delay_ns=41 * MS),)), seed=3).run
    part = structs.replace(run, meta=structs.replace(run.meta, world_size=6))
    verdict = analyze(part).verdict
    assert verdict.rank == 2 and not verdict.critical and "missing" in verdict.reason
    assert (verdict.confirmed, analyze(run).verdict.confirmed) == (None, True)
    few = structs.replace(run, meta=structs.replace(run.meta, world_size=128))
    none = analyze(few).verdict
    assert (none.kind, none.rank, none.reason) == ("none", None, "4 of 128 ranks are present: too few to compare")


def lose_rank(run: Run, rank: int) -> Run:
    """The run without all that one rank wrote."""
    left = [place for place in range(len(run.ranks)) if place != rank]
    tables = tuple(
        structs.replace(
            table, ranks=np.arange(len(left)), arrival_ns=table.arrival_ns[left], end_ns=table.end_ns[left],
            exposed_ns=table.exposed_ns[left],
        )
        for table in run.collectives
    )  # fmt: skip
    return structs.replace(
        run, ranks=tuple(run.ranks[place] for place in left), rows=run.rows[left], collectives=tables
    )


def test_with_a_rank_missing_a_late_rank_is_late_and_nothing_is_said_of_what_it_costs() -> None:
    job = SimulatedJob(num_ranks=4, delays=(Delay(rank=2, phase=Phase.DATA, delay_ns=41 * MS),))
    report = analyze(lose_rank(simulate(job, seed=3).run, 0))
    verdict = report.verdict
    assert (verdict.kind, verdict.rank, verdict.phase, verdict.critical) == ("slow_rank", 2, "data", False)
    assert (verdict.lost_ns, verdict.lost_ratio, verdict.waited_ns, report.what_if) == (None, None, None, ())
    assert describe_verdict(report).endswith(
        "compared with the ranks present; what fixing it would gain is not known "
        "(ranks are missing: the slowest may be one of them)"
    )
    assert all(item.members_missing == 1 and item.transfer_ns is None for item in report.waits) and report.waits
    assert any("what a change would save is not known" in note for note in report.coverage.notes)
    summary = make_summary(report)
    assert summary["summary/verdict_rank"] == 2 and "summary/verdict_lost_ms" not in summary


def test_with_the_late_rank_missing_nobody_is_cleared() -> None:
    job = SimulatedJob(num_ranks=4, delays=(Delay(rank=2, phase=Phase.DATA, delay_ns=41 * MS),))
    report = analyze(lose_rank(simulate(job, seed=3).run, 2))
    assert (report.verdict.kind, report.verdict.rank, report.verdict.lost_ns) == ("none", None, None)
    assert describe_verdict(report) == "no verdict: 1 of 4 ranks is missing: the others may wait for one of them"
    assert describe_busiest(report).startswith("of the ranks present, ")


def test_where_collectives_are_not_seen_nobody_is_cleared_and_who_is_late_is_named() -> None:
    """Whoever waits in them seems to work, so that no rank may be late although one is."""
    unseen = {1: {"unseen_per_step": 2.0}}
    report = analyze(make_run(num_ranks=3, num_steps=20, infos=unseen))
    assert (report.verdict.kind, report.verdict.lost_ratio) == ("none", None)
    assert describe_verdict(report).startswith("no verdict: rank 1 issued 2 collectives a step that distprof did not")
    few = analyze(make_run(num_ranks=3, num_steps=20, infos={1: {"unseen_per_step": 0.1}}))
    assert few.verdict.lost_ratio is not None
    job = SimulatedJob(num_ranks=4, delays=(Delay(rank=2, phase=Phase.DATA, delay_ns=41 * MS),))
    run = simulate(job, seed=3).run
    infos = tuple(structs.replace(info, unseen_per_step=2.0) for info in run.ranks)
    late = analyze(structs.replace(run, ranks=infos))
    assert (late.verdict.kind, late.verdict.rank) == ("slow_rank", 2)


def test_where_ranks_send_point_to_point_nobody_is_named_and_nobody_cleared() -> None:
    """What a stage waits for there looks like its own work: the rank that seems late may be the one that waits."""
    job = SimulatedJob(num_ranks=4, delays=(Delay(rank=2, phase=Phase.DATA, delay_ns=41 * MS),))
    run = simulate(job, seed=3).run
    infos = tuple(structs.replace(info, point_to_point=info.rank == 1) for info in run.ranks)
    for given in (run, make_run(num_ranks=4, num_steps=20)):
        report = analyze(structs.replace(given, ranks=infos))
        assert (report.verdict.kind, report.verdict.rank, report.verdict.lost_ratio) == ("none", None, None)
        assert describe_verdict(report).startswith("no verdict: ranks send to each other point to point")
        assert report.headline.busiest is None and analyze(given).headline.busiest is not None


HIDDEN = {rank: {"unseen_per_step": 2.0} for rank in range(4)}


def hide(ranks: int, late: int, *, infos: Mapping[int, Mapping[str, float]] = HIDDEN, waits: float = 30.0) -> str:
    """A rank is late after its forward, and the others wait for it in backward, where that looks like work."""
    is_late, noise = np.arange(ranks)[:, None] == late, np.random.default_rng(1).normal(0, 0.3, (4, ranks, 30))
    times = {
        "forward": 20 + noise[0], "backward": 40 + noise[1] + np.where(is_late, 0, waits), "all_reduce": 5 + noise[2],
        "optimizer": 8, "other": 5 + noise[3] + np.where(is_late, 30, 0),
    }  # fmt: skip
    run = make_run(num_ranks=ranks, num_steps=30, host_ns={key: ms * MS for key, ms in times.items()}, infos=infos)
    found = analyze(run).verdict
    assert found.kind == "none" and "did not see" in found.reason
    return found.reason.partition("; ")[2]


def test_a_rank_that_only_the_others_hidden_waits_point_at_is_probably_late() -> None:
    said = hide(4, 2)
    assert (
        said.startswith("probably it is rank 2: it takes longer than all others in other, ") and "in backward" in said
    )
    assert hide(2, 1, infos={0: HIDDEN[0], 1: HIDDEN[1]}) == "", "of two ranks either may work and either wait"
    assert hide(4, 9) == hide(4, 2, waits=90.0) == "", "nobody, or another pattern"
    assert hide(4, 2, infos={**HIDDEN, 3: {"unseen_per_step": 5.0}}) == "", "whoever issues more may wait more"


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (make_run(num_ranks=1, num_steps=20), "one rank: nobody to wait for"),
        (make_run(num_ranks=4, num_steps=5), "4 measured steps: at least 8 are needed"),
        (make_run(num_ranks=4, num_steps=20, host_ns={"forward": 1 * MS}), "no waits were measured"),
        (make_run(num_ranks=0, num_steps=0, meta={"world_size": 4}), "no rank recorded a measured step"),
    ],
    ids=["alone", "few steps", "no waits", "no ranks"],
)
def test_where_nothing_can_be_said_the_reason_is(run: Run, reason: str) -> None:
    verdict = analyze(run).verdict
    assert (verdict.kind, verdict.rank, verdict.lost_ns) == ("none", None, None)
    assert verdict.reason.startswith(reason)
