"""What a change would buy: by hand on a simple run, and against jobs of other sizes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.report.wait_report import WhatIf
from tests.factories import MS, USUAL_NS, make_run


def list_changes(late_ms: float = 30) -> dict[str, WhatIf]:
    """Steps of 100 ms and the delay of rank 1 in ``data``, which three others wait for; 15 ms of transfer."""
    late = np.array([[0], [late_ms], [0], [0]]) * MS
    times = {**USUAL_NS, "data": 10 * MS + late, "all_reduce": 15 * MS + late.max() - late}
    return {item.change: item for item in analyze(make_run(num_ranks=4, num_steps=20, host_ns=times)).what_if}


def test_changes_by_hand() -> None:
    changes = list_changes()
    assert changes["rank 1 at normal speed"].step_ns == pytest.approx(100 * MS)
    assert changes["perfect overlap"].step_ns == pytest.approx(115 * MS)
    assert changes["no data wait"].step_ns == pytest.approx(
        90 * MS
    )  # neither the 40 ms of rank 1 nor the 10 of the others
    saved = changes["rank 1 at normal speed"].saved_ratio
    assert (saved.value, saved.high) == pytest.approx((30 / 130, 30 / 130))
    assert saved.low == pytest.approx(30 / 130 * 16 / 19)  # of 19 steps none hides the delay, so 3 of 19 may
    assert changes["perfect overlap"].rank_hours_per_day == pytest.approx(24 * 4 * 15 / 130)


def test_two_changes_to_one_rank_are_told_apart_by_their_parts() -> None:
    """Rank 1 is 30 ms late with its data in every step, and 40 ms with its optimizer in every fourth."""
    data, optimizer = np.array([[0], [30], [0], [0]]) * MS + np.zeros(41), np.zeros((4, 41))
    optimizer[1, ::4] = 40 * MS
    late = data + np.roll(optimizer, 1, axis=1)  # an optimizer is late for the collectives of the step after
    times = {**USUAL_NS, "data": 10 * MS + data, "optimizer": 5 * MS + optimizer,
             "all_reduce": 15 * MS + late.max(axis=0) - late}  # fmt: skip
    changes = [item.change for item in analyze(make_run(num_ranks=4, num_steps=41, host_ns=times)).what_if]
    assert {"rank 1 at normal speed (data)", "rank 1 at normal speed (optimizer)"} <= {*changes}


def test_tokens_go_with_the_step() -> None:
    """4 ranks x 1,024 tokens in 130 ms, and in 100."""
    assert list_changes()["rank 1 at normal speed"].tokens_per_s == pytest.approx(4 * 1024 / 0.1)


def test_the_most_worthwhile_comes_first_and_worthless_ones_are_left_out() -> None:
    assert [name for name in list_changes() if "ranks" not in name] == [
        "no data wait", "rank 1 at normal speed", "perfect overlap",
    ]  # fmt: skip
    plain = make_run(num_ranks=4, num_steps=20, host_ns={**USUAL_NS, "data": 0})
    assert "no data wait" not in {item.change for item in analyze(plain).what_if}


def test_without_ranks_to_wait_for_there_is_nothing_to_run_again() -> None:
    assert analyze(make_run(num_ranks=1, num_steps=20)).what_if == ()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_half_and_twice_the_ranks_take_as_long_as_jobs_of_that_size(strategy: str) -> None:
    """Transfers of a ring grow with (n - 1) / n: 10 ms for 8 ranks are 7.5 / 0.875 for 4 and so on."""
    usual = SimulatedJob(strategy=strategy, num_steps=200, jitter_ratio=0.03)
    guessed = {item.change: item.step_ns for item in analyze(simulate(usual, seed=1).run).what_if}
    for size in (4, 16):
        transfer_ns = usual.transfer_ns * (size - 1) / size * 8 / 7
        job = SimulatedJob(
            strategy=strategy, num_steps=200, jitter_ratio=0.03, num_ranks=size, ranks_per_host=size,
            transfer_ns=transfer_ns,
        )  # fmt: skip
        assert guessed[f"{size} ranks"] == pytest.approx(float(simulate(job, seed=2).truth.step_ns.mean()), rel=0.02)


def test_the_culprits_ceiling_is_the_verdicts() -> None:
    run = simulate(SimulatedJob(delays=(Delay(rank=3, phase="forward", delay_ns=20 * MS),)), seed=1).run
    report = analyze(run)
    change = next(item for item in report.what_if if item.change == "rank 3 at normal speed")
    assert report.verdict.lost_ratio is not None
    assert change.saved_ratio.value == pytest.approx(report.verdict.lost_ratio.value, rel=1e-3)
