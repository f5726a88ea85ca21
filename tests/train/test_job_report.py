"""What a job says when training is over and its run folder is not what it was."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from distprof.errors import EXIT_OK, EXIT_PARTIAL, DataError
from distprof.folder import write_meta
from distprof.train.job import Audience
from tests.test_folder import META, write_rank


def report(folder: Path) -> tuple[int, str]:
    """The exit code, and what is shown."""
    shown = io.StringIO()
    audience = Audience(cast(Any, None), Console(file=shown, width=200))
    return audience.report(folder), shown.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    write_meta(tmp_path, META)
    for rank in range(2):
        write_rank(tmp_path, rank, [0, 1])
    return tmp_path


def test_a_whole_job_is_ok_and_names_its_files(folder: Path) -> None:
    exit_code, shown = report(folder)
    assert exit_code == EXIT_OK
    assert shown.splitlines()[-1].startswith(f"run folder: {folder}  (report.html, report.json, trace.json.gz; again:")


def test_a_job_whose_streams_were_deleted_is_partial(folder: Path) -> None:
    shutil.rmtree(folder / "ranks")
    exit_code, shown = report(folder)
    assert exit_code == EXIT_PARTIAL
    assert "ranks 0-1 are missing" in shown and "ranks/ is not there: deleted" in shown


def test_a_job_whose_report_cannot_be_written_is_partial_and_names_no_file(folder: Path) -> None:
    for name in ("report.html", "report.json", "trace.json.gz"):
        (folder / name).mkdir()
    exit_code, shown = report(folder)
    assert exit_code == EXIT_PARTIAL
    problem, last = shown.splitlines()[-2:]
    assert problem == "distprof: report.html, report.json, trace.json.gz could not be written (Is a directory)"
    assert last == f"run folder: {folder}  (again: distprof report {folder} --out FOLDER)"


def test_a_job_whose_folder_was_deleted_fails(folder: Path) -> None:
    shutil.rmtree(folder)
    with pytest.raises(DataError, match="no such folder"):
        report(folder)
