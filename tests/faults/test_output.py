"""Output that goes nowhere: the job trains, its files are written, and the exit code is the job's."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.faults.forked import Command, make_rank, run
from tests.ranks import find_ports

QUICK = ("train=gpt2_tiny", "train.steps=2", "train.warmup_steps=0", "logger=none", "hardware.peak=none", "device=cpu")


def train(number: int, **streams: str) -> Command:
    return Command(arguments=[*QUICK, f"run_dir=run-{number}"], environment={"COLUMNS": "0"}, **streams)


def require_trained(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    assert report["coverage"]["steps_measured"] == 2 and report["ranks"][0]["ended"] == "completed"
    assert (folder / "report.html").stat().st_size > 0


def test_fault_32_a_job_without_output_trains_as_usual(tmp_path: Path) -> None:
    streams = ({"stdout": "full"}, {"stdout": "broken"}, {"stdout": "closed", "stderr": "closed"}, {"stderr": "full"})
    ended = run(*(train(number, **each) for number, each in enumerate(streams)), cwd=tmp_path)
    for number, done in enumerate(ended):
        assert done.code == 0, done
        require_trained(tmp_path / f"run-{number}")
        assert "Traceback" not in done.err and done.err.count("\n") <= 1
    assert ended[0].err == "distprof: standard output is dropped: No space left on device\n"
    assert "step time" in ended[3].out, "COLUMNS=0 is no width"
    for records in tmp_path.glob("run-*/ranks/*"):  # what has no output may not be given a file of the run as one
        assert all(map(json.loads, records.read_text().splitlines()))
    again = [
        Command(arguments=["report", "run-0"], stdout=stdout, environment=environment)
        for stdout, environment in (("full", {}), ("broken", {}), ("file", {"COLUMNS": "99999999999"}))
    ]
    full, broken, wide = run(*again, Command(arguments=["--help"], stdout="full"), cwd=tmp_path)[:3]
    assert (full.code, broken.code, wide.code) == (0, 0, 0)
    assert broken.err == "" and full.err.count("\n") == 1
    assert "step time" in wide.out and max(map(len, wide.out.splitlines())) <= 80


def test_fault_32_a_reader_that_speaks_another_language_is_told_what_can_be_said(tmp_path: Path) -> None:
    """A folder with non-ASCII letters on an ASCII terminal; its name needs no quotes."""
    name = "ünï (1)=#~"
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    trained, refused = run(
        Command(arguments=[*QUICK, f"runs_dir={name}"], environment=ascii_only),
        Command(arguments=["report", "nöpe"], environment=ascii_only), cwd=tmp_path,
    )  # fmt: skip
    assert trained.code == 0, trained.err
    (folder,) = (tmp_path / name).iterdir()
    require_trained(folder)
    assert refused.code == 1 and refused.err.startswith("distprof: n\\xf6pe: no such file")


def test_fault_23_a_job_leaves_no_secret_in_any_file_or_name(tmp_path: Path) -> None:
    """A job that fails: with a login in a URL, a key in the environment, and one recognisable by its form."""
    secrets = ("canary-5e1f0a", "q7x9", "hf_" + "a1b2" * 5)
    drill = ("inject.rank=0", "inject.action=fail", f"name={secrets[0]}-{secrets[2]}-https://me:{secrets[1]}@host")
    (done,) = run(Command(arguments=[*QUICK, *drill], environment={"HF_TOKEN": secrets[0]}), cwd=tmp_path)
    assert done.code == 1 and "InjectedFailure" in done.err
    (shown,) = run(Command(arguments=["report", str(next((tmp_path / "runs").iterdir()))]), cwd=tmp_path)
    assert shown.code == 3
    texts = [done.out, done.err, shown.out, *map(str, tmp_path.rglob("*"))]
    texts += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    for secret in secrets:
        assert not any(secret in text for text in texts), secret


def test_fault_25_two_jobs_of_the_same_second_have_a_folder_each(tmp_path: Path) -> None:
    ports = find_ports(2)
    ended = run(*(make_rank(rank, 2, port, QUICK) for port in ports for rank in (1, 0)), cwd=tmp_path)
    assert [done.code for done in ended] == [0] * 4, ended
    folders = list((tmp_path / "runs").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["runs"] and len(folders) == 2
    for folder in folders:
        assert len(list(folder.glob("ranks/*.jsonl"))) == 2
        require_trained(folder)


IMPATIENT = "import distprof.cli.train; distprof.cli.train.REFUSAL_GRACE_S = 1.0"
"""Ranks other than 0 let it print and exit after a second: there is no launcher to end them before ten."""


def test_fault_09_a_folder_that_cannot_be_written_is_refused_by_all_ranks_before_the_model(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    (port,) = find_ports(1)
    arguments = [*QUICK, "train.model.width=96"]
    ranks = (make_rank(rank, 2, port, arguments, before=IMPATIENT) for rank in (0, 1))
    first, other = run(*ranks, cwd=tmp_path)
    assert (first.code, other.code) == (2, 2)
    assert first.err.startswith("distprof: runs/") and len(first.err.splitlines()) == 1
    assert (other.err, first.out) == ("", "")
    assert os.listdir(tmp_path) == ["runs"]
