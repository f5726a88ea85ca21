"""distprof: where did each rank's time go, which rank held the others up, and what would fixing it buy.

import distprof
profiler = distprof.start("my-run")          # see docs/api.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distprof.profiler.open_session import start
    from distprof.profiler.session.session import Session

__version__ = "0.1.0"
__all__ = ["Session", "__version__", "start"]
_PLACES = {"start": "distprof.profiler.open_session", "Session": "distprof.profiler.session.session"}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used: reports are made without torch."""
    if name not in _PLACES:
        raise AttributeError(f"module 'distprof' has no attribute {name!r}; there are {', '.join(__all__)}")
    import gc
    import importlib

    # What is imported stays: to look for garbage meanwhile, among all of torch, would take half as long again.
    collects = gc.isenabled()
    gc.disable()
    try:
        return getattr(importlib.import_module(_PLACES[name]), name)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return __all__
