"""Options that several verbs have: the file of ``--json``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distprof.cli.options import write_figures
from distprof.errors import UsageError


def test_a_file_is_there_as_it_was_or_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "found.json"
    write_figures(path, {"a": 1})

    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(UsageError, match=r"found.json: cannot be written \(No space left on device\)"):
        write_figures(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1} and [item.name for item in tmp_path.iterdir()] == ["found.json"]


def test_a_link_such_as_standard_output_stays_one(tmp_path: Path) -> None:
    path, target = tmp_path / "stdout", tmp_path / "target"
    path.symlink_to(target)
    write_figures(path, {"a": 1})
    assert path.is_symlink() and json.loads(target.read_text()) == {"a": 1}
