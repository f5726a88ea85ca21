"""The stack of a rank that could write nothing itself: a file beside its stream, as Python's faulthandler writes it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from distprof.facts.stand import MAX_FRAMES

Stack = tuple[tuple[str, ...], str | None]
"""As in `distprof.facts.stand.Stand`: the innermost frames, and the one to name."""
SUFFIX = ".stack"
MAX_BYTES = 1 << 16
_FRAME = re.compile(r'  File "([^"]{1,500})", line (\d{1,9}) in (.{1,500})')
_NOT_THE_USERS = re.compile(
    r"<|.*/(site-packages|dist-packages|python3\.\d+)/|.*/distprof/((attach|observe|profiler|record)/|\w+\.py)"
)


def drop_last_stack(stream: Path) -> None:
    """Deletes the file of a rank that has said how it ended."""
    with contextlib.suppress(OSError):
        stream.with_suffix(SUFFIX).unlink()


def read_last_stack(stream: Path, *, inside: int) -> Stack:
    """The frames, as in `distprof.facts.stand.Stand`: the innermost ones, and the one to name. Both empty: none there.

    Args:
        stream: The rank's stream.
        inside: Descriptor of the containing folder; links are not followed.
    """
    try:
        name = stream.with_suffix(SUFFIX).name
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
    except OSError:
        return (), None
    try:
        text = os.read(descriptor, MAX_BYTES).decode(errors="replace")
    except OSError:
        return (), None
    finally:
        os.close(descriptor)
    found = [found for line in text.splitlines() if (found := _FRAME.fullmatch(line))]
    return choose_frames([(frame[1], int(frame[2]), frame[3]) for frame in found])


def choose_frames(frames: Sequence[tuple[str, int, str]]) -> Stack:
    """What to tell of a stack that was read from outside: files, lines and functions, the innermost first."""
    names = [f"{Path(file).name}:{line} {function}" for file, line, function in frames]
    users = [name for name, frame in zip(names, frames, strict=True) if not _NOT_THE_USERS.match(frame[0])]
    return tuple(names[:MAX_FRAMES]), next(iter(users or names), None)
