"""Versions and the commit a run was started from."""

from __future__ import annotations

import platform
import subprocess
import warnings
from functools import partial
from pathlib import Path

import pytest

from distprof import __version__
from distprof.profiler.job.run_files import PACKAGES, describe_system, read_commit, read_versions


def test_versions_are_named_and_what_is_missing_says_so() -> None:
    versions = read_versions(None)
    assert versions["distprof"] == __version__ and versions["cuda"] == "none"
    assert set(PACKAGES) <= set(versions) and versions["torch"].startswith("2.")
    assert read_versions("13.0")["cuda"] == "13.0"


def test_the_system_is_described_as_python_does() -> None:
    assert describe_system() == platform.platform()


def test_what_a_script_warns_of_once_is_not_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_uname_cache", "_platform_cache"):  # what Python has found out for other tests
        monkeypatch.setattr(platform, name, {} if name == "_platform_cache" else None)
    places: dict[str, int] = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for look in (read_commit, partial(read_versions, None), str):
            warnings.warn_explicit("the same", UserWarning, "script.py", 1, registry=places)
            look()
        assert len(said) == 1
        with warnings.catch_warnings():  # as `subprocess` does with the name of a program
            warnings.warn_explicit("the same", UserWarning, "script.py", 1, registry=places)
    assert len(said) == 2


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_commit() is None


def test_the_commit_is_marked_when_files_were_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert read_commit() is None
    (tmp_path / "a").write_text("1")
    for command in ("init -q", "add a", "-c user.name=n -c user.email=e@x commit -q -m m"):
        subprocess.run(["git", *command.split()], check=True)
    commit = read_commit()
    assert commit is not None and len(commit) == 40
    (tmp_path / "a").write_text("2")
    assert read_commit() == f"{commit}+"
