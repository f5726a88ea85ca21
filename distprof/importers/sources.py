"""What lies at the paths a user names? Told by content, never by a name alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from distprof.errors import DataError
from distprof.importers.kineto import looks_like_kineto
from distprof.importers.nsys import looks_like_sqlite
from distprof.opening import open_folder

Kind = Literal["run", "kineto", "nsys", "nsys-rep"]
CAPTURES = (".nsys-rep", ".qdrep")
MAX_FILES = 100_000
WANTED = "expected a run folder, traces of PyTorch's profiler (JSON, gzipped or not) or captures of Nsight Systems"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One thing to read."""

    kind: Kind
    path: Path
    size_bytes: int
    """Of the file; 0 for a run folder."""


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """Everything to read, each once, in the order of the paths; inside a folder by name.

    Raises:
        DataError: A path is not there or is nothing distprof reads, or a folder holds nothing of the kind.
    """
    found: dict[Path, Source] = {}
    for path in paths:
        for source in _look(path):
            found.setdefault(source.path.resolve(), source)
    return list(found.values())


def find_windows(folder: Path) -> list[Source]:
    """The traces of a run's kernel windows; none where no window ran.

    Raises:
        OSError: They cannot be read.
        DataError: Their folder is a link, or holds something else.
    """
    windows = folder / "kernels"
    try:
        with open_folder(folder) as root, open_folder(windows, inside=root):
            return _scan(windows) if any(windows.iterdir()) else []
    except FileNotFoundError:
        return []


def _look(path: Path) -> Iterable[Source]:
    try:
        if path.is_dir():
            return [Source(kind="run", path=path, size_bytes=0)] if (path / "run.json").exists() else _scan(path)
        if not path.exists():
            raise DataError(f"{path}: no such file or folder: {WANTED}")
        source = _sniff(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    if source is None:
        raise DataError(f"{path}: not a file that distprof reads: {WANTED}")
    return [source]


def _scan(folder: Path) -> list[Source]:
    """The traces in a folder and one level below; a capture beside its own export is left to the export."""
    files, num_links = _list_files(folder)
    found = [source for source in map(_sniff, files) if source is not None]
    exported = {source.path.with_suffix("") for source in found if source.kind == "nsys"}
    kept = [source for source in found if source.kind != "nsys-rep" or source.path.with_suffix("") not in exported]
    if not kept:
        links = f" (links out of it are not followed: {num_links})" if num_links else ""
        raise DataError(f"{folder}: holds nothing that distprof reads{links}: {WANTED}")
    return kept


def _list_files(folder: Path) -> tuple[list[Path], int]:
    """Regular files in a folder and one level below, by path, and the number of links that lead out of it."""
    files: list[Path] = []
    num_links, inside = 0, os.path.join(os.path.realpath(folder), "")
    for item in itertools.chain(folder.glob("*"), folder.glob("*/*")):
        leads_out = not os.path.realpath(item).startswith(inside)
        num_links += leads_out and item.is_symlink()
        if not leads_out and item.is_file():
            files.append(item)
    return sorted(files)[:MAX_FILES], num_links


def _sniff(path: Path) -> Source | None:
    kind: Kind | None = None
    if not path.is_file():  # a pipe would make its reader wait
        return None
    if path.suffix in CAPTURES:
        kind = "nsys-rep"
    elif looks_like_sqlite(path):
        kind = "nsys"
    elif looks_like_kineto(path):
        kind = "kineto"
    return None if kind is None else Source(kind=kind, path=path, size_bytes=path.stat().st_size)
