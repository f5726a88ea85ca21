"""The run folders that this process writes into: nothing is written into what has taken the place of one.

A folder is the one in which the job began as long as it has the same number on the same device. A link, or another
folder of its name, is not followed; a folder that was moved and linked to is.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

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
