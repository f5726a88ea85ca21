"""The process group of distprof's own: it works as any other, and costs one thread less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.record import own_group
from distprof.record.own_group import make_own_group
from distprof.world import World
from tests.ranks import call_on_ranks


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def add_up(world: World, group: dist.ProcessGroup) -> float:
    total = torch.tensor([float(world.rank + 1)])
    dist.all_reduce(total, group=group)
    return float(total)


def share_the_device(world: World) -> None:
    class_before = distributed_c10d.ProcessGroupGloo  # type: ignore[attr-defined]
    groups, added = [], []
    for make in (lambda: dist.new_group(backend="gloo"), lambda: make_own_group(timedelta(seconds=40))):
        before = count_threads()
        groups.append(make())
        assert add_up(world, groups[-1]) == 3.0
        added.append(count_threads() - before)
    assert added[1] == added[0] - 1, added
    own = groups[1]
    assert dist.get_backend(own) == "gloo" and own.group_desc == "distprof"
    assert own._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=40)
    assert distributed_c10d.ProcessGroupGloo is class_before  # type: ignore[attr-defined]
    dist.destroy_process_group(groups[0])
    assert add_up(world, own) == 3.0 and add_up(world, dist.group.WORLD) == 3.0  # type: ignore[arg-type]
    dist.destroy_process_group(own)
    assert add_up(world, dist.group.WORLD) == 3.0  # type: ignore[arg-type]


def make_one_where_torch_does_not_tell(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_group, "_find_options", lambda: None)
        assert add_up(world, make_own_group()) == 3.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_group._C10D, "_get_default_group", object)  # as one without gloo
        assert own_group._find_options() is None


@pytest.mark.parametrize("case", [share_the_device, make_one_where_torch_does_not_tell])
def test_own_group(case: object, tmp_path: Path) -> None:
    call_on_ranks(2, case, tmp_path=tmp_path)  # type: ignore[arg-type]


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("value", [False, None])
def test_fault_42_a_constructor_is_given_one_argument_more_which_does_not_matter(alone: None, value: object) -> None:
    with own_group._on_device_of_default_group():
        made = distributed_c10d.ProcessGroupGloo(  # type: ignore[attr-defined]
            dist.HashStore(), 0, 1, timeout=timedelta(seconds=40), enable_reconfigure=value
        )
    default = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    assert made.options._timeout == timedelta(seconds=40) and made.options._devices == default.options._devices


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (("store", 0, 1), {"timeout": timedelta(0), "enable_reconfigure": True}),
        (("store", 0, 1, "more"), {"timeout": timedelta(0)}), (("store", 0, 1), {}),
    ],
)  # fmt: skip
def test_fault_42_a_constructor_that_is_given_something_else_is_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, args: tuple[object, ...], options: dict[str, object]
) -> None:
    class Gloo:
        def __init__(self, *args: object, **options: object) -> None:
            self.given = args, options

    monkeypatch.setattr(own_group, "_find_options", object)
    monkeypatch.setattr(own_group._C10D, "ProcessGroupGloo", Gloo)
    with own_group._on_device_of_default_group():
        assert own_group._C10D.ProcessGroupGloo(*args, **options).given == (args, options)
