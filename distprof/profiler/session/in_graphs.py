"""What the methods of a session do in a graph of `torch.compile`: nothing, which the report says.

Blocks are plain ones there, which may hold graph breaks. The functions have neither defaults nor closures: dynamo would
look for those of the methods.
"""

from __future__ import annotations

import contextlib
from typing import Any

from distprof.compiling import hide, replace_in_graphs

_BLOCK = contextlib.nullcontext()


def replace_methods(session: type) -> None:
    """Has a kind of session do nothing in graphs."""
    for name, instead in (
        ("step", _step), ("phase", _phase), ("stretch", _stretch), ("steps", _steps), ("data", _data),
        ("add_work", _add_work), ("keep_scalars", _keep_scalars),
    ):  # fmt: skip
        replace_in_graphs(getattr(session, name), instead)


def _step(self: Any, *arguments: Any, **options: Any) -> Any:
    hide("profiler.step()")
    return _BLOCK


def _phase(self: Any, *arguments: Any, **options: Any) -> Any:
    hide("profiler.phase()")
    return _BLOCK


def _stretch(self: Any, *arguments: Any, **options: Any) -> Any:
    hide("profiler.stretch()")
    return _BLOCK


def _steps(self: Any, *arguments: Any, **options: Any) -> Any:
    hide("profiler.steps()")
    return arguments[0] if arguments else options["batches"]


def _data(self: Any, *arguments: Any, **options: Any) -> Any:
    hide("profiler.data()")
    return arguments[0] if arguments else options["batches"]


def _add_work(self: Any, *arguments: Any, **options: Any) -> None:
    hide("profiler.add_work()")


def _keep_scalars(self: Any, *arguments: Any, **options: Any) -> None:
    hide("profiler.keep_scalars()")
