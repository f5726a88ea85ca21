"""Sweeps from their command line to their report; one with real jobs, the others with a script in place of torchrun."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec import structs
from omegaconf import OmegaConf
from rich.console import Console

from distprof.cli.parser import run_verb
from distprof.cli.sweep import command
from distprof.cli.sweep.command import continue_sweep, list_settings, run_sweep
from distprof.cli.sweep.report import read_sweep_report
from distprof.config.compose import compose, read_request
from distprof.config.schema import WandbConfig
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL, EXIT_USAGE, UsageError
from distprof.facts.run import PHASES, Clock
from distprof.facts.sweep import Sweep, SweepJob
from distprof.report.sweep_report import SweepReport
from distprof.storage.run_folder import read_run
from distprof.storage.sweep_folder import read_sweep, write_sweep
from tests.faults.run_folder import make_late_run, write_run
from tests.forked_ranks import fork_alone
from tests.ranks import REPOSITORY

TINY = ("train=gpt2_tiny", "logger=none", "hydra.sweep.dir=swept", "device=cpu")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sweep(*arguments: str, script: str = "exit 0") -> int:
    """The exit code of a sweep whose jobs run this script."""
    Path("torchrun").write_text(script)
    given = ["--multirun", *TINY, *arguments]
    request = read_request(given)
    jobs = compose(request, launched=False, arguments=given)
    with Path("shown").open("w") as file:
        return run_sweep(
            jobs, request, arguments=given, console=Console(file=file, width=120),
            torchrun=("/bin/sh", str(Path("torchrun").absolute())),
        )  # fmt: skip


def list_ends() -> list[str]:
    return [job.status for job in read_sweep(Path("swept")).jobs]


def test_a_sweep_is_resumed_where_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hush-hush")
    swept = ("train.precision=fp32,tf32,bf16", "name=my-hush-hush")
    assert sweep(*swept, script='case "$*" in *bf16*) exit 1 ;; esac') == EXIT_PARTIAL
    assert list_ends() == ["completed", "refused", "failed"]
    shown = Path("shown").read_text()
    assert "job 2 of 3: refused: train.precision=tf32 needs a GPU" in shown and "job 3 of 3: failed" in shown
    with pytest.raises(UsageError, match="holds a sweep"):
        sweep(*swept)
    found = read_sweep(Path("swept"))
    with pytest.raises(UsageError, match=r"another sweep \(job 1 differs\)"):
        continue_sweep(structs.replace(found, jobs=found.jobs[::-1]), Path("swept"))
    with pytest.raises(UsageError, match=r"another sweep \(3 jobs, not 2\)"):
        continue_sweep(structs.replace(found, jobs=found.jobs[:2]), Path("swept"))
    assert sweep(*swept, "sweep.resume=swept", "sweep.timeout_s=50") == EXIT_PARTIAL, "one job is refused again"
    assert list_ends() == ["completed", "refused", "completed"]
    assert "1 of them completed before" in Path("shown").read_text()
    assert sorted(path.name for path in Path("swept/jobs").iterdir()) == ["001.log", "003-2.log", "003.log"]
    written = [path for path in Path("swept").rglob("*") if path.suffix in (".json", ".yaml", ".html", ".csv")]
    assert len(written) >= 5 and not any("hush-hush" in path.read_text() for path in written)


def test_ranks_may_be_swept_and_a_sweep_without_any_job_is_no_success() -> None:
    assert sweep("experiment=scaling", script='case "$*" in *=2\\ -m*) exit 1 ;; esac') == EXIT_PARTIAL
    assert [job.ranks for job in read_sweep(Path("swept")).jobs] == [1, 2, 4]
    assert list_ends() == ["completed", "failed", "completed"]
    shutil.rmtree("swept")
    assert sweep("seed=1", script="exit 1") == EXIT_FAILED
    shutil.rmtree("swept")
    with pytest.raises(UsageError, match="strategy=single is one process"):
        sweep("strategy=single", "sweep.ranks=2")


def test_a_sweep_is_compared_in_wandb_once_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[SweepReport, WandbConfig, Path]] = []
    monkeypatch.setattr(
        command, "log_sweep", lambda report, config, folder, print_line: told.append((report, config, folder))
    )
    assert sweep("seed=1,2", "logger=wandb", "logger.mode=offline", script='case "$*" in *=2*) exit 1 ;; esac') == 3
    ((report, config, folder),) = told
    assert [row.status for row in report.rows] == ["completed", "failed"] and folder == Path("swept")
    assert config.mode == "offline"
    shutil.rmtree("swept")
    assert sweep("seed=1,2") == EXIT_PARTIAL and len(told) == 1, "its jobs log nothing there"


def test_a_sweep_under_nsys_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS", "/no/such/nsys")
    with pytest.raises(UsageError, match=r"^nsys: not found: install Nsight Systems"):
        sweep("seed=1,2", "sweep.nsys=true")
    assert not Path("swept/sweep.json").exists()
    shutil.rmtree("swept")
    assert sweep("seed=1,2") == EXIT_PARTIAL, "nobody asks for it without"


def test_a_sweep_names_the_folders_of_its_jobs_itself() -> None:
    with pytest.raises(UsageError, match="run_dir: a sweep makes a folder for each job"):
        sweep("run_dir=here")


def test_settings_are_what_differs_between_jobs() -> None:
    jobs = [["train=a", "+x.y='1, 2'", "seed=1"], ["train=b", "+x.y=3", "seed=1"]]
    assert list_settings(jobs) == [{"train": "a", "x.y": "1, 2"}, {"train": "b", "x.y": "3"}]


def test_the_grid_of_the_reference_has_24_jobs() -> None:
    given = OmegaConf.load(REPOSITORY / "conf/experiment/cs336_timing.yaml")
    lengths = [len(values.split(",")) for values in given.hydra.sweeper.params.values()]
    assert lengths == [2, 3, 2, 2]
    arguments = ["experiment=cs336_timing", "train=gpt2_tiny", "train.warmup_steps=0", "train.mode=backward"]
    jobs = compose(read_request(arguments), launched=False, arguments=arguments)
    assert [job.values["train"]["precision"] for job in jobs] == ["fp32", "bf16"], "what is typed takes precedence"
    assert all(job.values["train"]["steps"] == 5 for job in jobs)


@pytest.mark.slow
def test_a_made_up_sweep_of_200_jobs_is_read_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "many"
    run = write_run(tmp_path / "run", make_late_run(num_ranks=2, late=1))
    jobs = tuple(
        SweepJob(
            number=number + 1, overrides=(), settings={"seed": str(number // 4), "size": str(number % 4)}, ranks=2,
            status="completed", folder=f"jobs/{number + 1:03d}",
        )
        for number in range(200)
    )  # fmt: skip
    for job in jobs:
        shutil.copytree(run, folder / str(job.folder))
    write_sweep(folder, Sweep(name="many", started_utc="2026-01-02", distprof_version="0", jobs=jobs))
    assert run_verb(["report", str(folder), "--width", "120"]) == EXIT_OK
    report = json.loads((folder / "report.json").read_text())
    assert len(report["rows"]) == 200 and len(report["pairs"]) == 49 * 4 + 3 * 50
    assert len((folder / "sweep_jobs.csv").read_text().splitlines()) == 201
    assert (folder / "report.html").stat().st_size < 2_000_000
    shown = capsys.readouterr().out
    assert "200: 200 completed" in shown and "sweep_jobs.csv" in shown


def test_a_run_that_is_gone_is_a_note_and_the_rest_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "swept"
    run = write_run(folder / "jobs/001", make_late_run(num_ranks=2, late=1))
    jobs = tuple(
        SweepJob(number=number, overrides=(), settings={}, ranks=2, status="completed", folder=f"jobs/{number:03d}")
        for number in (1, 2)
    )
    write_sweep(folder, Sweep(name="half", started_utc="2026-01-02", distprof_version="0", jobs=jobs))
    assert run_verb(["report", str(folder), "--no-write"]) == EXIT_PARTIAL
    assert "job 2: " in capsys.readouterr().out and not (folder / "report.html").exists()
    assert [row.steps for row in read_sweep_report(folder).rows] == [20, 0]
    assert run_verb(["report", str(folder), str(run)]) == EXIT_USAGE
    assert "pass its folder alone" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_sweep(tmp_path: Path) -> None:
    """One job on two ranks, whose steps are the backward pass alone, and one that cannot work."""
    own = (
        "sweep.ranks=2",
        "train.mode=backward",
        "train.steps=3",
        "train.warmup_steps=1",
        "train.precision=fp32,tf32",
        "hardware.peak=none",
    )
    done = fork_alone(["--multirun", *TINY, *own], tmp_path)
    assert done.returncode == EXIT_PARTIAL, done.stdout + done.stderr
    assert [job.status for job in read_sweep(tmp_path / "swept").jobs] == ["completed", "refused"]
    run = read_run(tmp_path / "swept/jobs/001")
    total_ns = run.phase_ns(Clock.HOST)[:, run.measured().all(axis=0)].sum(axis=(0, 1))
    spent = {str(phase) for phase, time_ns in zip(PHASES, total_ns.tolist(), strict=True) if time_ns > 0}
    assert run.rows.shape[:2] == (2, 4) and spent == {"backward", "all_reduce", "other"}
    assert "job 1 of 2: completed" in done.stdout and (tmp_path / "swept/report.html").exists()
