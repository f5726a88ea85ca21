"""A rank that is late because an all-to-all brings it more tokens: made-up jobs whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.causes.unequal_experts import find_unequal_experts
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.facts.arrays import FloatArray
from distprof.facts.run import CollectiveKind, Collectives, Phase, Run
from distprof.render.sections.verdict import describe_verdict, list_waits
from distprof.render.summary.next_step import describe_next
from distprof.report.late_reasons import ReceivedMore
from distprof.report.wait_report import VerdictKind
from tests.factories import MS, make_run
from tests.made_causes import make_cause, make_verdict

RANKS, STEPS = 4, 30
EXPERT_NS_PER_BYTE = 10.0


def make_job(
    shares: tuple[float, ...] = (1, 1, 2.1, 1), *, varied: float = 0.1, slow: tuple[float, ...] = (1, 1, 1, 1),
    follows: bool = True, seed: int = 1,
) -> Run:  # fmt: skip
    """A dispatch that brings ranks these shares of 1 MB, experts that take 10 ns for a byte, and what brings it back.

    Args:
        shares: What ranks get.
        varied: By how much that changes from step to step.
        slow: By what factor ranks are slow.
        follows: Whether experts take longer for more.
        seed: Draws the bytes and the noise.
    """
    draws = np.random.default_rng(seed)
    got = np.rint(1e6 * np.array(shares)[:, None] * (1 + varied * draws.uniform(-1, 1, (RANKS, STEPS))))
    tokens = got if follows else np.full_like(got, 1e6)
    work_ns = tokens * EXPERT_NS_PER_BYTE * np.array(slow)[:, None] * (1 + 0.01 * draws.normal(size=got.shape))
    return make_run_of(got, work_ns)


def make_run_of(got: FloatArray, work_ns: FloatArray) -> Run:
    begin_ns = 10.0**12 + 100 * MS * np.arange(STEPS)
    arrival_ns = np.stack([np.broadcast_to(begin_ns, work_ns.shape), begin_ns + MS + work_ns], axis=2)
    end_ns = np.stack(
        [arrival_ns[:, :, 0] + MS, np.broadcast_to(arrival_ns[:, :, 1].max(axis=0) + MS, got.shape)], axis=2
    )
    table = Collectives(
        group="ep", ranks=np.arange(RANKS), size=RANKS, kinds=(CollectiveKind.ALL_TO_ALL,) * 2,
        phases=(Phase.FORWARD,) * 2, sizes_bytes=(None, None), steps=np.arange(STEPS), arrival_ns=arrival_ns,
        end_ns=end_ns, exposed_ns=end_ns - arrival_ns, received_bytes=np.stack([got, np.full_like(got, 1e6)], axis=2),
    )  # fmt: skip
    return structs.replace(make_run(num_ranks=RANKS, num_steps=STEPS), collectives=(table,))


def find(run: Run, rank: int = 2, late_ms: float = 11.0) -> ReceivedMore | None:
    cause = make_cause(VerdictKind.SLOW_RANK, 20, rank=rank, phase="forward", late_ns=late_ms * MS)
    return find_unequal_experts(choose_measured_steps(run), make_verdict(cause))


@pytest.mark.parametrize("varied", [0.0, 0.1])
def test_a_rank_whose_experts_get_more_is_not_slow(varied: float) -> None:
    found = find(make_job(varied=varied))
    assert found is not None and (found.group, found.phase) == ("ep", "forward")
    assert found.more_ratio == pytest.approx(2.1, rel=0.03)
    assert found.extra_ns == pytest.approx(11 * MS, rel=0.05)


SILENT: dict[str, Run] = {
    "a slow rank with equal tokens": make_job((1, 1, 1, 1), slow=(1, 1, 2, 1)),
    "more tokens that cost no time, on a slow rank": make_job(follows=False, slow=(1, 1, 2, 1)),
    "a slow rank with a few more": make_job((1, 1, 1.1, 1), varied=0.0, slow=(1, 1, 3, 1)),
    "another rank has more": make_job((1, 2.1, 1, 1)),
    "more in half of the steps": make_job((1, 1, 1.1, 1), varied=0.9),
}


@pytest.mark.parametrize("run", SILENT.values(), ids=SILENT)
def test_otherwise_the_rank_is_slow(run: Run) -> None:
    assert find(run) is None


def test_it_must_explain_most_of_what_the_rank_is_late_by() -> None:
    assert find(make_job(), late_ms=21.0) is not None and find(make_job(), late_ms=23.0) is None


def test_it_is_said_and_what_each_rank_gets_is_shown() -> None:
    run = make_job(varied=0.0)
    report = analyze(run)
    (row,) = list_waits(report)
    assert row[0] == "all_to_all in forward" and row[3] == "1.9 MiB to 3.0 MiB"  # two of them, in a step
    verdict = make_verdict(make_cause(VerdictKind.SLOW_RANK, 20, rank=2, phase="forward", late_ns=11.0 * MS))
    verdict = structs.replace(verdict, received=find(run))
    said = structs.replace(report, verdict=verdict)
    sentence = describe_verdict(said)
    assert "experts of rank 2 get 2.1 times the tokens of the others (all_to_all in forward): it is 11.0 ms" in sentence
    assert "giving all as many makes" in sentence and "balance what the experts get" in describe_next(said)
