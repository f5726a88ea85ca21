"""How a training command exits: its exit code, what it tells the launcher, and what it cleans up."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distprof.cli import train as application
from distprof.render.wandb import wandb_log


class LeftError(BaseException):
    """Raised in place of the end of the process."""


@pytest.fixture(autouse=True)
def leaving_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise LeftError(code)

    monkeypatch.setattr(application.os, "_exit", leave)
    monkeypatch.setattr(application.gc, "get_objects", list)  # those of the test runner are its own


def run(monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: BaseException | None = None) -> int:
    """The exit code of a command that does nothing or raises."""

    def train(*_: Any) -> None:
        if error is not None:
            raise error

    if error is not None:
        monkeypatch.setattr(application, "_train", train)
    with pytest.raises(LeftError) as left:
        application.run_training(arguments)
    return int(left.value.args[0])


def test_the_exit_code_is_that_of_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [], SystemExit(5)) == 5
    assert run(monkeypatch, ["x.password=hush-hush"], SystemExit("no disk for hush-hush")) == 1
    assert capsys.readouterr().err == "no disk for [redacted]\n"


def test_fault_02_the_launcher_reads_the_first_failure_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    try:
        raise ValueError("no such user: hush-hush")
    except ValueError as error:
        assert run(monkeypatch, ["x.password=hush-hush"], error) == 1
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(tmp_path / "error.json"))
    told: Any = failure.message
    assert told["message"] == "ValueError: no such user: [redacted]"
    trace = told["extraInfo"]["py_callstack"]
    assert "test_fault_02" in trace and trace.endswith("ValueError: no such user: [redacted]\n")
    assert "hush" not in json.dumps(told) and failure.timestamp > 0


def test_a_rank_that_a_peer_has_left_lets_the_peer_be_seen_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    slept: list[tuple[float, bool]] = []
    pause = SimpleNamespace(sleep=lambda seconds: slept.append((seconds, path.exists())), time=lambda: 0.0)
    monkeypatch.setattr(application, "time", pause)
    assert run(monkeypatch, [], RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:1")) == 1
    assert slept == [(application.PEER_GRACE_S, False)] and path.exists()
    assert run(monkeypatch, [], RuntimeError("out of memory")) == 1 and len(slept) == 1


def test_temporary_folders_go_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tempfile.TemporaryDirectory("wandb-media")
    monkeypatch.setattr(application.gc, "get_objects", lambda: [folder, "something else"])
    with pytest.raises(LeftError):
        application.leave_now(0)
    assert not os.path.exists(folder.name)


def test_fault_11_without_wandb_the_job_is_refused_before_the_ranks_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def join(*_: Any, **__: Any) -> None:
        raise AssertionError("the process group comes later")

    arguments = ["train=gpt2_tiny", "strategy=single", "device=cpu", "logger=wandb"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["distprof", *arguments])
    monkeypatch.setattr("distprof.world.join", join)
    monkeypatch.setattr(wandb_log.importlib.util, "find_spec", lambda name: None)
    assert run(monkeypatch, arguments) == 2
    told = capsys.readouterr().err
    assert told == "distprof: logger=wandb needs the wandb package: pip install wandb, or logger=none\n"
    assert not (tmp_path / "runs").exists()
