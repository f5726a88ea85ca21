"""Whether a function that is about to be wrapped takes its arguments where distprof reads them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from inspect import Parameter
from typing import Any


class Misfit(Exception):
    """A release has something else than what distprof knows; it is not wrapped."""


def require_fit(place: Any, name: str, reads: Mapping[int, str] | None = None) -> Any:
    """A function of a module or class, if it is as it was known.

    Args:
        place: The module or class.
        name: Of the function.
        reads: The names of the arguments that are read, by position.

    Raises:
        Misfit: It is not there, or takes one of the arguments elsewhere or under another name.
    """
    full = f"{getattr(place, '__qualname__', None) or getattr(place, '__name__', type(place).__name__)}.{name}"
    function = getattr(place, name, None)
    if function is None:
        raise Misfit(f"this torch has no {full}")
    for position, argument in (reads or {}).items():
        if not _takes(function, position, argument):
            raise Misfit(f"{full} of this torch takes no `{argument}` as its argument {position + 1}")
    return function


def _takes(function: Any, position: int, argument: str) -> bool:
    """Whether an argument stands where it is read. A function that does not tell, as one written in C, takes it."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return True
    if any(each.kind is Parameter.VAR_POSITIONAL for each in parameters[: position + 1]):
        return True
    return position < len(parameters) and parameters[position].name == argument
