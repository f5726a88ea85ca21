"""The process group of distprof's own: it works as any other, and costs one thread less."""

from __future__ import annotations

import os
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
