"""What the hosts of a job say of themselves, and their clocks and links, gathered before there is a training."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from msgspec import Struct

from distprof.facts.run import ClockReading, LinkReading
from distprof.record.hosts.clock_sync import identify_host, name_host, read_clocks
from distprof.record.hosts.link_probe import probe_links
from distprof.world import World, collect_texts


class HostsTold(Struct, frozen=True, kw_only=True):
    """What every rank has got from all of them."""

    hosts: Sequence[str]
    """By rank."""
    facts: Sequence[Any]
    """By rank, plain values; None of a rank that says nothing."""
    wall_clocks: Sequence[ClockReading] = ()
    """Against rank 0's, in rank order; empty: there is one rank."""
    links: Sequence[LinkReading] = ()
    """To rank 0's host, over gloo."""


def exchange_facts(world: World, facts: Any) -> HostsTold:
    """Tells all ranks what this one knows. Collective over the default process group, which is gloo's.

    Args:
        world: This process among the ranks.
        facts: Plain values of its host. None: another rank of the host tells them.

    Raises:
        RuntimeError: A rank has gone, or does not answer.
    """
    if world.size == 1:
        return HostsTold(hosts=[world.host], facts=[facts])
    group = dist.group.WORLD
    assert group is not None
    host = name_host(world.host, group=group)
    told = [json.loads(text) for text in collect_texts(json.dumps([host, facts]), group=group)]
    return HostsTold(
        hosts=[name for name, _ in told], facts=[each for _, each in told],
        wall_clocks=read_clocks(group, clock=identify_host(), now_ns=time.time_ns), links=probe_links(group),
    )  # fmt: skip
