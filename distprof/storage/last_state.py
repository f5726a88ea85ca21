"""What a rank leaves that could write nothing itself: files beside its stream that outlive a killed process.

Its step and phase are in 16 bytes of memory that are also a file. Keeping them up to date takes two stores into memory;
the kernel writes them to disk whenever it likes, and after a kill too. Its stack is as Python's faulthandler writes it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from distprof.config.decode import MAX_EXACT
from distprof.facts.run import PHASES
from distprof.facts.stand import MAX_FRAMES, RankState

POSITION_SUFFIX, STACK_SUFFIX = ".position", ".stack"
BETWEEN, UNKNOWN = -1, -2
"""In place of a phase's code: between two steps; in a step whose phases are not recorded."""
MAX_STACK_BYTES = 1 << 16
_FORM = struct.Struct("=qq")
_FRAME = re.compile(r'  File "([^"]{1,500})", line (\d{1,9}) in (.{1,500})')
_NOT_THE_USERS = re.compile(
    r"<|.*/(site-packages|dist-packages|python3\.\d+)/|.*/distprof/((attach|observe|profiler|record)/|\w+\.py)"
)
Stack = tuple[tuple[str, ...], str | None]
"""As in `distprof.facts.stand.RankState`: the innermost frames, and the one to name."""


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
        descriptor = os.open(stream.with_suffix(POSITION_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
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
    """Deletes the place of a rank that has said how it ended."""
    with contextlib.suppress(OSError):
        stream.with_suffix(POSITION_SUFFIX).unlink()


def drop_last_stack(stream: Path) -> None:
    """Deletes the stack of such a rank."""
    with contextlib.suppress(OSError):
        stream.with_suffix(STACK_SUFFIX).unlink()


def read_place(stream: Path, *, inside: int) -> RankState | None:
    """Where a rank stood last. None: there is no such file, or nothing in it makes sense, or no step has begun.

    Args:
        stream: Its stream.
        inside: Descriptor of the containing folder; links are not followed.
    """
    data = _read_beside(stream, POSITION_SUFFIX, inside, _FORM.size + 1)
    if len(data) != _FORM.size:
        return None
    step, code = _FORM.unpack(data)
    if not 0 <= step < MAX_EXACT or not UNKNOWN <= code < len(PHASES):
        return None
    return RankState(source="place", step=step, inside=code != BETWEEN, phase=PHASES[code] if code >= 0 else None)


def describe_place(stand: RankState) -> str:
    """The same in words."""
    if not stand.inside:
        return f"after step {stand.step}, before the next"
    return f"in step {stand.step}" + (f", {stand.phase}" if stand.phase else "")


def read_last_stack(stream: Path, *, inside: int) -> Stack:
    """A rank's stack. Both parts empty: there is none. The arguments are those of `read_place`."""
    text = _read_beside(stream, STACK_SUFFIX, inside, MAX_STACK_BYTES).decode(errors="replace")
    found = [found for line in text.splitlines() if (found := _FRAME.fullmatch(line))]
    return choose_frames([(frame[1], int(frame[2]), frame[3]) for frame in found])


def _read_beside(stream: Path, suffix: str, inside: int, max_bytes: int) -> bytes:
    """The begin of a file beside a stream; nothing if it cannot be read."""
    try:
        name = stream.with_suffix(suffix).name
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
    except OSError:
        return b""
    try:
        return os.read(descriptor, max_bytes)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def choose_frames(frames: Sequence[tuple[str, int, str]]) -> Stack:
    """What to show of a stack that was read from outside: files, lines and functions, the innermost first."""
    names = [f"{Path(file).name}:{line} {function}" for file, line, function in frames]
    users = [name for name, frame in zip(names, frames, strict=True) if not _NOT_THE_USERS.match(frame[0])]
    return tuple(names[:MAX_FRAMES]), next(iter(users or names), None)
