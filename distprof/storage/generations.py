"""The generations of a job: every start of its ranks by the same launcher, in one run folder.

torchrun's agents start the ranks again after a failure, and with another number of them when nodes come or go. The run
folder is that of the first start; each later one has a complete run folder of its own inside it, ``generation-1`` and
so on. What an earlier generation has written is never opened for writing again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from distprof.config.decode import load_json
from distprof.errors import DataError, UsageError
from distprof.facts.run import Launch, Run
from distprof.facts.segments import RunSegments
from distprof.storage.run_folder import (
    MAX_META_BYTES,
    ReadEach,
    create_run_folder,
    format_name,
    is_running,
    rank_path,
    read_last_line,
    read_meta,
    read_run,
)
from distprof.storage.safe_open import open_file

MAX_LOOKED_AT = 200
"""Run folders of one name that are searched for an earlier start of the same job, the newest first."""
_GENERATION = re.compile(r"generation-([1-9]\d{0,4})")


def name_generation(number: int) -> str:
    """The folder of a generation inside that of generation 0."""
    return f"generation-{number}"


def number_folder(folder: Path) -> int:
    """The number of the generation that a folder is of."""
    return int(match[1]) if find_root(folder) != folder and (match := _GENERATION.fullmatch(folder.name)) else 0


def find_root(folder: Path) -> Path:
    """The run folder of the whole job, from that of a generation."""
    inside = _GENERATION.fullmatch(folder.name) is not None and (folder.parent / "run.json").exists()
    return folder.parent if inside else folder


def list_generations(folder: Path, *, marked: str = "run.json") -> dict[int, Path]:
    """The folders of a job's generations by number, ascending: those that have the file or folder ``marked``."""
    found = {0: folder}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _GENERATION.fullmatch(entry.name)
            if match is not None and entry.is_dir(follow_symlinks=False):
                found[int(match[1])] = folder / entry.name
    return {number: found[number] for number in sorted(found) if (found[number] / marked).exists()}


def find_newest(folder: Path) -> Path:
    """The folder of the newest generation; the folder itself if there is no other."""
    return [folder, *list_generations(folder).values()][-1]


def open_run_folder(*, runs_dir: str, run_dir: str | None, name: str, now: datetime, launch: Launch | None) -> Path:
    """Creates the folder of a run: of a new job or, if its ranks were started before, of the job's next generation.

    Raises:
        UsageError: It cannot be created or written, or ``run_dir`` already contains a run of another launch.
    """
    with contextlib.suppress(OSError):  # what cannot be looked for is not joined
        exact = Path(run_dir) if run_dir else None
        root = None if launch is None else _find_earlier(Path(runs_dir), exact, name, launch)
        if root is not None:
            return _make_next(root)
    return create_run_folder(runs_dir=runs_dir, run_dir=run_dir, name=name, now=now)


def _make_next(root: Path) -> Path:
    last = max(list_generations(root, marked=""))
    for number in itertools.count(last + 1):
        folder = root / name_generation(number)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            (folder / "ranks").mkdir()
            return folder
    raise AssertionError


def _find_earlier(runs_dir: Path, run_dir: Path | None, name: str, launch: Launch) -> Path | None:
    """The folder of the job's first generation. None: this is the first, or nothing shows that it is not."""
    candidates = [run_dir]
    if run_dir is None:
        own = re.compile(rf"[-_0-9]{{19}}_{re.escape(format_name(name))}(-\d+)?")
        names = sorted((each for each in os.listdir(runs_dir) if own.fullmatch(each)), reverse=True)
        candidates = [runs_dir / each for each in names[:MAX_LOOKED_AT]]
    return next((folder for folder in candidates if folder is not None and _has_started(folder, launch)), None)


def _has_started(folder: Path, launch: Launch) -> bool:
    """Whether the newest generation in a folder is an earlier start of the same job."""
    for path in reversed(list_generations(folder).values()):
        try:
            with open_file(path / "run.json", max_bytes=MAX_META_BYTES) as file:
                text = file.read()
            if not any(agent.encode() in text for agent in launch.agents):  # most folders are of other jobs
                return False
            meta = read_meta(path)
        except (OSError, DataError):
            return False
        before = meta.launch
        if before is None or before.job != launch.job or not {*before.agents} & {*launch.agents}:
            return False
        counts = dict(zip(launch.agents, launch.restarts, strict=True))
        same = all(counts.get(agent) == count for agent, count in zip(before.agents, before.restarts, strict=True))
        if not (before.is_early and same):
            return not _is_completed(path, meta.world_size)
    return False


def _is_completed(folder: Path, world_size: int) -> bool:
    """Whether every rank has completed: then no launcher starts them again, and what follows is another job."""
    for rank in range(world_size):
        try:
            with open_file(rank_path(folder, rank)) as file:
                last = load_json(read_last_line(file))
        except (OSError, DataError, ValueError, RecursionError):
            return False
        if not isinstance(last, dict) or (last.get("type"), last.get("ended")) != ("end", "completed"):
            return False
    return True


def find_latest_run(path: Path) -> Path | None:
    """The newest generation of the path itself if it is a run folder, else of the run in it that started last, of those
    that run if any does.

    None: there is none.
    """
    if (path / "run.json").exists():
        return find_newest(path)
    try:
        folders = [find_newest(entry) for entry in path.iterdir() if (entry / "run.json").exists()]
    except OSError:
        return None
    started: list[tuple[bool, str, Path]] = []
    for folder in folders:
        with contextlib.suppress(DataError):
            started.append((is_running(folder), read_meta(folder).started_utc or "", folder))
    return max(started)[2] if started else None


def read_generations(folder: Path, wanted: int | None = None, read_each: ReadEach | None = None) -> tuple[Run, Path]:
    """Reads a job: one generation with everything, and of the others what tells how they went.

    Args:
        folder: The run folder.
        wanted: The generation's number. None: the newest with a measured step; without any, the newest.
        read_each: As of `distprof.storage.run_folder.read_run`.

    Returns:
        The generation, and the folder that it is in.

    Raises:
        DataError: It is not a run folder, or none of its generations can be read.
        UsageError: It has no such generation.
    """
    found = list_generations(folder)
    if wanted is not None and wanted not in found:
        numbers = ", ".join(map(str, found)) or "none"
        raise UsageError(f"--generation {wanted}: {folder} has no such generation, only {numbers}")
    if len(found) < 2:
        return read_run(folder, read_each=read_each), folder
    runs: dict[int, Run] = {}
    shown, unread = wanted, []
    for number in sorted(found, reverse=True):
        try:
            run = read_run(found[number], read_each=read_each)
        except DataError as error:
            if number == wanted:
                raise
            unread.append(str(error))
            continue
        if shown is None and run.measured().any():
            shown = number
        runs[number] = run if number == shown or not runs else _strip(run)
    if not runs:
        raise DataError(unread[0])
    if shown is None:
        shown = max(runs)
    others = {number: _strip(run) for number, run in sorted(runs.items()) if number != shown}
    run = runs[shown]
    return replace(run, generation=shown, others=others, unread=(*run.unread, *unread)), found[shown]


def _strip(run: Run) -> Run:
    """Only the rows of the steps, and how the ranks ended."""
    return replace(
        run, segments=RunSegments({}), collectives=(), device_collectives=(), operations=(), gpus=(), scheduling=(),
        modules=(),
    )  # fmt: skip
