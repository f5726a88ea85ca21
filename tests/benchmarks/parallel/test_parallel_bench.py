"""``python -m benchmarks parallel`` and ``what-if``: their jobs, and what counts as right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.attach_pipeline import list_script
from benchmarks.parallel import what_if_command
from benchmarks.parallel.parallel_command import tabulate
from benchmarks.parallel.parallel_job import PROGRAMS, ParallelJob, draw_jobs, judge
from distprof.report.report import SCHEMA


def make_report(kind: str, rank: int | None = None, phase: str | None = None, **cause: object) -> dict[str, Any]:
    verdict = {"kind": kind, "rank": rank, "phase": phase, "lost_ratio": None, "reason": "told"}
    filled = {"stage": None, "what": "computation", "alone": False, **cause}
    return {"verdict": {**verdict, "pipeline_cause": 0 if cause else None}, "pipeline": {"causes": [filled]}}


@pytest.mark.parametrize(
    ("job", "report", "found"),
    [
        (("replicas", "forward", 2), make_report("slow_rank", 2, "forward", stage=0), (True, True, False)),
        (("replicas", "forward", 2), make_report("slow_rank", 2, "backward", stage=0), (True, False, False)),
        (("replicas", "forward", 2), make_report("slow_rank", 0, "forward", stage=0), (False, False, True)),
        (("replicas", "forward", 2), make_report("none"), (False, False, False)),
        (
            ("1f1b", "backward", 3), make_report("uneven_stage", None, "backward", stage=3, alone=True),
            (True, True, False),
        ),
        (("1f1b", "backward", 3), make_report("uneven_stage", stage=3, alone=True), (True, False, False)),
        (("1f1b", "backward", 3), make_report("uneven_stage", stage=2, alone=True), (False, False, True)),
        (("replicas", "uneven", 1), make_report("uneven_stage", stage=1), (True, True, False)),
        (("replicas", "uneven", 1), make_report("slow_rank", 3, "forward", stage=1), (False, False, True)),
        (("mesh", "nobody", 0), make_report("jitter"), (False, False, False)),
        (("mesh", "nobody", 0), make_report("slow_rank", 1, "data"), (False, False, True)),
    ],
)  # fmt: skip
def test_what_counts_as_right(job: tuple[str, str, int], report: dict[str, Any], found: tuple[bool, ...]) -> None:
    program, cause, rank = job
    outcome = judge(ParallelJob(program=program, cause=cause, size_ratio=0.2, rank=rank), report)
    assert (outcome.where, outcome.phase, outcome.false) == found


def test_every_job_of_a_program_has_one_cause_and_a_delay_of_data_is_where_data_are_loaded() -> None:
    jobs = draw_jobs(list(PROGRAMS), [0.05, 0.2], 3, 80, seed=0)
    assert jobs == draw_jobs(list(PROGRAMS), [0.05, 0.2], 3, 80, seed=0)
    assert len(jobs) == 3 * (len(PROGRAMS) * (2 * 3 + 2) - 1)
    assert {job.rank for job in jobs if job.program == "replicas" and job.cause == "data"} <= {0, 2}
    arguments = ParallelJob(program="1f1b", cause="forward", size_ratio=0.2, rank=3).list_arguments()
    assert arguments[-2:] == ["--delay", f"3:forward:{0.2 * 11 * 0.012:.6f}"]
    assert ParallelJob(program="gpipe", cause="uneven", rank=1).list_arguments()[-1] == "1,2,1,1"
    assert all(Path(job.list_arguments()[0]).exists() for job in jobs)
    assert list_script("experts", 7)[-2:] == ["--steps", "7"]


def test_the_table_counts() -> None:
    nobody = ParallelJob(program="mesh", cause="nobody")
    outcomes = [judge(nobody, make_report("jitter")), judge(nobody, make_report("slow_rank", 1, "data"))]
    assert tabulate(outcomes).splitlines()[-1] == "| all | nobody | 2 |  |  | 1 |"


def test_a_prediction_is_compared_with_the_job_that_was_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(script: Sequence[str], folder: Path, options: Sequence[str], ranks: int) -> None:
        mean_ns = 200e6 if "--layers" in script else 160e6
        folder.mkdir()
        report = {
            "schema": SCHEMA, "headline": {"step_mean_ns": mean_ns},
            "what_if": [{"change": "stages even", "step_ns": 166.4e6}], "verdict": {},
        }  # fmt: skip
        (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")

    monkeypatch.setattr(what_if_command, "run_script", run)
    assert main(["what-if", "--case", "1"]) == 0
    table = capsys.readouterr().out
    assert "| 1f1b | stages even | 200.0 ms | 166.4 ms | 160.0 ms | +4.0% |" in table
    assert "Median of 1 errors: 4.0%" in table
    assert main(["what-if", "--case", "6"]) == 1, "it was not predicted"
    assert "| 160.0 ms | not said | 160.0 ms |  |" in capsys.readouterr().out
    assert main(["what-if", "--case", "99"]) == 2
