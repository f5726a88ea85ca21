"""Points of scalars, computed by hand."""

from __future__ import annotations

import pytest

from distprof.render.wandb_scalars import make_points
from tests.factories import MS, make_run


def test_waits_inside_phases_are_exposed_communication() -> None:
    """Of a step of 100 ms, 15 are all_reduce, and 5 of grad_norm's and forward's a wait in there."""
    run = make_run(columns={"grad_norm_wait_host_ns": 2 * MS, "forward_wait_host_ns": 3 * MS})
    points = make_points(run.rows, run.meta, [])
    assert [point["comm/exposed_host_ratio"] for point in points] == pytest.approx([0.2] * 4)
    (without, *_) = make_points(make_run().rows, run.meta, [])
    assert without["comm/exposed_host_ratio"] == pytest.approx(0.15)
