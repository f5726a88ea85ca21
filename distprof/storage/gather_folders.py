"""Brings the parts of a run folder together that hosts without a shared disk have written, each on its own.

The part of rank 0's host has ``run.json``, the streams of the ranks that see it, and for each of the others a stream in
its place: all steps, but collectives as sums only, and nothing of how it ended. The other parts have what these ranks
wrote themselves, with everything.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from distprof.errors import DataError, UsageError
from distprof.facts.run import COLUMN, RunMeta
from distprof.storage.generations import list_generations, name_generation
from distprof.storage.rank_stream import read_stream
from distprof.storage.run_folder import check_stream, list_streams, read_meta
from distprof.storage.safe_open import open_file, open_folder

_OF_STREAM = re.compile(r"rank-(\d{5,9})(?:\.earlier|\.next)?\.(?:jsonl|position|stack)")
_BESIDE = re.compile(r"(?:flight_recorder-)?rank-(\d{5,9})\.json(?:\.gz)?")
_FOLDERS = re.compile(r"ranks|modules|kernels(?:/step-\d{8,16})?")
_OF_JOB = ("run.json", "config.yaml")


class Gathered(Struct, frozen=True, kw_only=True):
    """What was brought together."""

    meta: RunMeta
    ranks: tuple[int, ...]
    """Those with a stream."""
    own: int
    """How many of them have the stream that they wrote themselves in place of rank 0's."""
    left_out: tuple[str, ...]
    """What is missing, or was left out, and why."""
    generations: int = 1
    """How many starts of the ranks there are; the rest is about the newest that was brought together."""


class _StreamInPart(Struct, frozen=True, kw_only=True):
    """A rank's stream in one of the parts."""

    part: Path
    path: Path
    of_job: bool
    """Whether ``run.json`` is beside it: then rank 0 may have written it in the rank's place."""
    last_step: float
    """-1: there is none."""
    lives: bool


def gather_folders(parts: Sequence[Path], out: Path) -> Gathered:
    """Copies the parts of one run into a new folder, which is there whole or not at all; the parts stay as they are.

    Raises:
        DataError: The parts are not of one run, none has ``run.json``, or a rank is in two of them.
        UsageError: There is something at ``out``.
        OSError: It cannot be read or written.
    """
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(f"--out {out}: exists already, and nothing is overwritten: choose a new folder")
    parts = list({part.resolve(): part for part in parts}.values())
    by_number: dict[int, list[Path]] = {}
    for part in parts:
        found = list_generations(part, marked="ranks")
        if not found:
            raise DataError(f"{part}: not a part of a run folder (no ranks/): pass one that a job has written")
        for number, folder in found.items():
            by_number.setdefault(number, []).append(folder)
    chosen = [(number, _choose_all(by_number[number])) for number in sorted(by_number)]
    left_out = [line for _, one in chosen for line in one.left_out]
    out.parent.mkdir(parents=True, exist_ok=True)
    building = out.with_name(f".{out.name}.{os.urandom(4).hex()}")
    building.mkdir()
    try:
        for number, one in chosen:
            target = building / name_generation(number) if number else building
            _copy_all(by_number[number], one.chosen, target, left_out)
        os.rename(building, out)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    newest = chosen[-1][1]
    own = sum(not each[0].of_job for each in newest.chosen.values())
    return Gathered(
        meta=newest.meta, ranks=tuple(newest.chosen), own=own, left_out=tuple(left_out), generations=len(chosen)
    )


class _Generation(Struct, frozen=True, kw_only=True):
    """What was found of one start of the ranks."""

    meta: RunMeta
    chosen: dict[int, list[_StreamInPart]]
    """By rank, as of `_choose`."""
    left_out: list[str]


def _choose_all(parts: Sequence[Path]) -> _Generation:
    meta = _read_one_job(parts)
    left_out: list[str] = []
    found: dict[int, list[_StreamInPart]] = {}
    for part in parts:
        for rank, stream in _look(part, meta, left_out):
            found.setdefault(rank, []).append(stream)
    chosen = {rank: _choose(rank, found[rank], left_out) for rank in sorted(found)}
    left_out += [f"rank {rank}: no folder has its stream" for rank in range(meta.world_size) if rank not in found]
    if any(each[0].lives for each in chosen.values()):
        left_out.append("what the job has yet to record: it is still running; gather again, into another folder, later")
    return _Generation(meta=meta, chosen=chosen, left_out=left_out)


def _read_one_job(parts: Sequence[Path]) -> RunMeta:
    metas = {part: read_meta(part) for part in parts if _has_run_json(part)}
    if not metas:
        raise DataError(f"{parts[0]}: no run.json here or in another folder: pass that of rank 0's host, too")
    first, meta = next(iter(metas.items()))
    for part, other in metas.items():
        if other.run_id != meta.run_id:
            raise DataError(f"{first} and {part}: two runs: pass the folders of one")
    return meta


def _has_run_json(part: Path) -> bool:
    return (part / "run.json").exists()


def _look(part: Path, meta: RunMeta, left_out: list[str]) -> Iterator[tuple[int, _StreamInPart]]:
    """The streams of a part, each with its rank; those that cannot be read are left out."""
    with _open_inside(part, "ranks") as inside:
        if inside is None:
            raise DataError(f"{part}: not a part of a run folder (no ranks/): pass one that a job has written")
        for name in list_streams(inside, []):
            path = part / "ranks" / name
            try:
                stream = read_stream(path, inside=inside)
            except (DataError, OSError) as error:
                said = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{path}: ")
                left_out.append(f"{path}: {said}")
                continue
            if stream.run_id != meta.run_id:
                raise DataError(f"{path}: of another run than {meta.name}'s run.json: pass the folders of one run")
            check_stream(path, stream, meta)
            steps, write = stream.rows[:, COLUMN["step"]], stream.info.last_write
            yield stream.info.rank, _StreamInPart(
                part=part, path=path, of_job=_has_run_json(part), last_step=float(steps.max()) if len(steps) else -1.0,
                lives=write is not None and write.writer_lives is True,
            )  # fmt: skip


def _choose(rank: int, found: Sequence[_StreamInPart], left_out: list[str]) -> list[_StreamInPart]:
    """The streams of a rank, the one to keep first: its own, unless rank 0 has got more steps from it than that has."""
    own = [each for each in found if not each.of_job]
    instead = [each for each in found if each.of_job]
    for same in (own, instead):
        for other in same[1:]:
            if not filecmp.cmp(same[0].path, other.path, shallow=False):
                raise DataError(
                    f"{same[0].part} and {other.part}: both have rank {rank}, and differ: pass one folder per host"
                )
    if own and instead and own[0].last_step < instead[0].last_step:
        left_out.append(
            f"{own[0].path}: ends before step {instead[0].last_step:.0f}, which rank 0 has of it: rank 0's is kept"
        )
        return [instead[0], own[0]]
    return [*own[:1], *instead[:1]]


def _copy_all(parts: Sequence[Path], chosen: dict[int, list[_StreamInPart]], out: Path, left_out: list[str]) -> None:
    """Copies the streams that were chosen, and what else there is of these ranks, first from where they wrote it."""
    for part in sorted(parts, key=_has_run_json):
        with open_folder(part) as root:
            for name in _OF_JOB if _has_run_json(part) else ():
                if (part / name).exists() and not (out / name).exists():
                    _copy(part / name, root, out / name)
        for folder in _list_folders(part):
            with _open_inside(part, folder) as inside:
                for name in [] if inside is None else sorted(os.listdir(inside)):
                    target = out / folder / name
                    if not _is_wanted(part, folder, name, chosen) or target.exists():
                        continue
                    try:
                        _copy(part / folder / name, inside, target)
                    except DataError as error:  # no file
                        left_out.append(str(error))


def _is_wanted(part: Path, folder: str, name: str, chosen: dict[int, list[_StreamInPart]]) -> bool:
    """Whether a file is of a rank's stream that was chosen, or of a rank that has one in this part."""
    of_stream = _OF_STREAM.fullmatch(name) if folder == "ranks" else None
    matched = of_stream or _BESIDE.fullmatch(name)
    found = chosen.get(int(matched[1]), []) if matched else []
    return any(each.part == part for each in (found[:1] if of_stream else found))


def _list_folders(part: Path) -> list[str]:
    kernels = part / "kernels"
    windows = sorted(kernels.iterdir()) if kernels.is_dir() and not kernels.is_symlink() else []
    names = ["ranks", "modules", "kernels", *(f"kernels/{path.name}" for path in windows)]
    return [name for name in names if _FOLDERS.fullmatch(name)]


@contextlib.contextmanager
def _open_inside(part: Path, folder: str) -> Iterator[int | None]:
    """The descriptor of a folder of a part, to which no link leads. None: there is no such folder."""
    with contextlib.ExitStack() as stack:
        inside: int | None = stack.enter_context(open_folder(part))
        path = part
        try:
            for name in folder.split("/"):
                path /= name
                inside = stack.enter_context(open_folder(path, inside=inside))
        except (FileNotFoundError, DataError):
            inside = None
        yield inside


def _copy(source: Path, inside: int | None, target: Path) -> None:
    """Copies a file and the time when it was written, which a report of a killed job tells."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_file(source, inside=inside) as file, target.open("xb") as copy:
        shutil.copyfileobj(file, copy)
        written = os.fstat(file.fileno())
    os.utime(target, ns=(written.st_atime_ns, written.st_mtime_ns))
