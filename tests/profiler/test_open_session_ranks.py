"""`distprof.start` on several ranks, and what ends it there when the script does not."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import nullcontext
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import ProcessExitedException
from torch.nn.parallel import DistributedDataParallel

import distprof
from distprof.profiler import open_session
from distprof.profiler.job import agreement, exit_guard
from distprof.world import World
from tests.profiler.session.session_case import LONG, find_run
from tests.ranks import call_on_ranks


def train(folder: str, name: str, *, marked: bool = True, **options: Any) -> None:
    """As scripts do: no close, no block."""
    os.chdir(folder)
    profiler = distprof.start(name, **LONG, **options)
    model = DistributedDataParallel(nn.Linear(4, 4))
    profiler.watch(torch.compile(nn.ModuleDict({"inner": model}), backend="eager"))  # type: ignore[arg-type]
    profiler.watch(nn.Linear(1, 1))
    for batch in profiler.steps(torch.ones(4, 2, 4)):
        with profiler.phase("forward") if marked else nullcontext():
            loss = model(batch).sum()
        with profiler.phase("backward") if marked else nullcontext():
            loss.backward()


def end_after_the_group(world: World, folder: str) -> None:
    train(folder, "first", find=False)
    train(folder, "second", marked=False)
    dist.destroy_process_group()
    assert not dist.is_initialized() and not list(Path(folder).glob("runs/*_second/report.json"))
    atexit._run_exitfuncs()
    assert dist.destroy_process_group.__module__.startswith("torch.") and os._exit.__name__ == "_exit"


def test_the_group_that_exists_is_used_and_the_job_ends_after_it(tmp_path: Path) -> None:
    call_on_ranks(2, end_after_the_group, str(tmp_path), tmp_path=tmp_path)
    for name in ("_first", "_second"):
        run = find_run(tmp_path, name)
        assert [info.ended for info in run.ranks] == ["completed"] * 2 and run.meta.strategy == "ddp"
        assert any("neither DDP nor FSDP" in note for note in run.ranks[0].notes)
        for phase in ("data", "forward", "backward"):
            assert (run.column(f"{phase}_host_ns")[:, 1:] > 0).all()
        assert run.meta.config["strategy"] == {"name": "ddp", "bucket_mb": 25.0}
        assert (run.column("all_reduce_count")[:, 1:] == 1).all() and run.column("step").shape == (2, 4)
        assert (run.column("all_reduce_host_ns") > 0).any() and len(run.meta.clock_readings) == 4


def start_on_one_rank(world: World, folder: str) -> None:
    os.chdir(folder)
    agreement.ABSENT_S = 0.3
    said: list[str] = []
    open_session.print_to_stderr = said.append
    profiler = distprof.start("mine") if world.rank == 0 else None
    for batch in [1, 2] if profiler is None else profiler.steps([1, 2]):
        total = torch.tensor([batch])
        dist.all_reduce(total)
        assert int(total) == 2 * batch
    if profiler is not None:
        profiler.close()
        assert said == [
            "distprof: nothing is recorded: rank(s) 1 had no first step; call distprof.start() on every rank"
        ]


def test_a_start_on_one_rank_only_costs_the_recording_and_not_the_job(tmp_path: Path) -> None:
    call_on_ranks(2, start_on_one_rank, str(tmp_path), tmp_path=tmp_path)
    assert not (tmp_path / "runs").exists()


def leave_before_the_others(world: World, folder: str) -> None:
    """As by ``sys.exit`` after the loop, on one rank."""
    exit_guard.EXIT_WAIT_S = 0.1
    train(folder, "mine")
    job = open_session._open[-1].job
    assert job is not None
    job.wait(60.0)
    store = dist.distributed_c10d._get_default_store()
    if world.rank == 1:
        atexit._run_exitfuncs()
        store.set("left", "")
        store.wait(["done"])
    else:
        store.wait(["left"])
        atexit._run_exitfuncs()
        store.set("done", "")


def test_a_rank_that_leaves_alone_waits_for_nobody(tmp_path: Path) -> None:
    call_on_ranks(2, leave_before_the_others, str(tmp_path), tmp_path=tmp_path)
    assert [info.ended for info in find_run(tmp_path).ranks] == ["completed"] * 2


def leave_in_every_way(world: World, folder: str) -> None:
    """What Python does when a process ends, short of ending it."""
    os.chdir(folder)
    train(folder, "plain")
    util._run_finalizers()  # as in a child of multiprocessing, which runs no others
    profiler = distprof.start("inside", **LONG)
    profiler.begin_step()
    atexit._run_exitfuncs()
    train(folder, "error")
    try:
        raise ZeroDivisionError("no luck")
    except ZeroDivisionError as error:
        sys.last_value = error  # set for an error that nobody has caught, before this:
    atexit._run_exitfuncs()
    train(folder, "signal")
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()


def test_whatever_ends_a_process_ends_its_session(tmp_path: Path) -> None:
    with pytest.raises(ProcessExitedException) as left:
        call_on_ranks(1, leave_in_every_way, str(tmp_path), tmp_path=tmp_path)
    assert left.value.exit_code == -signal.SIGTERM  # as without us
    ends = {name: find_run(tmp_path, f"_{name}").ranks[0] for name in ("plain", "inside", "error", "signal")}
    assert {name: (info.ended, info.error) for name, info in ends.items()} == {
        "plain": ("completed", None), "inside": ("terminated", "the process ended inside a step"),
        "error": ("failed", "ZeroDivisionError: no luck"), "signal": ("terminated", "SIGTERM between two steps"),
    }  # fmt: skip
    assert len(list((tmp_path / "runs").glob("*/report.html"))) == 3  # not after a signal
