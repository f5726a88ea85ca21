"""Processes that a script starts itself are not watched, and it is told so."""

from __future__ import annotations

from typing import Any

import pytest
import torch.multiprocessing

from distprof.observe import functions
from distprof.observe.finder import Finder
from tests.observe.told import Told


def test_processes_that_torch_spawns_are_said_not_to_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def start_processes(function: Any, args: Any = (), nprocs: int = 1, *more: Any, **options: Any) -> str:
        started.append((function, nprocs))
        return "context"

    monkeypatch.setattr(functions.spawning, "start_processes", start_processes)
    monkeypatch.setattr(torch.multiprocessing, "start_processes", start_processes)
    told = Told()
    finder = Finder(told)
    finder.begin()
    assert torch.multiprocessing.start_processes(print, nprocs=2) == "context"  # type: ignore[attr-defined]
    assert torch.multiprocessing.spawn(len, nprocs=3) == "context"  # type: ignore[attr-defined]
    assert started == [(print, 2), (len, 3)] and set(told.notes) == {functions.SPAWNED}
    finder.undo()
    assert functions.spawning.start_processes is start_processes is torch.multiprocessing.start_processes  # type: ignore[attr-defined]
