"""``python -m benchmarks verdicts``: what counts as right, and the verdict's score at a delay of 5 %, and without
any."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from benchmarks.__main__ import main
from benchmarks.simulate import Delay, SimulatedJob
from benchmarks.verdicts.verdict_outcome import Outcome, TrueCause, judge, play
from benchmarks.verdicts.verdict_rows import ROWS, Row
from benchmarks.verdicts.verdict_rows.row import add, find_step, make_plain
from benchmarks.verdicts.verdict_table import list_wrong, tabulate_scores
from benchmarks.verdicts.verdicts import Score, score_row
from distprof.facts.run import Phase
from distprof.report.wait_report import Verdict, VerdictKind

PHASES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.OPTIMIZER)
SIMPLE = slice(None, None, 2)
"""Even seeds: played by the simple rules."""


def make_row(strategy: str) -> Row:
    """A random rank is slower by 5 % of the step in a random phase."""

    def make(draws: np.random.Generator, num_steps: int) -> SimulatedJob:
        job = make_plain(strategy)
        rank, phase = int(draws.integers(8)), PHASES[draws.integers(5)]
        return add(job, Delay(rank=rank, phase=phase, delay_ns=0.05 * (find_step(job) + 8e6)))

    return Row(name="five", group="one slow rank", make=make)


@pytest.mark.parametrize(("strategy", "runs"), [("ddp", 60), ("fsdp", 40)])
def test_a_delay_of_a_twentieth_is_found_and_explained(strategy: str, runs: int) -> None:
    score = score_row(make_row(strategy), range(2 * runs)[SIMPLE], num_steps=50)
    assert sum(item.large for item in score.outcomes) >= 0.9 * runs
    assert score.right_ratio is not None and score.right_ratio >= 0.95
    error = score.find_error("simple")
    assert error is not None and error < 0.03


@pytest.mark.parametrize(("strategy", "runs"), [("ddp", 60), ("fsdp", 40)])
def test_nobody_is_blamed_for_nothing(strategy: str, runs: int) -> None:
    score = score_row(ROWS[f"{strategy}-8-nobody"], range(2 * runs)[SIMPLE], num_steps=50)
    assert score.false_ratio is not None and score.false_ratio <= 0.01
    assert score.right_ratio is None and score.listed_ratio is None


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_rare_stalls_among_smaller_events_are_one_ranks(num_ranks: int) -> None:
    """Five of fifty steps, of which a shadow step may hide some; without stalls nobody is named."""
    score = score_row(ROWS[f"ddp-stalls-{num_ranks}"], range(60)[SIMPLE], num_steps=50)
    assert score.right_ratio is not None and score.right_ratio >= 0.9 and score.false_ratio == 0
    assert score_row(ROWS[f"ddp-stalls-{num_ranks}-nobody"], range(60)[SIMPLE], num_steps=50).false_ratio == 0


def find_verdict() -> Verdict:
    """Of a job in which somebody is slow."""
    return play(ROWS["ddp-2"], 0, 20)[2].verdict


@pytest.mark.parametrize(
    ("kind", "said", "right"),
    [
        ("rank", {"kind": VerdictKind.SLOW_RANK, "rank": 3, "phase": "data"}, True),
        ("rank", {"kind": VerdictKind.STALLS, "rank": 3, "phase": "data"}, True),
        ("rank", {"kind": VerdictKind.SLOW_RANK, "rank": 3, "phase": "forward"}, False),
        ("rank", {"kind": VerdictKind.SLOW_RANK, "rank": 2, "phase": "data"}, False),
        ("host", {"kind": VerdictKind.SLOW_HOST, "rank": None, "phase": "data", "hosts": ("host-1",)}, True),
        ("host", {"kind": VerdictKind.SLOW_HOST, "rank": None, "phase": "data", "hosts": ("host-2",)}, False),
        ("host", {"kind": VerdictKind.SLOW_RANK, "rank": 3, "phase": "data", "hosts": ()}, False),
        ("link", {"kind": VerdictKind.SLOW_LINK, "rank": None, "hosts": ("host-0", "host-1")}, True),
        ("link", {"kind": VerdictKind.SLOW_LINK, "rank": None, "hosts": ("host-0", "host-2")}, False),
        ("link", {"kind": VerdictKind.SLOW_HOST, "rank": None, "hosts": ("host-1",)}, False),
        ("data", {"kind": VerdictKind.UNEQUAL_DATA, "rank": None}, True),
        ("data", {"kind": VerdictKind.JITTER, "rank": None}, False),
    ],
)
def test_what_names_a_cause(kind: str, said: dict[str, object], right: bool) -> None:
    cause = TrueCause(kind=kind, rank=3, phase="data", host="host-1", lost_ns=1.0, alone_ns=1.0)
    assert cause.is_said(structs.replace(find_verdict(), **said)) is right  # type: ignore[arg-type]


def judge_saying(name: str, seed: int, **said: object) -> Outcome:
    """A job of a row, of which the report says something else."""
    row = ROWS[name]
    job, made, report = play(row, seed, 30)
    verdict = structs.replace(report.verdict, **said)  # type: ignore[arg-type]
    assert report.causes is not None
    first = structs.replace(report.causes.causes[0], **said)  # type: ignore[arg-type]
    causes = structs.replace(report.causes, causes=(first,))
    return judge(row, seed, job, made, structs.replace(report, verdict=verdict, causes=causes))


def test_nothing_may_be_named_where_nobody_is_slow_or_it_is_hidden() -> None:
    blamed = {"kind": VerdictKind.SLOW_RANK, "rank": 1, "phase": "backward", "hosts": ()}
    nobody = {"kind": VerdictKind.JITTER, "rank": None, "phase": None, "hosts": ()}
    for name in ("ddp-2-nobody", "ddp-hidden", "ddp-cancel"):
        assert judge_saying(name, 0, **blamed).false and judge_saying(name, 0, **blamed).wrong
        fine = judge_saying(name, 0, **nobody)
        assert not fine.false and not fine.blamed and not fine.large and not fine.wrong


def test_of_two_culprits_the_larger_is_to_be_named_and_both_listed() -> None:
    row = ROWS["ddp-two"]
    seed = next(seed for seed in range(20) if _find_ratio(row, seed) < 0.85)
    job, _ = row.draw(seed, 30)
    larger, smaller = sorted(job.delays, key=lambda delay: -delay.delay_ns)
    told = [
        judge_saying("ddp-two", seed, kind=VerdictKind.SLOW_RANK, rank=delay.rank, phase=delay.phase.value, hosts=())
        for delay in (larger, smaller)
    ]
    assert [(item.right, item.listed, item.false) for item in told] == [(True, False, False), (False, False, False)]


def _find_ratio(row: Row, seed: int) -> float:
    delays = [delay.delay_ns for delay in row.draw(seed, 30)[0].delays]
    return min(delays) / max(delays)


def test_the_same_seed_draws_the_same_job() -> None:
    for name in ("ddp-two", "fsdp-few", "hsdp-link", "ddp-loop-between"):
        row = ROWS[name]
        assert row.draw(5, 50) == row.draw(5, 50) != row.draw(6, 50)
        assert [row.draw(seed, 50)[0].rules for seed in (4, 5)] == ["simple", "shared"]


def test_every_row_makes_a_job_with_the_faults_that_it_says() -> None:
    for row in ROWS.values():
        job, _ = row.draw(0, 50)
        faults = len(job.delays) + len(job.slow_hosts) + bool(job.token_spread_ratio)
        assert (faults == 0) == row.name.endswith("nobody"), row.name


def test_the_table_counts() -> None:
    wrong = judge_saying("ddp-2-nobody", 0, kind=VerdictKind.SLOW_RANK, rank=1, phase="data")
    fine = structs.replace(wrong, false=False, seed=1)
    score = Score(row=ROWS["ddp-2-nobody"], outcomes=(wrong, fine, fine, fine))
    table = tabulate_scores([score], [30, 60])
    assert table.splitlines()[-1] == "| ddp-2-nobody | 4 |  |  | 25.0 % |  |  |  |  |  |  |  |"
    assert list_wrong([score]).startswith("--row ddp-2-nobody --seed 0 --steps 30 --show")
    assert len(list_wrong([score]).splitlines()) == 1


def test_the_verbs_print_their_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdicts", "--runs", "1", "--steps", "50", "--jobs", "1", "--only", "ddp-2*"]) == 0
    shown = capsys.readouterr().out
    assert "\n| ddp-2 | 1 |" in shown and "\n| ddp-2-nobody | 1 |" in shown
    assert main(["verdicts", "--row", "ddp-8", "--seed", "0", "--show"]) == 0
    assert "True causes" in capsys.readouterr().out
    assert main(["verdicts", "--only", "nothing"]) == 2
    assert main(["verdicts", "--runs", "0"]) == 2
    capsys.readouterr()
    assert main(["report", "--ranks", "16", "--steps", "20", "--every", "2"]) == 0
    shown = capsys.readouterr().out
    assert "16 ranks x 20 steps: rank 8 is " in shown and " late in every 2nd step" in shown and "GB at most" in shown
    assert main(["report", "--ranks", "0"]) == 2
