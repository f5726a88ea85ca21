"""The process group of distprof's own, over gloo, which the script's process groups know nothing of.

It is made over the store of the script's default group. ``torch.distributed.new_group`` would count it among the
script's own, and has to be called by all ranks in the same order. Its device is its own, too: where a script leaves its
groups and makes them again, that of its first group must not go on listening.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.record.collectives.flight_recorder import OWN_GROUP

_C10D: Any = distributed_c10d


def make_devices() -> list[Any]:
    """What a group's connections use on this host, as torch itself chooses it.

    Raises:
        RuntimeError: There is none, such as with an interface that does not exist in GLOO_SOCKET_IFNAME.
    """
    gloo, names = _C10D.ProcessGroupGloo, os.environ.get("GLOO_SOCKET_IFNAME", "")
    if names:
        return [gloo.create_device(interface=name) for name in names.split(",")]
    return [gloo.create_default_device()]


def make_own_group(store: Any, *, rank: int, size: int, devices: list[Any], timeout_s: float) -> dist.ProcessGroup:
    """A gloo group of all ranks that nothing else uses. Collective.

    Args:
        store: Which the ranks use for no other group.
        rank: Of this process.
        size: The number of ranks.
        devices: From `make_devices`.
        timeout_s: How long the ranks try to connect, and how long the group's collectives wait for a missing rank.

    Raises:
        RuntimeError: The ranks did not connect.
    """
    options = _C10D.ProcessGroupGloo._Options()
    options._devices, options._timeout = devices, timedelta(seconds=timeout_s)
    backend = _C10D.ProcessGroupGloo(store, rank, size, options)
    group: Any = dist.ProcessGroup(store, rank, size)
    kind = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    group._register_backend(torch.device("cpu"), kind, backend)
    group._set_group_name(OWN_GROUP)
    group._set_group_desc(OWN_GROUP)
    made: dist.ProcessGroup = group
    return made
