"""The files of the bench ``live``: what its ranks are told, what they measured, and the truth beside each run
folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.live.live_job import LiveDelay, LiveJob
from distprof.errors import DataError
from distprof.facts.plain import make_plain

TRUTH = "truth.json"


class LiveTruth(Struct, frozen=True, kw_only=True):
    """What was done to a job, and what its ranks measured themselves."""

    job: LiveJob
    delay_ns: float
    """Length of the delay each time that it acted; 0 without one."""
    judged_ns: tuple[float, ...]
    """The judged steps, each from where rank 0 was in step with the others to where it was the next time."""
    halves: tuple[tuple[tuple[bool, float], ...], ...]
    """The pairs before the judged steps and those after: every two entries are a pair, each of whether the delay acted
    and how long the step took."""


def run_folder(folder: Path) -> Path:
    """The run folder of the job that ``folder`` belongs to."""
    return folder / "run"


def write_jobs(path: Path, jobs: Sequence[tuple[LiveJob, Path]]) -> None:
    """Tells ranks which jobs to run, and the folder of each."""
    told = [{"job": make_plain(job), "folder": str(folder.absolute())} for job, folder in jobs]
    path.write_text(json.dumps(told), encoding="utf-8")


def read_jobs(path: Path) -> Iterator[tuple[LiveJob, Path]]:
    """The jobs written by `write_jobs`."""
    for told in json.loads(path.read_text(encoding="utf-8")):
        yield _decode_job(told["job"]), Path(told["folder"])


def write_part(folder: Path, rank: int, text: str) -> None:
    """Writes what one rank measured; whoever sees the file sees all of it."""
    new = folder / f"rank-{rank}.new"
    new.write_text(text, encoding="utf-8")
    new.rename(_part(folder, rank))


def has_parts(folder: Path, num_ranks: int) -> bool:
    """Whether every rank has written what it measured."""
    return all(_part(folder, rank).exists() for rank in range(num_ranks))


def write_truth(folder: Path, job: LiveJob) -> None:
    """Makes one file of those of the ranks."""
    parts = [json.loads(_part(folder, rank).read_text(encoding="utf-8")) for rank in range(job.num_ranks)]
    told = {"job": make_plain(job), **parts[0], "delay_ns": max(part["delay_ns"] for part in parts)}
    (folder / TRUTH).write_text(json.dumps(told), encoding="utf-8")
    for rank in range(job.num_ranks):
        _part(folder, rank).unlink()


def read_truth(folder: Path) -> LiveTruth:
    """Reads what `write_truth` wrote.

    Raises:
        DataError: The file is not there, or not what it should be.
    """
    try:
        told = json.loads((folder / TRUTH).read_text(encoding="utf-8"))
        return LiveTruth(
            job=_decode_job(told["job"]), delay_ns=float(told["delay_ns"]),
            judged_ns=tuple(map(float, told["judged_ns"])),
            halves=tuple(tuple((bool(delayed), float(ns)) for delayed, ns in half) for half in told["halves"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / TRUTH}: not a truth that bench live wrote ({type(error).__name__})") from None


def find_kept(folder: Path) -> list[Path]:
    """The folders of jobs kept in ``folder``, in order of their names."""
    return sorted(path.parent for path in folder.glob(f"*/{TRUTH}"))


def _part(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def _decode_job(told: dict[str, Any]) -> LiveJob:
    delay = told["delay"]
    return LiveJob(**{**told, "delay": None if delay is None else LiveDelay(**delay)})
