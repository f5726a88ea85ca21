"""The Python stack of another thread: names of files and functions, never arguments, variables or paths."""

from __future__ import annotations

import sys
import sysconfig
from itertools import chain, islice
from pathlib import Path
from types import FrameType

MOST_FRAMES = 6
"""Frames kept: the innermost one, and then those of the user's own code before others."""
DEEPEST = 1_000
"""Frames looked at."""
_OWN = Path(__file__).resolve().parent.parent
_OTHERS = tuple(
    f"{path}/" for path in dict.fromkeys(
        [*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")), str(_OWN)]
    )
)  # fmt: skip
_TRAINING = f"{_OWN / 'train'}/"
"""The loop of distprof's own job is a user's code here."""


def read_stack(thread: int) -> tuple[tuple[str, ...], str | None]:
    """The frames of a thread, as in `distprof.facts.stand.Stand`: some of them, and the one to name.

    Args:
        thread: Its identifier, of another thread than the caller's.
    """
    innermost = sys._current_frames().get(thread)
    if innermost is None:
        return (), None
    frames: list[FrameType] = []
    frame: FrameType | None = innermost
    while frame is not None and len(frames) < DEEPEST:
        frames.append(frame)
        frame = frame.f_back
    users = [index for index, each in enumerate(frames) if _is_users(each)]
    rest = (index for index in range(len(frames)) if index not in users)
    kept = sorted(islice(dict.fromkeys(chain([0], users[: MOST_FRAMES - 1], rest)), MOST_FRAMES))
    return tuple(_name(frames[index]) for index in kept), _name(frames[users[0] if users else 0])


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_TRAINING) or not name.startswith((*_OTHERS, "<frozen"))


def _name(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
