"""Where a rank stands, in 16 bytes of memory that are also a file beside its stream: they outlive a killed process.

To keep them up to date is two stores into memory. The kernel writes them whenever it likes, and after a kill too.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path
from typing import Protocol

from distprof.config.decode import MAX_EXACT
from distprof.facts.run import PHASES
from distprof.facts.stand import Stand

SUFFIX = ".position"
BETWEEN, UNKNOWN = -1, -2
"""In place of a phase's code: between two steps; in a step whose phases are not recorded."""
_FORM = struct.Struct("=qq")


class Position(Protocol):
    """The step, and the phase's code or `BETWEEN` or `UNKNOWN`. Before the first step: -1."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


def make_place() -> Position:
    """A place in memory alone."""
    return [-1, BETWEEN]


def open_place(stream: Path) -> Position | None:
    """The same in a file beside a stream. None: this file system does not do that."""
    try:
        descriptor = os.open(stream.with_suffix(SUFFIX), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError:
        return None
    try:
        os.write(descriptor, _FORM.pack(-1, BETWEEN))
        return memoryview(mmap.mmap(descriptor, _FORM.size)).cast("q")
    except OSError:
        drop_place(stream)
        return None
    finally:
        os.close(descriptor)


def drop_place(stream: Path) -> None:
    """Deletes the file of a rank that has said how it ended."""
    with contextlib.suppress(OSError):
        stream.with_suffix(SUFFIX).unlink()


def read_place(stream: Path, *, inside: int) -> Stand | None:
    """Where a rank stood last. None: there is no such file, or nothing in it makes sense, or no step has begun.

    Args:
        stream: Its stream.
        inside: Descriptor of the containing folder; links are not followed.
    """
    try:
        descriptor = os.open(
            stream.with_suffix(SUFFIX).name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside
        )
    except OSError:
        return None
    try:
        data = os.read(descriptor, _FORM.size + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if len(data) != _FORM.size:
        return None
    step, code = _FORM.unpack(data)
    if not 0 <= step < MAX_EXACT or not UNKNOWN <= code < len(PHASES):
        return None
    return Stand(source="place", step=step, inside=code != BETWEEN, phase=PHASES[code] if code >= 0 else None)


def describe_place(stand: Stand) -> str:
    """The same in words."""
    if not stand.inside:
        return f"after step {stand.step}, before the next"
    return f"in step {stand.step}" + (f", {stand.phase}" if stand.phase else "")
