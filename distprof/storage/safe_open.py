"""Opens untrusted files without blocking, and without following anything out of a folder.

A path that the user types may be a link. What is inside a folder may be anything that its sender put there: a pipe that
blocks its reader, an endless device, or a link to somebody else's file. Every reader opens its files here.

How much of a foreign file is read before it is refused is limited too: its size says little, and its author is unknown.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from distprof.errors import DataError

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {stat.S_IFLNK: "a link, which is not followed", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe",
          stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}  # fmt: skip
SQLITE_MAGIC = b"SQLite format 3\0"


class Limits(Struct, frozen=True, kw_only=True):
    """Limits for one file, far above any trace that a profiler writes. A file beyond a limit is refused as a whole."""

    max_bytes: int = 4 << 30
    """Text after decompression; for a database, the file size."""
    max_ratio: float = 200.0
    """Text size over compressed size. Profilers' traces reach 30, decompression bombs 1,000."""
    free_bytes: int = 16 << 20
    """Text that is read before ``max_ratio`` applies."""
    max_events: int = 20_000_000
    """Events, or rows of all tables that are read, used or not."""
    max_part_bytes: int = 32 << 20
    """The longest single event, and the longest text before or after the events."""
    max_name_letters: int = 4096
    """Longer names are cut and counted; the file stays readable."""
    max_names_letters: int = 64 << 20
    """All distinct names together; names beyond it share one name and are counted."""


USUAL_LIMITS = Limits()


@contextlib.contextmanager
def open_folder(path: Path, *, inside: int | None = None) -> Iterator[int]:
    """The descriptor of a folder; files opened relative to it are in this folder, even if it is renamed meanwhile.

    Args:
        path: The folder.
        inside: Descriptor of the containing folder; links are then not followed. None: the user named the path.

    Raises:
        OSError: It does not exist, or must not be read.
        DataError: It is not a folder, or is a link inside another folder.
    """
    _require(path, stat.S_IFDIR, inside)
    flags = _FLAGS | os.O_DIRECTORY
    descriptor = os.open(path, flags) if inside is None else os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: Path, *, inside: int | None = None, max_bytes: int | None = None) -> BinaryIO:
    """Opens a regular file for reading.

    Args:
        path: The file.
        inside: Descriptor of the containing folder; links are then not followed. None: the user named the path.
        max_bytes: Largest size accepted. None: the reader limits what it reads.

    Raises:
        OSError: It does not exist, or must not be read.
        DataError: It is not a regular file, is a link inside a folder, or is too large.
    """
    _require(path, stat.S_IFREG, inside)  # merely opening a device may have an effect
    flags = _FLAGS if inside is None else _FLAGS | os.O_NOFOLLOW
    file = os.fdopen(os.open(path if inside is None else path.name, flags, dir_fd=inside), "rb")
    try:
        found = os.fstat(file.fileno())
        _check(path, found, stat.S_IFREG)  # it may have been replaced meanwhile
        if max_bytes is not None and found.st_size > max_bytes:
            raise DataError(f"{path}: {found.st_size:,} bytes: more than the limit of {max_bytes:,}")
    except BaseException:
        file.close()
        raise
    return file


def _require(path: Path, kind: int, inside: int | None) -> None:
    if inside is None:
        _check(path, os.stat(path), kind)
    else:
        _check(path, os.stat(path.name, dir_fd=inside, follow_symlinks=False), kind)


def _check(path: Path, found: os.stat_result, kind: int) -> None:
    if stat.S_IFMT(found.st_mode) != kind:
        wanted = "folder" if kind == stat.S_IFDIR else "file"
        raise DataError(f"{path}: not a {wanted}: {_KINDS.get(stat.S_IFMT(found.st_mode), 'a file')}")


def begins_with(path: Path, begin: bytes) -> bool:
    """Whether it is a regular file that begins so.

    Raises:
        OSError: It cannot be read.
    """
    try:
        with open_file(path) as file:
            return file.read(len(begin)) == begin
    except DataError:
        return False


_known: dict[Path, tuple[int, int]] = {}


def keep_in_mind(folder: Path) -> None:
    """From now on `require_own` knows this folder. Raises OSError if there is none."""
    _known[folder.absolute()] = _identify(folder)


def require_own(path: Path) -> None:
    """Refuses a path in a run folder of this process if that is another folder now, or if a link leads out of it.

    Raises:
        OSError: It is.
    """
    path = path.absolute()
    for folder in (path, *path.parents):
        own = _known.get(folder)
        if own is None:
            continue
        try:
            same = _identify(folder) == own
        except FileNotFoundError:
            return  # whoever writes says so
        inside = path.relative_to(folder).parents[:-1]
        if not same or any((folder / part).is_symlink() for part in inside):
            raise OSError(errno.ESTALE, "something else has taken the place of the run folder", str(folder))


def _identify(folder: Path) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino
