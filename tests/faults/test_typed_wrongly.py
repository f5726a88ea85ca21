"""Typing errors: one line, immediately, with the right exit code and without secrets."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from distprof.cli.parser import VERBS
from tests.faults.forked import Command, Done, run

CANARY, SHORT = "canary-7f3a91", "q7x"
"""A secret in the environment, and one too short to search for, which only its name reveals."""
LOGIN = f"https://me:{SHORT}@host/x"
LAUNCHED = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
WRONG: tuple[tuple[str, ...], ...] = (
    ("report", "nope.json", f"--password={SHORT}"),
    ("report", LOGIN, "--phase", "x=y"),
    ("tables", "capture", "--table", "nope", "--api-key", SHORT),
    ("doctor", "--widthh", "3", f"--token={SHORT}"),
    ("report", LOGIN, "--width", "0"),
    ("train=nope", f"+password={SHORT}"),
    ("train.stepz=3", f"+db.password={SHORT}"),
    ("train.steps=abc", f"name={LOGIN}"),
    ("inject.rank=9", "logger=none", f"name={LOGIN}"),
    ("strategy=fsdpp", f"+auth={SHORT}"),
    ("runs_dir=/proc/ünï (1)=#", "train=gpt2_tiny", "logger=none", f"name={LOGIN}"),
    (f"--password={SHORT}",),
    ("--password", SHORT),
    ("--cfg", "nope", f"+token={SHORT}"),
    ("logger=nope", f"+token={SHORT}"),
    ("bench", "nope", "--secret", SHORT),
    (f"+password=[{SHORT}",),
    (f"+password={SHORT},{SHORT}",),
    (f"data.path={LOGIN}", "data=text", "device=cpu", "logger=none"),
    ("nope.json", f"+token={SHORT}"),
)


def require_one_line(done: Done, *codes: int) -> None:
    assert done.code in codes, (done.code, done.err)
    assert len(done.err.splitlines()) == 1 and done.err.startswith("distprof"), done.err
    assert done.out == ""
    for secret in (CANARY, SHORT):
        assert secret not in done.err


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Done]:
    """The result of each command."""
    commands = [Command(arguments=arguments, environment={"HF_TOKEN": CANARY}) for arguments in WRONG]
    return dict(zip(WRONG, run(*commands, cwd=tmp_path_factory.mktemp("wrong")), strict=True))


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_fault_38_a_wrong_command_is_one_line_without_secrets(
    arguments: tuple[str, ...], wrong: dict[tuple[str, ...], Done]
) -> None:
    require_one_line(wrong[arguments], 1, 2)


@pytest.mark.parametrize("change", [{"RANK": "x"}, {"RANK": "-1"}, {"RANK": "2"}, {"RANK": "1", "MASTER_PORT": ""}])
def test_fault_26_a_launcher_that_makes_no_sense_is_said_at_once_by_whoever_sees_it(
    change: dict[str, str], tmp_path: Path
) -> None:
    (done,) = run(Command(arguments=[f"+password={SHORT}"], environment={**LAUNCHED, **change}), cwd=tmp_path)
    require_one_line(done, 2)
    assert done.seconds < 9, "ranks other than 0 wait ten seconds for rank 0 to speak, and there is none"


def test_fault_26_several_jobs_inside_a_launcher_are_refused_however_they_are_asked_for(tmp_path: Path) -> None:
    environment = {**LAUNCHED, "RANK": "0"}
    asked = (["--multirun"], ["-m"], ["--multi"], ["hydra.mode=MULTIRUN"])
    for done in run(*(Command(arguments=[*each, "seed=1,2"][: 2 if "-" in each[0] else 1], environment=environment)
                      for each in asked), cwd=tmp_path):  # fmt: skip
        require_one_line(done, 2)
        assert "--multirun inside torchrun" in done.err
    (done,) = run(Command(arguments=["strategy=single", "logger=none"], environment=environment), cwd=tmp_path)
    require_one_line(done, 2)
    assert "use strategy=ddp" in done.err


def test_fault_38_a_configuration_that_is_shown_has_its_secrets_masked(tmp_path: Path) -> None:
    given = ["train=gpt2_tiny", f"+password={SHORT}", f"+db={{token: {SHORT}, user: me}}", f"name={LOGIN}",
             "+copy=${password}", "+env=${oc.env:HF_TOKEN}"]  # fmt: skip
    asked = (["--cfg", "job"], ["--cfg", "job", "--resolve"], ["--cfg", "all"], ["--help"], ["--info", "config"])
    commands = [Command(arguments=[*each, *given], environment={"HF_TOKEN": CANARY}) for each in asked]
    for done in run(*commands, cwd=tmp_path):
        assert (done.code, done.err) == (0, "")
        assert "password: '[redacted]'" in done.out and "user: me" in done.out and "gpt2" in done.out
        assert SHORT not in done.out and CANARY not in done.out
    assert list(tmp_path.iterdir()) == []


def test_what_a_configuration_holds_for_a_terminal_to_obey_is_not_shown(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "strategy"
    folder.mkdir(parents=True)
    text = r'{name: "ddp\u202E", "\u2066key": "\x85", "\u200Bother": ["caf\u00E9 \e[31m"]}'
    (folder / "mine.yaml").write_text(text, "utf-8")
    asked = (["--cfg", "job"], ["--cfg", "all"], ["--cfg", "job", "-p", "strategy.name"], ["--info", "all"], ["--help"])
    chosen = ["--config-dir", "conf", "strategy=mine"]
    for done in run(*(Command(arguments=[*chosen, *each]) for each in asked), cwd=tmp_path):
        assert (done.code, done.err) == (0, "") and "ddp" in done.out
        shown = {character for character in done.out if unicodedata.category(character)[0] == "C"}
        assert shown == {"\n"}, shown


def test_a_command_without_arguments_shows_what_there_is_and_one_for_loggers_is_named(tmp_path: Path) -> None:
    asked = ([], ["--help"], ["logger=tensorboard"], ["logger=[otel]"], ["attach", "train.py"])
    bare, asked_for, *refused = run(*(Command(arguments=each) for each in asked), cwd=tmp_path)
    assert (bare.code, bare.err) == (0, "") and bare.out == asked_for.out
    for verb in (*VERBS, "version"):
        assert f"distprof {verb}" in bare.out
    assert "distprof.attach" in bare.out
    instead = ("loggers=[tensorboard]", "loggers=[otel]", "python -m distprof.attach")
    for done, said in zip(refused, instead, strict=True):
        require_one_line(done, 2)
        assert said in done.err
    assert list(tmp_path.iterdir()) == []
