"""What a rank's parts are told about how to record."""

from __future__ import annotations

from typing import Any

import pytest

from distprof.config.schema import ProfileConfig
from distprof.profiler.job.rank_context import RankContext


@pytest.mark.parametrize(
    ("given", "connections", "every"),
    [("auto", None, None), ("auto", "1", 0), ("auto", "8", None), (4, "1", 4), (0, None, 0)],
)
def test_collectives_are_left_alone_where_one_queue_carries_all_streams_unless_asked_for(
    given: Any, connections: str | None, every: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if connections is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
    profile = ProfileConfig(
        level="phases", nvtx=False, nvtx_module_depth=0, window_s=1.0, shadow_every=0, max_overhead_ratio=None,
        collectives=given,
    )  # fmt: skip
    nobody: Any = None
    context = RankContext(world=nobody, profile=profile, timeout_s=1.0, print_line=print, warn=print)
    assert context.every == every
