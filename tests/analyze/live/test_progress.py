"""How far a job is, from made-up last steps of its ranks: every number is computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze.live import progress as module
from distprof.analyze.live.progress import ProgressMeter, RankLook, read_total_steps
from distprof.facts.run import COLUMN, PHASES, Clock, Run
from distprof.facts.writer_liveness import LastWrite
from tests.factories import MS, USUAL_NS, make_run

CONFIG = {"train": {"steps": 100, "warmup_steps": 3}, "profile": {"level": "phases"}}


def write(lives: bool | None) -> LastWrite:
    return LastWrite(at_utc="2026-01-02T03:04:05+00:00", ago_s=0.0, writer_lives=lives)


def look(run: Run, *, until: int | None = None, fresh_s: float = 0.5, **changes: Any) -> list[RankLook]:
    usual = {"ended": None, "last_write": write(True), **changes}
    return [
        RankLook(info=structs.replace(info, **usual), rows=run.rows[at, :until], fresh_s=fresh_s)
        for at, info in enumerate(run.ranks)
    ]


def test_a_job_of_two_ranks() -> None:
    own = {**USUAL_NS, "data": np.array([[10 * MS], [13 * MS]]), "all_reduce": np.array([[15 * MS], [12 * MS]])}
    run = make_run(num_steps=43, host_ns=own, meta={"config": CONFIG})
    found = ProgressMeter().measure(run.meta, look(run))
    assert (found.steps_done, found.steps_total, found.interval_ns) == (43, 103, 100 * MS)
    assert found.eta_s == pytest.approx(6.0) and not found.over and found.clock is Clock.HOST and found.mean_steps == 20
    assert [rank.own_ns for rank in found.ranks] == [85 * MS, 88 * MS]
    assert [rank.phase_ns[PHASES.index("data")] for rank in found.ranks] == [10 * MS, 13 * MS]  # type: ignore[arg-type]
    assert found.step_times_ns == (100 * MS,) * 43
    assert [(rank.last_step, rank.state, rank.fresh_s) for rank in found.ranks] == [(42, "running", 0.5)] * 2


def test_the_means_are_of_the_last_steps_and_of_those_with_phases() -> None:
    slow = np.where(np.arange(50) < 30, 10 * MS, 20 * MS)[np.newaxis]
    run = make_run(num_steps=50, host_ns={**USUAL_NS, "data": slow})
    run.rows[:, 45, COLUMN["data_host_ns"]] = np.nan  # a shadow step
    found = ProgressMeter().measure(run.meta, look(run))
    assert found.ranks[0].phase_ns[0] == 20 * MS and found.ranks[0].step_ns == 110 * MS


def test_the_last_rank_counts_and_times_of_steps_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TIMES", 40)
    times = np.arange(60) * MS + 50 * MS
    run = make_run(num_steps=60, columns={"step_host_ns": times})
    begins_ns = np.cumsum(times) - times
    run.rows[:, :, COLUMN["begin_host_ns"]] = begins_ns
    meter = ProgressMeter()
    for until in (10, 15, 60):
        first, second = look(run, until=until)
        late = structs.replace(second, rows=second.rows[: until - 1])
        shown = [structs.replace(each, rows=each.rows[-12:]) for each in (first, late)]
        found = meter.measure(run.meta, shown)
        assert found.steps_done == until - 1
    # steps 0 to 8 from the first look, 9 to 13 from the second, 49 to 58 from the last, whose first has no predecessor
    assert found.step_times_ns == tuple(float(times[step]) for step in [*range(14), *range(49, 59)])


def test_a_rank_that_does_other_work_counts_nothing() -> None:
    run = make_run(num_ranks=3, num_steps=30)
    evaluator = run.rows[2]
    evaluator[:, [COLUMN["backward_host_ns"], COLUMN["optimizer_host_ns"]]] = 0
    looks = look(run)
    looks[2] = structs.replace(looks[2], rows=evaluator[:4])
    assert ProgressMeter().measure(run.meta, looks).steps_done == 30


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (CONFIG, 103), ({"train": {"steps": 100}}, None), ({}, None), ({"train": 5, "profile": {}}, None),
        ({**CONFIG, "profile": {"level": "kernels", "kernel_steps": 3, "kernel_from": None}}, 107),
        ({**CONFIG, "profile": {"level": "kernels", "kernel_steps": 3, "kernel_from": 9}}, 103),
        ({**CONFIG, "profile": {"level": "modules", "module_steps": 5, "module_from": None}}, 110),
        ({**CONFIG, "train": {"steps": "100", "warmup_steps": 3}}, None),
        ({**CONFIG, "train": {"steps": -1, "warmup_steps": 3}}, None),
    ],
)  # fmt: skip
def test_how_many_steps_there_will_be(config: dict[str, Any], total: int | None) -> None:
    assert read_total_steps(config) == total


@pytest.mark.parametrize(
    ("states", "fresh_s", "over"),
    [
        (["running", "running"], 500.0, False), (["completed", "running"], 1.0, False),
        (["completed", "completed"], 1.0, True), (["gone", "terminated"], 1.0, True),
        (["unknown", "unknown"], 500.0, False), (["gone", "unknown"], 1.0, False), (["gone", "unknown"], 61.0, True),
        (["completed"], 1.0, False), (["completed"], 61.0, True), ([], 0.0, False), (["other", "other"], 61.0, False),
    ],
)  # fmt: skip
def test_whether_it_is_over(states: list[str], fresh_s: float, over: bool) -> None:
    run = make_run()
    lives = {"running": True, "gone": False, "unknown": None}
    looks = [
        structs.replace(
            each,
            info=structs.replace(
                each.info, ended=None if state in lives else state, last_write=write(lives.get(state))
            ),
        )
        for each, state in zip(look(run, fresh_s=fresh_s), states, strict=False)
    ]
    found = ProgressMeter().measure(run.meta, looks)
    assert found.over is over
    assert [rank.state for rank in found.ranks] == ["unknown" if state == "other" else state for state in states]


def test_before_the_first_step() -> None:
    run = make_run()
    found = ProgressMeter().measure(run.meta, look(run, until=0))
    assert (found.steps_done, found.interval_ns, found.eta_s, found.step_times_ns) == (0, None, None, ())
    assert [(rank.last_step, rank.own_ns, set(rank.phase_ns)) for rank in found.ranks] == [(None, None, {None})] * 2
