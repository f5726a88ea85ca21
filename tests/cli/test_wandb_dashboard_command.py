"""`distprof wandb-dashboard`: what is saved, and one clear line when it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distprof import __main__ as entry
from distprof.cli import wandb_dashboard
from distprof.cli.parser import run_verb
from distprof.render.wandb import wandb_workspace

KEY = "canary0123456789abcdef0123456789abcdef01"


@pytest.fixture(autouse=True)
def somebody_is_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(wandb_workspace.importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(wandb_dashboard, "make_workspace", lambda *asked: asked)
    monkeypatch.setattr(wandb_dashboard, "save_workspace", save)


def save(workspace: Any) -> str:
    print("wandb: View saved", file=sys.stderr)
    return f"https://wandb.example/{'/'.join(workspace)}"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = run_verb(["wandb-dashboard", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_address_of_what_was_saved_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "team/project") == (0, "saved: https://wandb.example/team/project/distprof\n", "")
    assert run(capsys, "team/project", "--name", "nightly")[1] == "saved: https://wandb.example/team/project/nightly\n"


def test_the_verb_is_found_although_it_has_a_hyphen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["distprof", "wandb-dashboard", "team"])
    monkeypatch.setattr(entry, "guard_streams", lambda arguments: None)
    with pytest.raises(SystemExit) as left:
        entry.main()
    assert left.value.code == 2
    assert capsys.readouterr().err == "distprof: team: must be ENTITY/PROJECT, such as my-team/distprof\n"


@pytest.mark.parametrize(
    "arguments", [["team"], ["team/project/run"], ["/project"], ["te am/project"], ["a/b", "--name", "\x1b[31m"], []]
)
def test_a_wrong_argument_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and "\x1b" not in err


def test_without_the_package_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wandb_workspace.importlib.util, "find_spec", lambda name: None)
    code, _, err = run(capsys, "team/project")
    assert (code, err.count("\n")) == (2, 1) and "pip install 'distprof[dashboard]'" in err


def test_without_a_login_it_says_how_to_log_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    code, _, err = run(capsys, "team/project")
    assert (code, err) == (
        1,
        "distprof: wandb-dashboard: not logged in to W&B: run wandb login, or set WANDB_API_KEY\n",
    )


def test_whatever_wandb_raises_is_one_line_without_the_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(workspace: Any) -> str:
        print("wandb: ERROR", KEY, file=sys.stderr)
        raise ConnectionError(f"nobody answers {KEY}")

    monkeypatch.setattr(wandb_dashboard, "save_workspace", refuse)
    code, out, err = run(capsys, "team/project")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "not saved in team/project (ConnectionError): check the network" in err and "canary" not in err
