"""A configuration that names code, modules, or excessive work is refused, and none of it has run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.forked import Command, run
from tests.faults.test_typed_wrongly import require_one_line

BEFORE = "this stays\n"
EVIL = "import pathlib\npathlib.Path({!r}).write_text('run')\n"
OPEN = "{_target_: builtins.open, file: canary, mode: w}"
HANDLER = "{class: logging.FileHandler, filename: canary, mode: w}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file that must not change, modules that must not be imported, and configuration files."""
    canary = tmp_path / "canary"
    canary.write_text(BEFORE)
    for module in ("hydra_plugins/evil.py", "evilmodule.py", "evilpackage/__init__.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).write_text(EVIL.format(str(canary)))
    for name, text in {
        "hydra/callbacks/evil.yaml": f"x: {OPEN}",
        "hydra/launcher/evil.yaml": "_target_: hydra_plugins.evil.Launcher",
        "hydra/job_logging/evil.yaml": f"version: 1\nroot: {{handlers: [x]}}\nhandlers: {{x: {OPEN}}}",
        "train/evil.yaml": f"defaults: [base, _self_]\nmodel: {{layers: 1, width: 4, heads: 1}}\nextra: [[{OPEN}]]",
        "primary.yaml": f"defaults: [config, _self_]\nhydra: {{callbacks: {{x: {OPEN}}}}}",
        "module.yaml": "defaults: [config, _self_]\nhydra: {searchpath: ['pkg://evilpackage']}",
        "experiment/evil.yaml": "# @package hydra.callbacks.y\n_target_: ${oc.decode:os.mkdir}\npath: made",
    }.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text(text)
    return tmp_path


CODE: tuple[tuple[str, ...], ...] = (
    ("+hydra.callbacks.x._target_=builtins.open", "+hydra.callbacks.x.file=canary", "+hydra.callbacks.x.mode=w"),
    (f"+hydra.callbacks.x={OPEN.replace(': ', ':')}", "seed=nope"),
    ("+hydra.callbacks.x._target_=os.mkdir", "+hydra.callbacks.x.path=made", "strategy=nope"),
    ("+hydra.callbacks.x._target_=sqlite3.connect", "+hydra.callbacks.x.database=made", "--multirun", "seed=1,2"),
    ("+fn=os.mkdir", "+hydra.callbacks.x._target_=${fn}", "+hydra.callbacks.x.path=made"),
    ("+x.y=[{_target_:os.mkdir}]",),
    ("hydra.launcher._target_=os.mkdir", "--multirun", "seed=1,2"),
    ("hydra.sweeper._target_=hydra_plugins.evil.Sweeper", "--multirun", "seed=1,2"),
    (f"+hydra.job_logging.handlers.x={OPEN.replace(': ', ':').replace('_target_', 'class')}",),
    ("hydra/hydra_logging=default", "+hydra.hydra_logging.handlers.x.()=os.mkdir", "--help"),
    ("--config-dir", "conf", "hydra/callbacks=evil"),
    ("--config-dir", "conf", "hydra/launcher=evil", "--multirun", "seed=1,2"),
    ("--config-dir", "conf", "hydra/job_logging=evil"),
    ("--config-dir", "conf", "train=evil"),
    ("--config-dir", "conf", "--config-name", "primary"),
    ("--config-dir", "conf", "--config-name", "module"),
    ("--config-dir", "conf", "experiment=evil", "--cfg", "all", "--resolve"),
    ("--config-path", "pkg://evilpackage"),
    ("--config-path", "conf", "--config-name", "primary"),
    ("hydra.searchpath=[pkg://evilpackage]",),
    ("hydra.searchpath=['structured://evilmodule']",),
    ("--experimental-rerun", "canary"),
)


def test_fault_37_nothing_that_a_configuration_names_is_run(place: Path) -> None:
    before = sorted(place.rglob("*"))
    for arguments, done in zip(CODE, run(*(Command(arguments=each) for each in CODE), cwd=place), strict=True):
        assert "hydra_plugins" not in done.err or "evil" in "".join(arguments), done.err
        require_one_line(done, 2)
    assert (place / "canary").read_text() == BEFORE
    assert sorted(place.rglob("*")) == before


def test_fault_24_hydras_own_ways_to_set_up_logging_touch_no_file(place: Path) -> None:
    """Also with classes that are allowed by name, because a handler has arguments too."""
    given = f"+hydra.hydra_logging.handlers.file={HANDLER.replace(': ', ':')}"
    (done,) = run(Command(arguments=["hydra/hydra_logging=default", given, "--help"]), cwd=place)
    assert (done.code, done.err) == (0, "")
    assert (place / "canary").read_text() == BEFORE


def make_bombs(folder: Path) -> dict[str, str]:
    """Files of a few KB, and how they are refused."""
    (folder / "train").mkdir()
    levels = "".join(f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12))
    files = {
        "aliases": (f"a0: &a0 [x]\n{levels}", "the configuration is too large"),
        "deep": ("a: " + "[" * 20_000, "nested too deeply"), "itself": ("a: &a [*a]\n", "nested too deeply"),
        "object": ("a: !!python/object/apply:os.mkdir [made]\n", "not valid YAML"),
        "binary": ("\0\1", "not valid YAML"), "list": ("[1, 2]", "expected a group of keys"),
    }  # fmt: skip
    for name, (text, _) in files.items():
        (folder / "train" / f"{name}.yaml").write_text(text)
    os.mkfifo(folder / "train" / "pipe.yaml")
    (folder / "train" / "zeros.yaml").symlink_to("/dev/zero")
    return {name: said for name, (_, said) in files.items()} | dict.fromkeys(("pipe", "zeros"), "Could not find")


def test_fault_19_a_configuration_file_that_asks_for_no_end_of_work_is_refused(tmp_path: Path) -> None:
    said = make_bombs(tmp_path)
    hasty = "from distprof.config.compose import loader; loader.CPU_S = 2.5"  # of this process, however busy others are
    commands = [Command(arguments=["--config-dir", ".", f"train={name}"], before=hasty) for name in said]
    for name, done in zip(said, run(*commands, cwd=tmp_path), strict=True):
        require_one_line(done, 2)
        assert said[name] in done.err, (name, done.err)
    assert not (tmp_path / "made").exists()
