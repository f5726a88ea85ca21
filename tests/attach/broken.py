"""Makes parts of what watches a script fail at every call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import pytest

from distprof.observe.step_search import StepSearch


@contextlib.contextmanager
def break_parts(names: Iterable[str]) -> Iterator[None]:
    """Has methods of `StepSearch` raise, for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(StepSearch, name, _fail)
        yield


def _fail(*args: object, **options: object) -> bool:
    raise LookupError("a fault inside distprof")
