"""Whether a run folder is whole after an event: readable, with every row that was there before, and a right verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from distprof.analyze import analyze
from distprof.errors import DataError
from distprof.facts.run import COLUMN
from distprof.report.wait_report import Cause
from distprof.storage.generations import find_newest, list_generations, read_generations
from distprof.storage.rank_stream import read_stream
from distprof.storage.run_folder import rank_path, read_meta, read_run
from distprof.storage.run_tail import RankTail
from distprof.storage.stream_part import RankStream

Rows = dict[tuple[int, int, int], bytes]
"""By generation, rank and step."""
UNDISTURBED_STEPS = 60
"""A stretch of at least so many steps gets a verdict."""


class Counts(Struct):
    """What was done and seen."""

    events: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    rows_lost: int = 0
    verdicts: int = 0
    busy: int = 0
    """Verdicts that name a rank which may well have been slow: others used the machine, or it had no core."""
    failures: list[str] = field(default_factory=list)


def find_folder(runs: Path) -> Path | None:
    """The run folder of the job, once it is there."""
    return (
        next((path for path in sorted(runs.iterdir()) if (path / "run.json").exists()), None) if runs.exists() else None
    )


def count_steps(folder: Path, tails: dict[Path, RankTail]) -> tuple[int, int]:
    """The newest generation, and up to which step, exclusive, all its ranks have written.

    Args:
        folder: The run folder.
        tails: What was read of each stream before; it is read on.
    """
    number, newest = list(list_generations(folder).items())[-1]
    steps = []
    try:
        for path in (rank_path(newest, rank) for rank in range(read_size(newest))):
            tail = tails.setdefault(path, RankTail(path, UNDISTURBED_STEPS))
            tail.read()
            steps.append(max((int(row[COLUMN["step"]]) + 1 for row in tail.take_latest(1)), default=0))
    except (OSError, DataError):
        return number, 0
    return number, min(steps)


def read_size(folder: Path) -> int:
    """The number of ranks."""
    return read_meta(folder).world_size


def read_rows(folder: Path) -> Rows:
    """All rows that can be read now."""
    rows: Rows = {}
    for number, path in list_generations(folder).items():
        for rank in range(read_size(path)):
            with contextlib.suppress(FileNotFoundError):
                for row in read_stream(rank_path(path, rank)).rows:
                    rows[number, rank, int(row[COLUMN["step"]])] = row.tobytes()
    return rows


def check_rows(folder: Path, before: Rows, counts: Counts) -> Rows:
    """Counts the rows that were there before and are not there any more, or are others; returns those of now."""
    read_generations(folder)  # by the code of a report
    after = read_rows(folder)
    lost = [key for key, row in before.items() if after.get(key) != row]
    counts.rows, counts.rows_lost = counts.rows + len(after) - len(before), counts.rows_lost + len(lost)
    if lost:
        counts.failures.append(f"{folder}: {len(lost)} flushed rows are lost, first (generation, rank, step) {lost[0]}")
    return after


def check_verdict(
    folder: Path, first: int, last: int, expected: int | None, counts: Counts, *, quiet: bool = True
) -> None:
    """Judges the steps from the first to before the last of the newest generation.

    Args:
        folder: The run folder.
        first: The first of them.
        last: The step after them.
        expected: The rank that is to be named. None: nobody is.
        counts: What was seen so far.
        quiet: Whether hardly anybody else used the machine meanwhile.
    """
    if last - first < UNDISTURBED_STEPS:
        return
    verdict = analyze(read_run(find_newest(folder), _cut_to(first, last))).verdict
    counts.verdicts += 1
    if verdict.rank == expected:
        return
    if not quiet or (expected is None and verdict.cause is Cause.OFF_CPU):
        counts.busy += 1
        return
    counts.failures.append(
        f"{find_newest(folder)}: steps {first} to {last - 1}: rank {verdict.rank} is named ({verdict.kind}, "
        f"{verdict.cause}) instead of {expected}"
    )


def _cut_to(first: int, last: int) -> Callable[[Path, int], RankStream]:
    def read(path: Path, inside: int) -> RankStream:
        stream = read_stream(path, inside=inside)
        kept = (stream.rows[:, COLUMN["step"]] >= first) & (stream.rows[:, COLUMN["step"]] < last)
        return replace(stream, rows=stream.rows[kept], info=replace(stream.info, stand=None))

    return read


def list_pids(folder: Path) -> Iterator[int]:
    """The ranks' processes, in order."""
    newest = find_newest(folder)
    for rank in range(read_size(newest)):
        pid = read_stream(rank_path(newest, rank)).info.pid
        assert pid is not None
        yield pid
