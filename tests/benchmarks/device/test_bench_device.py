"""``python -m benchmarks device``: facts and verdicts of jobs on made-up devices are the truth, and what is not is
found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.__main__ import main
from benchmarks.device import device_errors
from benchmarks.device.device_errors import Error, count_untimed, list_waits
from benchmarks.device.device_outcome import judge, judge_job
from benchmarks.device.device_run import DeviceRun, play_and_record
from benchmarks.device.device_table import list_broken, tabulate_outcomes
from benchmarks.simulate.device_job import DeviceJob, LateRank, draw_job
from distprof.analyze import analyze
from distprof.errors import EXIT_OK, EXIT_USAGE
from distprof.facts.run import Phase
from distprof.record.step.recorder import Recorder

SHORT = 16
US = 1_000


def draw_small(seed: int) -> DeviceJob:
    """The job of a seed, with few steps and enough events."""
    return replace(draw_job(seed).cut(SHORT), num_events=4000, every=1)


@pytest.fixture(scope="module")
def done() -> DeviceRun:
    """A job with a late rank."""
    late = LateRank(rank=1, phase=Phase.BACKWARD, ratio=0.3, on_host=False, unit=None)
    return play_and_record(replace(draw_small(3), run_ahead=4, late=late))


@pytest.mark.parametrize("seed", [*range(0, 30, 3), 1, 10, 16, 2, 14])
def test_every_limit_holds(seed: int) -> None:
    outcome = judge_job(draw_small(seed))
    assert outcome.broken == [], outcome.told
    assert outcome.untimed == outcome.lost == 0


@settings(max_examples=6, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(2, 4), st.integers(0, 30), st.integers(0, 3),
    st.sampled_from([Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.OPTIMIZER]),
    st.floats(0.06, 0.8),
)  # fmt: skip
def test_the_late_rank_and_its_phase_are_named_under_ddp(
    seed: int, num_ranks: int, ahead: int, rank: int, phase: Phase, ratio: float
) -> None:
    late = LateRank(rank=rank % num_ranks, phase=phase, ratio=ratio, on_host=False, unit=None)
    job = replace(
        draw_small(3 * seed), num_shards=num_ranks, ranks_per_host=num_ranks, run_ahead=ahead, num_units=2, late=late,
        drift_ppm=(50.0, -50.0, 20.0, 0.0)[:num_ranks], link=None,
    )  # fmt: skip
    outcome = judge_job(job)
    assert outcome.broken == [] and outcome.blamed and outcome.right, outcome.told


def test_steps_that_find_no_room_are_counted() -> None:
    job = replace(draw_small(6), run_ahead=None, launch_queue=1024, launch_ns=US, num_events=60)
    outcome = judge_job(job)
    assert outcome.lost > 0 and outcome.broken == []


def test_collectives_that_find_no_room_get_no_times() -> None:
    outcome = judge_job(replace(draw_small(16), run_ahead=20, num_events=200))
    assert outcome.untimed > 0 and outcome.broken == []


def test_what_is_wrong_in_the_facts_is_found(done: DeviceRun) -> None:
    (table,) = done.run.device_collectives
    arrival_ns = table.arrival_ns.copy()
    arrival_ns[0] -= 60 * US  # of rank 0: it then seems to have waited longer
    wrong = replace(done, run=replace(done.run, device_collectives=(replace(table, arrival_ns=arrival_ns),)))
    assert max(wait.of_limit for wait, _ in list_waits(done)) < 1 < max(wait.of_limit for wait, _ in list_waits(wrong))
    end_ns = np.where(np.arange(table.end_ns.shape[2]) == 1, np.nan, table.end_ns)
    holed = replace(done, run=replace(done.run, device_collectives=(replace(table, end_ns=end_ns),)))
    assert count_untimed(done) == 0 < count_untimed(holed)
    broken = judge(wrong, analyze(done.run)).broken
    assert len(broken) == 1 and broken[0].startswith("wait default, rank 0")


def test_a_verdict_on_somebody_else_is_wrong(done: DeviceRun) -> None:
    report = analyze(done.run)
    assert judge(done, report).right and not judge(done, report).false
    other = replace(report, causes=None, verdict=replace(report.verdict, rank=0))
    assert {"the verdict is wrong", "something is named falsely"} <= set(judge(done, other).broken)
    other = replace(report, causes=None, verdict=replace(report.verdict, phase="forward"))
    assert not judge(done, other).right


def test_a_recorder_that_waits_for_the_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_step = Recorder.begin_step

    def wait_and_begin(self: Recorder, step: int, *, warmup: bool) -> None:
        self.on_device._device.synchronize()  # type: ignore[union-attr, attr-defined]
        begin_step(self, step, warmup=warmup)

    monkeypatch.setattr(Recorder, "begin_step", wait_and_begin)
    job = replace(draw_small(0).cut(4), run_ahead=0)
    outcome = judge_job(job)
    assert outcome.synchronised == 4 * job.num_ranks
    assert f"{outcome.synchronised} synchronise(s)" in outcome.broken
    assert next(list_broken([outcome])).startswith("job 0 (ddp): ")
    assert [column.header for column in tabulate_outcomes([outcome]).columns] == ["", "ddp"]


def test_an_error_is_measured_by_three_percent_or_twenty_microseconds() -> None:
    assert Error("", 110_000.0, 100_000.0).of_limit == 0.5
    assert Error("", 1_060_000.0, 1_000_000.0).of_limit == pytest.approx(2.0)
    assert Error("", float("nan"), 1.0).of_limit == np.inf


def test_the_command_shows_a_table_and_single_jobs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["device", "--jobs", "1", "--seed", "6", "--processes", "1"]) == EXIT_OK
    assert "rank and phase right" in capsys.readouterr().out
    monkeypatch.setattr(device_errors, "LEAST_NS", 1.0)
    monkeypatch.setattr(device_errors, "LEAST_RATIO", 0.0)
    assert main(["device", "--job", "6"]) == 1
    shown = capsys.readouterr().out
    assert "job 6: ddp" in shown and "true: " in shown and "phases rank" in shown
    assert main(["device", "--only", "zero"]) == EXIT_USAGE
    assert main(["device", "--jobs", "1", "--only", "hsdp"]) == EXIT_USAGE
    assert "strategies take turns" in capsys.readouterr().err
