"""Versions and the commit a run was started from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from distprof import __version__
from distprof.profiler.job.run_files import PACKAGES, read_commit, read_versions


def test_versions_are_named_and_what_is_missing_says_so() -> None:
    versions = read_versions(None)
    assert versions["distprof"] == __version__ and versions["cuda"] == "none"
    assert set(PACKAGES) <= set(versions) and versions["torch"].startswith("2.")
    assert read_versions("13.0")["cuda"] == "13.0"


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
