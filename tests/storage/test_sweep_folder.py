"""The folder of a sweep: read as it was written, and refused when it claims the impossible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distprof.errors import DataError
from distprof.facts.sweep import Sweep, SweepJob
from distprof.storage.sweep_folder import choose_job_folder, is_sweep, read_sweep, require_inside, write_sweep

JOB = SweepJob(
    number=1, overrides=("seed=1",), settings={"seed": "1"}, ranks=2, status="failed", reason="no", exit_code=1,
    duration_s=1.5, folder="jobs/001",
)  # fmt: skip
SWEEP = Sweep(name="made", started_utc="2026-01-02T03:04:05+00:00", distprof_version="0", jobs=(JOB,))


def test_a_sweep_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert not is_sweep(tmp_path)
    write_sweep(tmp_path, SWEEP)
    assert is_sweep(tmp_path) and read_sweep(tmp_path) == SWEEP


def test_an_attempt_never_takes_the_folder_of_another(tmp_path: Path) -> None:
    assert choose_job_folder(tmp_path, 7) == "jobs/007"
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/007.log").touch()
    (tmp_path / "jobs/007-2").mkdir()
    assert choose_job_folder(tmp_path, 7) == "jobs/007-3"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"folder": "../elsewhere"}, "not one of the sweep's own"),
        ({"folder": "jobs/001/../../.."}, "not one of the sweep's own"),
        ({"number": 2}, "not 1, 2, 3"),
        ({"settings": {"seed": 1}}, "settings are not texts"),
        ({"ranks": 0}, "ranks=0 is impossible"),
        ({"status": "won"}, "status='won'"),
        ({"more": 1}, "more: unknown key"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    write_sweep(tmp_path, SWEEP)
    values = json.loads((tmp_path / "sweep.json").read_text())
    values["jobs"][0] |= change
    (tmp_path / "sweep.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=said):
        read_sweep(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not valid JSON"), ("[]", "this major version"), ('{"schema": "distprof.sweep/2.0"}', "this major version")],
)
def test_what_is_no_sweep_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(DataError, match=said):
        read_sweep(tmp_path)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "sweep/jobs").mkdir(parents=True)
    (tmp_path / "sweep/jobs/001").symlink_to(tmp_path)
    with pytest.raises(DataError, match="a link"):
        require_inside(tmp_path / "sweep", "jobs/001")
