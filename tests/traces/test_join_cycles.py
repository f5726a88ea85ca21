"""Traces that one process wrote one after another are one rank's steps; those of two runs are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_OK, DataError
from distprof.facts.run import COLUMN, Run
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.phase_names import NameMap
from tests.kineto_file import make_kernel, make_launch, make_step, write_kineto

BASE_NS = 1_700_000_000_000_000_000
MINUTE_US = 60_000_000


def write_cycle(
    folder: Path, number: int, first: int, *, at_us: int | None = None, pid: int = 77, cut: bool = False, **head: Any
) -> Path:
    """Three steps of 1 ms, each of which launches a kernel of its own name and of 100 us and more."""
    begin = 1_000_000 * number if at_us is None else at_us
    events = []
    for step in range(first, first + 3):
        at = begin + 1000 * (step - first)
        events += [make_step(step, at, 900), make_launch(at + 10, 5, step)]
        if not (cut and step == first + 2):
            events.append(make_kernel(f"kernel_{step}", at + 30, 100 + step, step))
    for event in events:
        event["pid"] = pid if event["pid"] else 0
    return write_kineto(folder / f"cycle{number}.json", events, baseTimeNanoseconds=BASE_NS, **head)


def read_run(folder: Path) -> Run:
    return read_paths([folder], NameMap())


def test_the_cycles_of_a_process_are_one_ranks_steps(tmp_path: Path) -> None:
    for number, first in ((1, 2), (2, 12), (3, 22)):
        write_cycle(tmp_path, number, first)
    run = read_run(tmp_path)
    steps = [2, 3, 4, 12, 13, 14, 22, 23, 24]
    assert [info.rank for info in run.ranks] == [0] and run.rows[0, :, COLUMN["step"]].tolist() == steps
    (item,) = run.activity
    assert {kernel.name: kernel.total_ns for kernel in item.kernels} == {
        f"kernel_{step}": (100 + step) * 1000 for step in steps
    }
    assert any("3 traces of one process, one after another, read as one" in note for note in run.ranks[0].notes)


def test_each_rank_of_a_job_may_have_cycles(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"{rank}").mkdir()
        for number, first in ((1, 2), (2, 12)):
            info = {"backend": "nccl", "rank": rank, "world_size": 2}
            write_cycle(tmp_path / f"{rank}", number, first, pid=100 + rank, distributedInfo=info)
    run = read_run(tmp_path)
    assert run.rows[:, :, COLUMN["step"]].tolist() == [[2, 3, 4, 12, 13, 14]] * 2


def test_a_step_that_the_end_of_a_cycle_cut_off_is_left_out(tmp_path: Path) -> None:
    write_cycle(tmp_path, 1, 2, cut=True)
    write_cycle(tmp_path, 2, 12)
    assert read_run(tmp_path).rows[0, :, COLUMN["step"]].tolist() == [2, 3, 12, 13, 14]


@pytest.mark.parametrize("how", ["another process", "the same steps again"])
def test_two_runs_some_minutes_apart_are_not_joined(tmp_path: Path, how: str) -> None:
    write_cycle(tmp_path, 1, 2, at_us=0)
    again = {"another process": (12, 78), "the same steps again": (2, 77)}[how]
    write_cycle(tmp_path, 2, again[0], at_us=6 * MINUTE_US, pid=again[1])
    with pytest.raises(DataError, match=r"cycle2\.json begins 6 minutes later.*different jobs"):
        read_run(tmp_path)


def test_a_rank_that_ran_twice_is_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        info = {"backend": "nccl", "rank": 0, "world_size": 1}
        write_cycle(tmp_path, number, 2, at_us=number * MINUTE_US // 6, pid=70 + number, distributedInfo=info)
    with pytest.raises(DataError, match="both are of rank 0"):
        read_run(tmp_path)


def test_the_report_of_cycles_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, first in ((1, 2), (2, 12)):
        write_cycle(tmp_path, number, first)
    assert run_verb(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == EXIT_OK
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["coverage"]["steps_measured"] == 6 and report["world_size"] == 1
    assert any("2 traces of one process" in note for note in report["coverage"]["notes"])
