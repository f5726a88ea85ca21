"""The bench on real ranks: what it draws, how it scores, and tiny jobs of every loop."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from msgspec import structs

from benchmarks.__main__ import main
from benchmarks.live import live_command, live_ranks
from benchmarks.live.live_files import LiveTruth, find_kept, read_truth
from benchmarks.live.live_job import LOOPS, RARE_EVERY, LiveJob, draw_job
from benchmarks.live.live_score import LiveOutcome, holds_truth, list_named, score
from benchmarks.live.live_table import describe_outcome, tabulate_outcomes
from distprof.analyze import analyze
from distprof.errors import DataError
from distprof.report.report import Report
from distprof.report.wait_report import CauseReport, Causes, Estimate, ReplayError, VerdictKind
from tests.benchmarks.live.test_bench_live_truth import CALM_JOB, LATE, LATE_JOB, make_half
from tests.factories import MS, make_run
from tests.faults.forked import Command, Started, start
from tests.ranks import find_ports, tell_rank

SURE = Estimate(value=0.05, low=0.04, high=0.06)
WITHOUT_CAUSES = structs.replace(analyze(make_run()), replay=None)


def test_every_place_of_every_loop_is_drawn() -> None:
    for loop, facts in LOOPS.items():
        jobs = [draw_job(loop, 0.05, num_ranks=3, steps=60, pairs=40, seed=seed) for seed in range(300)]
        delays = [job.delay for job in jobs if job.delay is not None]
        assert len(delays) == 300 and {delay.place for delay in delays} == set(facts.phases)
        assert {delay.rank for delay in delays} == {0, 1, 2} and {delay.spins for delay in delays} == {True, False}
        assert {delay.rank for delay in delays if delay.place == "checkpoint"} <= {0}
        assert {delay.every for delay in delays} >= {1, RARE_EVERY}
    assert draw_job("fsdp", 0.0, num_ranks=2, steps=60, pairs=40, seed=1).delay is None


def test_stalls_are_drawn_in_places_that_every_loop_has() -> None:
    for loop, facts in LOOPS.items():
        jobs = [draw_job(loop, None, num_ranks=2, steps=60, pairs=40, seed=seed) for seed in range(200)]
        assert {(job.stalls, job.size_ratio, job.name.split("-")[1]) for job in jobs} == {(True, 0.2, "stalls")}
        places = {job.delay.place for job in jobs if job.delay is not None}
        assert len(places) == 7 and places <= set(facts.phases)


def make_cause(kind: VerdictKind, rank: int | None, phase: str | None, lost_ns: float = 2.0 * MS) -> CauseReport:
    lost = Estimate(value=lost_ns, low=lost_ns, high=lost_ns)
    return CauseReport(
        kind=kind, rank=rank, phase=phase, hosts=(), cause=None, pattern=None, first_step=0, last_step=59, whole=True,
        events=None, period=None, late_ns=None, saved_if_only_this_ns=lost, saved_if_only_this_ratio=SURE,
        saved_after_others_ns=lost, saved_after_others_ratio=SURE, joint_ns=lost_ns, critical=False,
    )  # fmt: skip


def make_report(*causes: CauseReport) -> Report:
    found = Causes(causes=causes, step_ns=40 * MS, ideal_ns=30 * MS, remainder_ns=0)
    return structs.replace(WITHOUT_CAUSES, causes=found)


def judge(
    job: LiveJob, *causes: CauseReport, costs_ns: float = 2.0 * MS, replay: ReplayError | None = None
) -> LiveOutcome:
    halves = tuple(tuple(make_half([costs_ns] * 3)) for _ in range(2))
    delay_ns = 2.0 * MS if job.delay else 0.0
    truth = LiveTruth(job=job, delay_ns=delay_ns, judged_ns=(), halves=halves if job.delay else ())
    return score(truth, structs.replace(make_report(*causes), replay=replay))


RIGHT = make_cause(VerdictKind.SLOW_RANK, 1, "backward", 2.5 * MS)


def test_the_first_cause_with_a_name_is_the_answer() -> None:
    right = judge(LATE_JOB, RIGHT, make_cause(VerdictKind.SLOW_RANK, 0, "data"))
    assert (right.hit, right.rank_is_right, right.is_right) == (True, True, True)
    assert right.error_ratio == pytest.approx(0.25) and len(right.named) == 2
    second = judge(LATE_JOB, make_cause(VerdictKind.SLOW_RANK, 0, "data"), RIGHT)
    assert (second.hit, second.rank_is_right, second.error_ratio) == (False, False, None)
    phase = judge(LATE_JOB, make_cause(VerdictKind.SLOW_RANK, 1, "forward"))
    assert (phase.hit, phase.rank_is_right, phase.error_ratio) == (False, True, None)
    assert not judge(LATE_JOB).is_right


def test_jitter_communication_and_stalls_of_nobody_name_nobody() -> None:
    kinds = (VerdictKind.JITTER, VerdictKind.COMMUNICATION, VerdictKind.STALLS)
    unnamed = [make_cause(kind, None, None) for kind in kinds]
    assert judge(CALM_JOB, *unnamed).is_right and judge(LATE_JOB, *unnamed, RIGHT).hit
    assert not judge(CALM_JOB, make_cause(VerdictKind.STALLS, 0, "forward")).is_right
    assert not judge(CALM_JOB, make_cause(VerdictKind.SLOW_LINK, None, None)).is_right


def test_what_holds_a_loop_up_by_itself_is_no_false_alarm() -> None:
    saves = make_cause(VerdictKind.SLOW_RANK, 0, "checkpoint")
    unequal = make_cause(VerdictKind.UNEQUAL_DATA, None, None)
    calm = {loop: structs.replace(CALM_JOB, loop=loop) for loop in LOOPS}
    assert judge(calm["evaluation"], saves).is_right and judge(calm["unequal"], unequal).is_right
    assert not judge(calm["accumulation"], saves).is_right and not judge(calm["fsdp"], unequal).is_right
    outcome = judge(structs.replace(LATE_JOB, loop="unequal"), unequal, RIGHT)
    assert outcome.hit and [item.answer.kind for item in outcome.own] == [VerdictKind.UNEQUAL_DATA]
    assert describe_outcome(outcome).endswith("backward 2.5 ms; of the loop itself: unequal data 2.0 ms")
    delay = structs.replace(LATE, rank=0, place="checkpoint")
    assert judge(structs.replace(LATE_JOB, loop="evaluation", delay=delay), saves).hit


def test_a_hidden_delay_is_left_out() -> None:
    hidden = judge(LATE_JOB, costs_ns=0.1 * MS)
    noisy = LiveTruth(
        job=LATE_JOB, delay_ns=2.0 * MS, judged_ns=(), halves=(tuple(make_half([-9.0 * MS, -5.0 * MS, -1.0 * MS] * 3)),)
    )
    assert not score(noisy, make_report()).hidden  # its cost is not known well enough
    assert hidden.hidden and hidden.is_right and not judge(LATE_JOB, costs_ns=0.6 * MS).hidden
    table = tabulate_outcomes([hidden, judge(LATE_JOB, RIGHT)], failed=0)
    assert "| accumulation | 5.0 % | 1 | 100.0 % |" in table and "Left out: 1 jobs" in table


def test_without_causes_the_verdict_is_the_answer() -> None:
    verdict = structs.replace(WITHOUT_CAUSES.verdict, kind=VerdictKind.SLOW_RANK, rank=1, phase="backward")
    report = structs.replace(WITHOUT_CAUSES, verdict=verdict, causes=None)
    assert [(item.answer.rank, item.answer.phase) for item in list_named(report)] == [(1, "backward")]
    assert list_named(structs.replace(WITHOUT_CAUSES, causes=None)) == ()


def test_stalls_have_a_row_of_their_own() -> None:
    stalls = structs.replace(LATE, every=10, stalls=True)
    outcome = judge(structs.replace(LATE_JOB, steps=50, delay=stalls))
    row = tabulate_outcomes([judge(LATE_JOB), outcome], failed=0).splitlines()[3]
    assert row.startswith("| accumulation | 5.0 %, in random steps | 1 | 0.0 %")
    assert "rank 1 computes in gradient hook in one of 10 steps, at random, costs" in describe_outcome(outcome)


def test_it_is_said_how_well_each_job_is_replayed() -> None:
    ratios = (0.0012, 0.0034, 0.05)
    outcomes = [judge(LATE_JOB, replay=ReplayError(median_ratio=ratio, worst_ratio=1.0)) for ratio in ratios]
    assert describe_outcome(outcomes[1]).endswith("named: nobody; replay off by 0.34 %")
    last = tabulate_outcomes([*outcomes, judge(LATE_JOB)], failed=0).splitlines()[-1]
    assert last == "Replay: off by 0.34 % of a step in the median of 3 jobs, 5.00 % in the worst."


def test_an_interval_holds_the_measured_cost_or_not() -> None:
    """It is 2 ms; without a hit nothing is compared."""
    assert [
        holds_truth(judge(LATE_JOB, make_cause(VerdictKind.SLOW_RANK, 1, "backward", lost_ns)))
        for lost_ns in (2.0 * MS, 2.5 * MS)
    ] == [True, False]
    assert holds_truth(judge(LATE_JOB)) is None and holds_truth(judge(CALM_JOB)) is None


def test_the_table_has_a_row_per_loop_and_size_and_the_totals() -> None:
    wrong = judge(LATE_JOB)
    outcomes = [
        judge(LATE_JOB, RIGHT),
        wrong,
        judge(CALM_JOB),
        judge(structs.replace(CALM_JOB, loop="fsdp"), RIGHT),
    ]
    rows = tabulate_outcomes(outcomes, failed=2).splitlines()
    assert rows[2:7] == [
        "| accumulation | nobody | 1 |  |  | 0.0 % | 0.0 % |  |  |  |",
        "| accumulation | 5.0 % | 2 | 50.0 % | 50.0 % | 50.0 % | 0.0 % | 1 | 25.0 % | 0.0 % |",
        "| fsdp | nobody | 1 |  |  | 100.0 % | 0.0 % |  |  |  |",
        "| all | nobody | 2 |  |  | 50.0 % | 0.0 % |  |  |  |",
        "| all | 5.0 % | 2 | 50.0 % | 50.0 % | 50.0 % | 0.0 % | 1 | 25.0 % | 0.0 % |",
    ]
    assert rows[-1] == "Failed: 2 jobs, which did not end."
    assert describe_outcome(wrong) == (
        "accumulation, 2 ranks, 5.0 %: rank 1 computes in gradient hook, costs 2.0 ms (2.0 ms to 2.0 ms): WRONG, "
        "named: nobody"
    )
    assert describe_outcome(outcomes[-1]).endswith("nobody delayed: FALSE ALARM, named: rank 1 backward 2.5 ms")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "0"], "--runs 0: must be 1 or more"),
        (["--loop", "gan"], "--loop gan: no such loop; there are accumulation, fsdp"),
        (["--sizes", "5,many"], "--sizes 5,many: expected numbers"),
        (["--sizes", "stalls,many"], "--sizes many: expected numbers"),
        (["--sizes", "200"], "--sizes 200: must be from 0 to 100"),
        (["--ranks", "1"], "--ranks 1: must be from 2 to 64"),
        (["--ranks", "2.5"], "--ranks 2.5: must be a whole number"),
        (["--burn", "-1"], "--burn -1: must be 0 or more"),
        (["--keep-all"], "--keep-all: say where"),
        (["--keep", "."], "--keep .: not empty"),
        (["--again", "."], "--again .: no job that --keep kept lies there"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "problem"),
    [("import sys; sys.exit('gone')", "exit code 1: gone"), ("import time; time.sleep(60)", "was ended")],
)
def test_a_job_that_fails_or_hangs_is_counted_and_the_next_begins(
    code: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop_of_a_test.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(live_ranks, "MODULE", "loop_of_a_test")
    if "sleep" in code:
        for name in ("START_LIMIT_S", "JOB_LIMIT_S", "STEP_LIMIT_S"):
            monkeypatch.setattr(live_ranks, name, 0.0)
    said: list[str] = []
    ended: list[LiveJob] = []
    jobs = [LATE_JOB, structs.replace(CALM_JOB, seed=4)]
    assert live_ranks.run_jobs(jobs, tmp_path / "jobs", finish=ended.extend, print_line=said.append) == jobs
    assert ended == [] and len(said) == 2 and all(problem in line for line in said)


def test_processes_that_burn_end_with_the_bench() -> None:
    with live_ranks.burn(2) as burning:
        assert [process.poll() for process in burning] == [None, None]
    assert [process.poll() for process in burning] == [-signal.SIGKILL] * 2


def test_a_damaged_truth_is_refused(tmp_path: Path) -> None:
    (tmp_path / "truth.json").write_text('{"job": {}}')
    with pytest.raises(DataError, match="not a truth that bench live wrote"):
        read_truth(tmp_path)


@pytest.mark.slow
def test_tiny_jobs_of_every_loop_are_kept_and_judged_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one set of processes; nothing is asserted about the answers, which so few steps on a busy machine decide."""

    def fork(number: int, jobs_path: Path) -> list[Started]:
        (port,) = find_ports(1)
        told = (tell_rank(rank, number, port) for rank in range(number))
        ranks = (Command(module=live_ranks.MODULE, arguments=[str(jobs_path)], environment=each) for each in told)
        return start(*ranks, cwd=tmp_path)

    monkeypatch.setattr(live_ranks, "_start", fork)
    kept = tmp_path / "kept"
    arguments = ["--runs", "1", "--sizes", "20", "--ranks", "2", "--steps", "3", "--pairs", "4", "--seed", "9"]
    assert main(["live", *arguments, "--keep", str(kept), "--keep-all"]) == 0
    first = capsys.readouterr()
    assert [path.name.split("-")[0] for path in find_kept(kept)] == sorted(LOOPS)
    for path in find_kept(kept):
        truth = read_truth(path)
        assert truth.job.delay is not None and truth.delay_ns > 0 and len(truth.judged_ns) == 3
        assert [len(half) for half in truth.halves] == [4, 4]
        delayed = [delayed for half in truth.halves for delayed, _ in half]
        assert sum(delayed) == 4
    outcome = live_command.judge_folder(path)
    assert outcome.job == truth.job and outcome.cost is not None
    assert main(["live", "--again", str(kept)]) == 0
    again = capsys.readouterr()
    assert sorted(again.out.splitlines()) == sorted(first.out.splitlines())
    lines = {line.split(": ", 1)[1] for line in again.err.splitlines()}
    assert lines == {line.split("  ", 1)[1] for line in first.err.splitlines()}
    shutil.rmtree(kept)
