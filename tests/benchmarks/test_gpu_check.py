"""`launch/gpu_check.sh`: its lines, its verdicts, and all of it but the calls to a GPU."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check import groups
from benchmarks.gpu_check.attach_checks import check_attach, run_program
from benchmarks.gpu_check.check_result import CheckResult
from benchmarks.gpu_check.groups import Group, run_groups
from benchmarks.gpu_check.job_checks import JOBS, check_job, write_command
from distprof.config.compose import compose, read_request
from distprof.config.decode import decode
from distprof.config.schema import Config
from tests.ranks import REPOSITORY, make_environment

SCRIPT = REPOSITORY / "launch" / "gpu_check.sh"


@pytest.mark.parametrize(
    ("value", "verdict", "line"),
    [
        (2.0, "ok", "ok         an event, us"),
        (2.5, "FAILED", "2.5   expected 0 to 2"),
        (float("nan"), "FAILED", "nan   expected 0 to 2"),
        (None, "FAILED", "raised   expected 0 to 2"),
    ],
)
def test_a_finding_is_a_value_an_expectation_and_a_verdict(value: float | None, verdict: str, line: str) -> None:
    finding = CheckResult(name="an event, us", value=value, low=0.0, high=2.0)
    assert finding.judge() == verdict and line in finding.describe()
    assert finding.judge(dry=True) == ("FAILED" if value is None else "not judged")


def test_the_dry_run_runs_everything_but_the_calls_to_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process: others would import torch anew, and a test of its own starts one.
    monkeypatch.setattr(groups, "_run_alone", lambda name, group, limit_s: groups._guard(name, group.run))
    out = tmp_path / "found.json"
    assert gpu_check.main(["--dry-run", "--out", str(out)]) == 0
    checks = json.loads(out.read_text())["checks"]
    assert {check["verdict"] for check in checks} == {"not judged"}
    for job in JOBS:
        assert all(any(check["name"] == f"{job.name}: {item.name}" for check in checks) for item in job.expected)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(checks) + 2 and lines[-1] == f"{len(checks)} checks, 0 failed, 0 skipped: {out}"


def test_the_script_is_sound_and_hands_its_arguments_on(tmp_path: Path) -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert len(SCRIPT.read_text().splitlines()) <= 40
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"\nexit 1\n')
    python.chmod(0o755)
    command = [str(SCRIPT), "--dry-run", "--out", "a b.json"]
    own = make_environment(PYTHON=str(python), PYTHONPATH="/carried")
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    assert done.stdout == f"{REPOSITORY}:/carried -m benchmarks.gpu_check --dry-run --out a b.json\n"
    assert done.returncode == 1 and not done.stderr


def test_a_machine_that_cannot_be_checked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(["--out", str(tmp_path / "a")]) == 2 and "torch sees no GPU" in capsys.readouterr().err
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    assert gpu_check.main(["--dry-run"]) == 2 and "needs 2.11 or later" in capsys.readouterr().err


def fail() -> Iterator[CheckResult]:
    yield CheckResult(name="first", value=1.0, low=1.0)
    raise ValueError("no such\ndevice")


def die() -> Iterator[CheckResult]:
    yield CheckResult(name="second", value=1.0, low=1.0)
    os._exit(7)


def test_what_raises_ends_or_comes_too_late_is_a_failed_check_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.gpu_check.groups.multiprocessing.get_context", lambda kind: FORK)
    now_s = iter([0.0, 0.0, 1.0, 2.0, 550.0])
    made = {
        "raises": Group(run=fail, limit_s=90.0),
        "raises alone": Group(run=fail, limit_s=90.0, alone=True),
        "dies": Group(run=die, limit_s=90.0, alone=True),
        "late": Group(run=fail, limit_s=90.0),
    }
    found = [(item.name, item.note) for item in run_groups(made, now_s=lambda: next(now_s))]
    raised = "ValueError: no such"
    assert found[:4] == [("first", ""), ("raises", raised), ("first", ""), ("raises alone", raised)]
    assert found[-2:] == [("dies", "ended by itself, exit code 7"), ("late", "no time was left for it")]


FORK = multiprocessing.get_context("fork")


@pytest.mark.slow
def test_started_as_a_module_it_finds_its_checks_in_processes_of_their_own(tmp_path: Path) -> None:
    """They find nothing that is defined in a `__main__`."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--dry-run", "--only", "check_device"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "found.json")], cwd=REPOSITORY, env=make_environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "7 checks, 0 failed" in done.stdout, done.stdout + done.stderr


def test_with_one_gpu_the_jobs_that_need_two_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    listed = gpu_check.list_groups(tmp_path, dry=False)
    assert {job.name for job in JOBS if job.gpus == 2}.isdisjoint(listed)


def test_the_jobs_overrides_can_be_composed() -> None:
    """All values of all jobs, as many together as have different keys."""
    left = list(dict.fromkeys(text for job in JOBS for text in write_command(job, Path("/new"))[3:] if "=" in text))
    left = [text for text in left if not text.startswith("--")]
    while left:
        arguments = list({text.partition("=")[0]: text for text in left}.values())
        (job,) = compose(read_request(arguments), launched=False, arguments=arguments)
        decode(Config, job.values)
        left = [text for text in left if text not in arguments]


def test_a_job_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "benchmarks.gpu_check.job_checks.write_command",
        lambda *_: ["sh", "-c", "echo 'distprof: no GPU' >&2; echo ===== >&2; exit 3"],
    )
    (finding,) = check_job(JOBS[0], tmp_path / "job", dry=False)
    assert finding.judge() == "FAILED" and (finding.value, finding.note) == (3.0, "distprof: no GPU")


def test_what_attach_adds_is_the_difference_of_medians_and_the_losses_must_be_one() -> None:
    steps_ms = {False: iter([10.0, 30.0, 11.0] * 2), True: iter([11.5, 11.0, 90.0] * 2)}

    def measure(watched: bool, batch: int, steps: int) -> tuple[float, float]:
        return next(steps_ms[watched]), 2.5 if batch < 100 or not watched else 2.6

    found = {item.name: (item.value, item.judge()) for item in check_attach(dry=False, measure=measure)}
    assert found == {
        "attach, the host limits: added to a step, %": (pytest.approx(100 * 0.5 / 11), "FAILED"),
        "attach, the host limits: different last losses": (1.0, "ok"),
        "attach, the GPU limits: added to a step, %": (pytest.approx(100 * 0.5 / 11), "FAILED"),
        "attach, the GPU limits: different last losses": (2.0, "FAILED"),
    }


@pytest.mark.slow
def test_the_program_that_is_watched_trains_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    step_ms, loss = run_program(True, 1, 3)
    assert step_ms > 0 and 4 < loss < 10
