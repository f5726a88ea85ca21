"""What scripts do before and between their first steps: recording starts beside them, and nothing of it waits there."""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

import distprof
from distprof.cli.parser import run_verb
from distprof.profiler import open_session
from distprof.profiler.job import agreement, early_watch
from distprof.profiler.job.agreement import Rendezvous
from distprof.profiler.session.session import Session
from distprof.record.gather import gather
from distprof.storage.run_folder import read_run
from distprof.world import World
from tests.profiler.session.session_case import LONG
from tests.ranks import call_on_ranks, find_ports

STEPS = 6


def begin(folder: str) -> Session:
    session = distprof.start(run_dir=folder, window_s=0.05, **LONG)
    session.find_steps()
    return session


def train(steps: int = STEPS) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def refuse(*arguments: object, **options: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def break_the_interface() -> None:
    gather.list_script_devices = list  # as where the script's groups are NCCL's
    os.environ["GLOO_SOCKET_IFNAME"] = "none0"


def break_the_group() -> None:
    agreement.make_own_group = refuse  # type: ignore[assignment]


def train_where_one_cannot_connect(world: World, folder: str, break_it: Callable[[], None]) -> None:
    said: list[str] = []
    open_session.print_to_stderr = said.append
    os.environ["RANK"] = str(world.rank)  # who says what is said once
    session = begin(folder)
    assert agreement.CONNECT_S <= 20
    agreement.CONNECT_S = 1.0
    if world.rank == 1:
        break_it()
    train()
    session.close()
    told = [line for line in said if "nothing is recorded" in line]
    assert len(told) == (world.rank == 0), said
    assert all("rank 1: " in line and "could not connect" in line for line in told)


@pytest.mark.parametrize("break_it", [break_the_interface, break_the_group])
def test_fault_43_where_a_rank_cannot_make_our_group_training_goes_on(
    break_it: Callable[[], None], tmp_path: Path
) -> None:
    call_on_ranks(2, train_where_one_cannot_connect, str(tmp_path / "run"), break_it, tmp_path=tmp_path)
    assert not (tmp_path / "run").exists()


def connect_after_a_restart(world: World) -> None:
    agreement._numbers = itertools.count()
    meeting = Rendezvous()
    meeting.open(rank=world.rank, size=world.size)
    meeting._store.set("group/rows/rank_0", "an address that nobody listens to")
    meeting._store.set("answer", "stay")  # that time some had not come
    dist.barrier()
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    agreement._numbers = itertools.count()  # as in a new process
    again = Rendezvous()
    again.open(rank=world.rank, size=world.size)
    again.meet()
    (group,) = again.connect("rows")
    assert group.size() == 2


def test_fault_43_addresses_of_before_a_restart_are_not_used(tmp_path: Path) -> None:
    call_on_ranks(2, connect_after_a_restart, tmp_path=tmp_path)


def connect_where_launchers_count_differently(world: World) -> None:
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(world.rank)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # every start has a store of its own
    agreement._numbers = itertools.count()
    meeting = Rendezvous(limit_s=10)
    meeting.open(rank=world.rank, size=world.size)
    meeting.meet()


def test_fault_43_launchers_that_count_restarts_differently_do_not_keep_ranks_apart(tmp_path: Path) -> None:
    """As those of two nodes do: one has seen its rank fail, the other a node that came back."""
    call_on_ranks(2, connect_where_launchers_count_differently, tmp_path=tmp_path)


def train_stages(world: World, folder: str) -> None:
    """Ranks 0 and 1 are the stages of a pipeline; rank 2 never steps."""
    early_watch.STAND_BY_NAP_S = 0.02
    session = begin(folder)
    if world.rank < 2:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            given, grad = torch.ones(2, 4), torch.ones(2, 4)
            if world.rank == 1:
                dist.recv(given, 0)
            given.requires_grad_()
            made = model(given)
            if world.rank == 0:
                dist.send(made.detach(), 1)
                dist.recv(grad, 1)
            made.backward(grad)
            if world.rank == 1:
                dist.send(given.grad, 0)  # type: ignore[arg-type]
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
    session.close()


def test_fault_44_a_pipeline_beside_a_rank_that_never_steps_is_recorded_and_blames_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_on_ranks(3, train_stages, str(tmp_path / "run"), tmp_path=tmp_path)
    run = read_run(tmp_path / "run")
    recorded = {info.rank: len(run.column("step")[row]) for row, info in enumerate(run.ranks) if row < 2}
    assert recorded == {0: STEPS, 1: STEPS} and [info.point_to_point for info in run.ranks[:2]] == [True] * 2
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    verdict = report["verdict"]
    assert report["coverage"]["ranks_missing"] == [2]  # and it is said
    assert (verdict["kind"], verdict["rank"]) == ("none", None)
    assert "the stages of a pipeline wait for each other by design" in verdict["reason"]
    run_verb(["report", str(tmp_path / "run")])
    assert "rank 2 is missing: it recorded no step" in capsys.readouterr().out


def train_again(world: World, folder: str, place: str, port: int | None, idle: bool) -> None:
    make_group(world, place, port, 0)
    session = begin(folder)
    assert isinstance(session, open_session.OwnSession)
    for turn in range(3):
        if turn:
            make_group(world, place, port, turn)
        elif idle:
            while session._rendezvous._store is None:
                time.sleep(0.01)
            continue
        train()
    assert not session.closed
    session.close()


def make_group(world: World, place: str, port: int | None, turn: int) -> None:
    """Leaves the group that there is, and makes another one."""
    dist.barrier()  # gloo may still be connecting
    dist.destroy_process_group()
    left, url = Path(f"{place}{turn}.left"), f"file://{place}{turn}"
    if port is not None:  # rank 1 must not take the store of before, which rank 0 serves, for the next one
        url = f"tcp://127.0.0.1:{port}"
        left.touch() if world.rank == 0 else wait_for(left)
    dist.init_process_group("gloo", init_method=url, rank=world.rank, world_size=2)
    store = distributed_c10d._get_default_store()
    assert port is None or not store.check(["used"]), "it serves what ranks of before have said"
    dist.barrier()
    store.set("used", "")


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


@pytest.mark.parametrize("way", ["file", "port", "idle"])
def test_fault_45_groups_that_are_left_and_made_again_find_the_ranks_together(way: str, tmp_path: Path) -> None:
    """By files; on the same port, where nothing of distprof may keep the store of before open; and without a step as
    long as there was the first of them, whose store is of no use to the others."""
    port, idle = (None if way == "file" else find_ports(1)[0]), way == "idle"
    call_on_ranks(2, train_again, str(tmp_path / "run"), str(tmp_path / "again"), port, idle, tmp_path=tmp_path)
    run = read_run(tmp_path / "run")
    assert [info.ended for info in run.ranks] == ["completed"] * 2
    assert run.column("step").shape == (2, (3 - idle) * STEPS)
