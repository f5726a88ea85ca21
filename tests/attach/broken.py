"""Makes parts of what watches a script fail at every call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pkgutil import resolve_name

import pytest


@contextlib.contextmanager
def break_parts(names: Iterable[str]) -> Iterator[None]:
    """Has functions and methods of distprof, given as ``room.module:Class.method``, raise for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            module, _, path = name.partition(":")
            place, _, attribute = path.rpartition(".")
            patch.setattr(resolve_name(f"distprof.{module}:{place}"), attribute, _fail)
        yield


def _fail(*args: object, **options: object) -> bool:
    raise LookupError("a fault inside distprof")
