"""The Python stack of another thread, or of an error: names of files and functions, never variables or paths."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from distprof.facts.stand import MAX_FRAMES

MOST_INNER = 2
"""Of the frames kept, innermost ones that are not the user's code."""
DEEPEST = 1_000
"""Frames looked at."""
_OWN = f"{Path(__file__).resolve().parent.parent.parent}/"
_TRAINING = f"{_OWN}train/"
"""The loop of distprof's own job is a user's code here."""
_LIBRARIES = tuple(
    f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)  # fmt: skip
_MADE_UP = "<"
"""Begins the names of code that is in no file, but for the cells of a notebook."""
_CELL = "<ipython"


def read_stack(thread: int) -> tuple[tuple[str, ...], str | None]:
    """The frames of a thread, as in `distprof.facts.stand.Stand`: some of them, and the one to name.

    Args:
        thread: Its identifier, of another thread than the caller's.
    """
    frames: list[tuple[FrameType, int]] = []
    frame = sys._current_frames().get(thread)
    while frame is not None and len(frames) < DEEPEST:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return _choose(frames)


def read_trace(error: BaseException) -> tuple[tuple[str, ...], str | None]:
    """The same of what an error has come through; both parts are empty if it was never raised."""
    return _choose(list(traceback.walk_tb(error.__traceback__))[: -DEEPEST - 1 : -1])


def _choose(frames: Sequence[tuple[FrameType, int]]) -> tuple[tuple[str, ...], str | None]:
    """The innermost first, each with its line."""
    shown = [each for each in frames if not _is_own(each[0])] or frames
    users = [index for index, each in enumerate(shown) if _is_users(each[0])]
    inner = [index for index in range(len(shown)) if index not in users][: MOST_INNER if users else MAX_FRAMES]
    kept = sorted([*[index for index in inner if not users or index < users[0]], *users])[:MAX_FRAMES]
    names = tuple(_name(*shown[index]) for index in kept)
    return names, _name(*shown[users[0]]) if users else next(iter(names), None)


def _is_own(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_OWN) and not name.startswith(_TRAINING)


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return not name.startswith((*_LIBRARIES, _MADE_UP)) or name.startswith((_CELL, _TRAINING))


def _name(frame: FrameType, line: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{line} {frame.f_code.co_name}"
