"""What a job says when training is over and its run folder is not what it was."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from distprof.errors import EXIT_OK, EXIT_PARTIAL, DataError
from distprof.storage.run_folder import rank_path, write_meta
from distprof.train.job import JobReporter
from tests.storage.test_run_folder import META, write_rank


def report(folder: Path, completed_rows: dict[int, int] | None = None) -> tuple[int, str]:
    """The exit code, and what is shown."""
    shown = io.StringIO()
    reporter = JobReporter(cast(Any, None), Console(file=shown, width=200))
    return reporter.report(folder, completed_rows), shown.getvalue()


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
    *_, files, rest = shown.splitlines()
    assert files.split() == ["files", "report.html,", "report.json,", "trace.json.gz"]
    assert rest.rstrip().endswith(f" distprof report {folder} --details") and len(shown.splitlines()) <= 24


def test_a_job_whose_streams_were_deleted_is_partial(folder: Path) -> None:
    shutil.rmtree(folder / "ranks")
    exit_code, shown = report(folder)
    assert exit_code == EXIT_PARTIAL
    assert "ranks 0-1 are missing" in shown and re.search(r"note  +.*with --details", shown)


def test_fault_08_ranks_that_completed_and_could_not_say_so_are_not_taken_for_killed(folder: Path) -> None:
    path = rank_path(folder, 1)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))  # a broken disk: no last step, no end
    exit_code, shown = report(folder)
    assert exit_code == EXIT_PARTIAL and "rank 1 stopped recording after step 0" in shown and "lost" not in shown
    exit_code, shown = report(folder, {0: 2, 1: 2})
    assert exit_code == EXIT_PARTIAL and "stopped recording" not in shown and "1 row lost" in shown


def test_a_job_whose_report_cannot_be_written_is_partial_and_names_no_file(folder: Path) -> None:
    for name in ("report.html", "report.json", "trace.json.gz"):
        (folder / name).mkdir()
    exit_code, shown = report(folder)
    assert exit_code == EXIT_PARTIAL
    problem, *_, files, _ = shown.splitlines()
    assert problem == "distprof: report.html, report.json, trace.json.gz could not be written (Is a directory)"
    assert files.split() == ["files", "none", "written"]


def test_a_job_whose_folder_was_deleted_fails(folder: Path) -> None:
    shutil.rmtree(folder)
    with pytest.raises(DataError, match="no such folder"):
        report(folder)
