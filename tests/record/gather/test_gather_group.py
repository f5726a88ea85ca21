"""The process group of distprof's own: the script's know nothing of it, and it outlives them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.record.gather.gather_group import make_devices, make_own_group
from distprof.world import World, collect_texts, find_largest
from tests.ranks import call_on_ranks


def make(world: World, name: str) -> dist.ProcessGroup:
    store = distributed_c10d.PrefixStore(name, distributed_c10d._get_default_store())  # type: ignore[attr-defined]
    return make_own_group(store, rank=world.rank, size=world.size, devices=make_devices(), timeout_s=40.0)


def live_beside_the_scripts_groups(world: World) -> None:
    known = list(distributed_c10d._world.pg_map), distributed_c10d._world.group_count
    own = make(world, "own")
    assert (list(distributed_c10d._world.pg_map), distributed_c10d._world.group_count) == known
    assert own.group_desc == "distprof"
    assert own._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=40)
    group = dist.new_group(backend="gloo")
    total = torch.tensor([world.rank + 1])
    dist.all_reduce(total, group=group)
    assert int(total) == 3 and find_largest(world.rank, group=own) == 1
    dist.destroy_process_group()
    assert collect_texts(f"rank {world.rank}", group=own) == ["rank 0", "rank 1"]


def test_it_is_none_of_the_scripts_groups_and_outlives_them(tmp_path: Path) -> None:
    call_on_ranks(2, live_beside_the_scripts_groups, tmp_path=tmp_path)


def test_an_interface_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    with pytest.raises(RuntimeError, match="none0"):
        make_devices()
