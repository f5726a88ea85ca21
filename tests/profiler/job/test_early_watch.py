"""Ranks that wait for each other before their first step: written down, and deleted if the wait ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from distprof.facts.run import Launch
from distprof.profiler.job import early_watch
from distprof.profiler.job.agreement import Rendezvous
from distprof.profiler.job.early_watch import EarlyWatch
from distprof.profiler.job.run_files import JobPlan
from distprof.storage.run_folder import read_run
from distprof.world import Identity, World


def make_rank(rank: int, store: object, folder: Path, said: list[str]) -> tuple[EarlyWatch, World]:
    watch = EarlyWatch(
        plan=JobPlan(name="early", config={}, runs_dir=str(folder), run_dir=None), print_line=said.append,
        rendezvous=Rendezvous(), stand_by=lambda world: None, is_over=lambda: False, find_recorder=lambda: None,
    )  # fmt: skip
    watch._store, watch._rank = store, rank
    identity = Identity(rank=rank, local_rank=rank, world_size=2, local_world_size=2, launched=True, restarts=0)
    return watch, World(identity=identity, host="host", device=torch.device("cpu"), backend="gloo", notes=())


def test_every_rank_writes_where_it_stands_and_deletes_it_when_the_wait_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: set[int] = set()
    said: list[str] = []
    store = dist.HashStore()  # type: ignore[attr-defined]
    ranks = [make_rank(rank, store, tmp_path, said) for rank in range(2)]

    def look() -> None:
        for watch, world in ranks:
            monkeypatch.setattr(early_watch, "_has_waited", lambda limit_s, rank=world.rank: rank in waits)
            watch._look(world, 8.0)

    look()
    assert not list(tmp_path.iterdir())
    for again in range(2):
        waits.add(again)
        look()
        look()
        (folder,) = tmp_path.iterdir()
        assert said == [f"distprof: ranks wait for each other at their first steps: distprof report {folder}"]
        stands = [info.stand for info in read_run(folder).ranks]
        assert [stand is not None and (stand.step, stand.stalled_s) for stand in stands] == [(None, 8.0)] * 2
        waits.clear()
        look()
        look()
        assert not list(tmp_path.iterdir())
        said.clear()
    waits.add(0)
    look()
    look()
    for watch, _ in ranks:
        watch.drop()  # the first step begins
    assert not list(tmp_path.iterdir())


def test_a_rank_stands_where_it_has_waited_not_where_it_is_once_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wait may time out while the folder is made, as on a busy machine."""
    begun, timed_out = threading.Event(), threading.Event()

    def wait_in_a_collective() -> None:
        begun.set()
        timed_out.wait()

    def make_folder(plan: JobPlan, launch: Launch | None) -> Path:
        timed_out.set()
        training.join()
        return make(plan, launch)

    monkeypatch.setattr(early_watch, "_has_waited", lambda limit_s: True)
    make = JobPlan.make_folder
    monkeypatch.setattr(JobPlan, "make_folder", make_folder)
    watch, world = make_rank(0, dist.HashStore(), tmp_path, [])  # type: ignore[attr-defined]
    training = threading.Thread(target=wait_in_a_collective)
    training.start()
    begun.wait()
    watch._training = training.ident or 0
    watch._look(world, 8.0)
    (folder,) = tmp_path.iterdir()
    (stand,) = [info.stand for info in read_run(folder).ranks if info.rank == 0]
    assert stand is not None and any("wait_in_a_collective" in frame for frame in stand.stack)


def test_who_ends_without_a_step_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_watch, "_has_waited", lambda limit_s: True)
    store, said = dist.HashStore(), list[str]()  # type: ignore[attr-defined]
    ranks = [make_rank(rank, store, tmp_path, said) for rank in range(2)]
    for watch, world in ranks:
        watch._look(world, 8.0)
    error = RuntimeError("timed out")
    folders = [watch.end("failed", "RuntimeError: timed out", error) for watch, _ in ranks]
    assert folders == [*tmp_path.iterdir(), None]
    assert [info.ended for info in read_run(tmp_path / str(folders[0])).ranks] == ["failed"] * 2
