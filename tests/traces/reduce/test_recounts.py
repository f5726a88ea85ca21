"""Figures from real traces, exact to the nanosecond, against `recounts`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from distprof.facts.run import COLUMN
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import trace_rank
from tests.traces.reduce.real_traces import SHARED
from tests.traces.reduce.recounts import recount

KINETO = SHARED / "data" / "kineto"
FILES = sorted(path for path in KINETO.rglob("*") if path.name.endswith((".json", ".json.gz")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_real_traces_are_counted_as_by_plain_loops(path: Path) -> None:
    found, truth = trace_rank(read_kineto(path), NameMap()), recount(path)
    activity = found.activity
    if truth is None:
        assert (activity.device, activity.queue, activity.kernels) == (None, None, ())
        return
    assert activity.device is not None and activity.queue is not None
    assert activity.num_steps == truth.steps
    assert found.rows[:, COLUMN["step_device_ns"]].tolist() == truth.step_ns
    assert dataclasses.asdict(activity.device) == {f"{name}_ns": ns for name, ns in truth.times.items()}
    assert activity.queue.max == truth.queue_max
    assert activity.queue.mean == pytest.approx(truth.queue_ns / truth.times["span"], rel=1e-9)
    assert activity.queue.empty_ratio == pytest.approx(truth.empty_ns / truth.times["span"], abs=1e-12)
    assert sum(kernel.count for kernel in activity.kernels) == truth.launches


def test_every_file_beside_the_checkout_is_counted() -> None:
    if not KINETO.is_dir():
        pytest.skip("no data/kineto beside the checkout")
    assert len(FILES) >= 19
