"""Processes that a script starts itself are not watched, and it is told so; those of libraries are their own."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.process import BaseProcess

import pytest
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader

from distprof.observe.finder import Finder
from distprof.observe.functions import STARTED
from tests.observe.told import Told


def train(*arguments: object) -> None:
    """Stands for a rank."""


class Trainer(torch.multiprocessing.Process):  # type: ignore[misc, name-defined]
    def run(self) -> None:
        train()


def run(process: BaseProcess) -> None:
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.fixture
def told() -> Iterator[Told]:
    told, original = Told(), BaseProcess.start
    finder = Finder(told)
    finder.begin()
    yield told
    finder.undo()
    assert BaseProcess.start is original


FORK = torch.multiprocessing.get_context("fork")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "start",
    [
        lambda: torch.multiprocessing.start_processes(train, nprocs=2, start_method="fork"),  # type: ignore[attr-defined]
        lambda: run(multiprocessing.get_context("fork").Process(target=train)),
        lambda: run(FORK.Process(target=functools.partial(train, 1))),
        lambda: run(Trainer()),
    ],
    ids=["start_processes", "Process", "partial", "subclass"],
)
def test_the_scripts_processes_are_said_not_to_be_watched(start: Callable[[], None], told: Told) -> None:
    multiprocessing.set_start_method("fork", force=True)
    try:
        start()
    finally:
        multiprocessing.set_start_method(None, force=True)
    assert set(told.notes) == {STARTED}


def use_pool() -> None:
    with ProcessPoolExecutor(1, mp_context=FORK) as pool:
        assert pool.submit(abs, -1).result() == 1
    with FORK.Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]


def load() -> None:
    assert len([*DataLoader([1.0, 2.0], num_workers=1, multiprocessing_context="fork")]) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [use_pool, load], ids=["pools", "DataLoader"])
def test_the_workers_of_libraries_are_no_news(start: Callable[[], None], told: Told) -> None:
    start()
    assert told.notes == []
