"""A sweep on disk: ``sweep.json``, rewritten whenever a job starts or ends, beside the run folders of its jobs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeGuard

from distprof.config.decode import decode
from distprof.errors import DataError
from distprof.facts.plain import make_plain
from distprof.facts.sweep import Sweep, SweepJob
from distprof.storage.remote import Place
from distprof.storage.whole_file import read_object, write_json

SCHEMA = "distprof.sweep/1.0"
FILE = "sweep.json"
MAX_BYTES = 64 << 20
MAX_JOBS = 100_000
_FOLDER = re.compile(r"jobs/[0-9]{3,6}(-[0-9]{1,6})?")
"""Run folders are inside the sweep's, whatever a file says."""


def is_sweep(path: Place) -> TypeGuard[Path]:
    """Whether a path is the folder of a sweep."""
    return isinstance(path, Path) and (path / FILE).is_file()


def choose_job_folder(folder: Path, number: int) -> str:
    """A name for the run folder of a job, relative to the sweep's, that does not exist yet."""
    name, attempt = f"jobs/{number:03d}", 1
    while (folder / name).exists() or (folder / f"{name}.log").exists():
        attempt += 1
        name = f"jobs/{number:03d}-{attempt}"
    return name


def require_inside(folder: Path, name: str) -> Path:
    """The path of a job's run folder.

    Raises:
        DataError: A link leads out of the sweep's folder.
    """
    if (folder / name).resolve() != folder.resolve() / name:
        raise DataError(f"{folder / name}: a link, which is not followed")
    return folder / name


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Writes ``sweep.json`` atomically."""
    write_json(folder / FILE, {"schema": SCHEMA, **make_plain(sweep)})


def read_sweep(folder: Path) -> Sweep:
    """Reads ``sweep.json``.

    Raises:
        DataError: It is missing, damaged, or of a newer major version.
    """
    path = folder / FILE
    missing = f"{folder}: not the folder of a sweep (no {FILE})"
    values = read_object(path, schema=SCHEMA, what="folder", missing=missing, max_bytes=MAX_BYTES)
    sweep = decode(Sweep, {key: item for key, item in values.items() if key != "schema"}, str(path), DataError)
    _check(path, sweep)
    return sweep


def _check(path: Path, sweep: Sweep) -> None:
    if len(sweep.jobs) > MAX_JOBS:
        raise DataError(f"{path}: {len(sweep.jobs):,} jobs are impossible")
    if [job.number for job in sweep.jobs] != list(range(1, len(sweep.jobs) + 1)):
        raise DataError(f"{path}: the numbers of its jobs are not 1, 2, 3 and so on")
    keys = list(sweep.jobs[0].settings) if sweep.jobs else []
    for job in sweep.jobs:
        _check_job(f"{path}: job {job.number}", job, keys)


def _check_job(where: str, job: SweepJob, keys: list[str]) -> None:
    if list(job.settings) != keys or not all(type(value) is str for value in job.settings.values()):
        raise DataError(f"{where}: settings are not texts under the keys of the first job")
    if job.folder is not None and not _FOLDER.fullmatch(job.folder):
        raise DataError(f"{where}: folder={job.folder[:100]!r} is not one of the sweep's own")
    if job.ranks < 1:
        raise DataError(f"{where}: ranks={job.ranks} is impossible")
