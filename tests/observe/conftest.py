"""A session that is told what torch does while a test runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from distprof.observe.finder import Finder
from tests.observe.told import Told


@pytest.fixture
def told() -> Iterator[Told]:
    told = Told()
    finder = Finder(told)
    finder.begin()
    finder.begin()  # a second time changes nothing
    yield told
    finder.finish()
    finder.undo()
    finder.undo()
