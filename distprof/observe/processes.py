"""Processes that a script starts itself: they are not watched, which it is told.

Those that libraries start for their own work are no news: workers of a DataLoader, of a pool, of torch's compiler.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from distprof.observe.parts import Patches, Recognition
from distprof.observe.reporting import Reporting

STARTED = (
    "processes that the script starts itself (torch.multiprocessing, multiprocessing.Process) are not watched: if they "
    "train, start the ranks with torchrun, or call distprof.start() in each of them"
)
SPAWN = "torch.multiprocessing.spawn"
"""Whose processes run a function of the caller's."""
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class Processes:
    """Recognises that a process is started."""

    def __init__(self, session: Reporting) -> None:
        """Looks at nothing yet; ``session`` is told."""
        self._session, self._starting = session, Recognition("the start of processes is", session)

    def install(self, patches: Patches) -> None:
        """Looks at them from now on."""
        self._starting.replace(patches, [BaseProcess], "start", self._watch_start)

    def _watch_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(process: Any, *args: Any, **options: Any) -> Any:
            self._starting.run(self._see, process)
            return original(process, *args, **options)

        return functools.wraps(original)(start)

    def _see(self, process: Any) -> None:
        if _runs_script(process):
            self._session.tell(STARTED)


def _runs_script(process: Any) -> bool:
    """Whether what runs in a process is the script's, and no library's."""
    work: Any = type(process).run
    if work is BaseProcess.run:
        work = process._target
    while isinstance(work, functools.partial):
        work = work.func
    name = getattr(work, "__module__", None) or ""
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    return name == SPAWN or not path.startswith(_LIBRARIES)
