"""Which probe a job is asked for: of the network that its collectives use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distprof.facts.run import ClockReading, LinkReading
from distprof.profiler.job import host_readings
from distprof.profiler.job.host_readings import HostReadings
from distprof.storage.run_folder import read_meta
from tests.factories import make_meta

CLOCK = ClockReading(rank=0, at_ns=1, offset_ns=0, bound_ns=0)


@pytest.mark.parametrize(("backend", "asked"), [("gloo", ["gloo", "gloo"]), ("nccl", ["nccl"])])
def test_links_are_probed_over_the_jobs_own_backend(
    backend: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def probe(network: str, *arguments: object, **options: object) -> tuple[LinkReading, ...]:
        seen.append(network)
        return (LinkReading(rank=1, bytes_per_s=1e9, network=network),)

    monkeypatch.setattr(host_readings, "read_clocks", lambda group: (CLOCK,))
    monkeypatch.setattr(host_readings, "probe_links", lambda *rest, **more: probe("gloo", *rest, **more))
    monkeypatch.setattr(host_readings, "probe_device_links", lambda *rest, **more: probe("nccl", *rest, **more))
    world = SimpleNamespace(rank=0, backend=backend, device=torch.device("cpu"))
    setting: Any = SimpleNamespace(world=world, folder=tmp_path)
    group: Any = None
    writer: Any = None
    readings = HostReadings(setting, group, make_meta(backend=backend), writer)
    readings.read_first()
    readings.read_last()
    assert seen == asked
    meta = read_meta(tmp_path)  # as it was written
    assert [link.network for link in (*meta.link_readings, *meta.last_link_readings)] == asked
    assert meta.clock_readings == (CLOCK, CLOCK)
