"""Whose store the ranks find each other over."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from distprof.profiler.job import agreement
from distprof.profiler.job.agreement import Rendezvous


@pytest.mark.parametrize("served_by", ["launcher", "rank 0", "another port"])
def test_only_a_store_of_the_launcher_stays_when_the_groups_are_left(
    served_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = dist.PrefixStore("default", dist.PrefixStore("worker", served))
    monkeypatch.setattr(agreement, "clone_store", lambda: store)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setenv("MASTER_PORT", str(served.port + (served_by == "another port")))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(served_by != "rank 0"))
    rendezvous = Rendezvous()
    assert rendezvous.open(rank=0, size=2)
    dist.PrefixStore(rendezvous._prefix, store).add("here", 1)  # another rank's first step
    rendezvous.close()
    assert rendezvous.outlives_groups == rendezvous.has_begun() == (served_by == "launcher")
