"""Files that nobody here made: opened so that nobody is waited for, and nothing is followed out of a folder.

A path that a user types may be a link. What lies inside a folder may be anything that its sender put there: a pipe
whose reader waits, a device without an end, a link to a file that is none of theirs. Every reader opens its files here.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from distprof.errors import DataError

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {stat.S_IFLNK: "a link, which is not followed", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe",
          stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}  # fmt: skip


@contextlib.contextmanager
def open_folder(path: Path, *, inside: int | None = None) -> Iterator[int]:
    """The descriptor of a folder: what is opened in it is in this folder, whatever becomes of its name meanwhile.

    Args:
        path: The folder.
        inside: Descriptor of the folder that holds it; a link is then not followed. None: the user named it.

    Raises:
        OSError: There is none, or it must not be read.
        DataError: It is something else, or a link inside another folder.
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
        inside: Descriptor of the folder that holds it; a link is then not followed. None: the user named it.
        max_bytes: What it may hold at most. None: its reader bounds what it takes.

    Raises:
        OSError: There is none, or it must not be read.
        DataError: It is something else, a link inside a folder, or too large.
    """
    _require(path, stat.S_IFREG, inside)  # opening a device may do something already
    flags = _FLAGS if inside is None else _FLAGS | os.O_NOFOLLOW
    file = os.fdopen(os.open(path if inside is None else path.name, flags, dir_fd=inside), "rb")
    try:
        found = os.fstat(file.fileno())
        _check(path, found, stat.S_IFREG)  # it may be another one by now
        if max_bytes is not None and found.st_size > max_bytes:
            raise DataError(f"{path}: {found.st_size:,} bytes: more than the {max_bytes:,} that are read")
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
