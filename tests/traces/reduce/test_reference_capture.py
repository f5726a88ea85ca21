"""A real capture's numbers, built into an export and read back: what its range table shows, and what it hides."""

from __future__ import annotations

from pathlib import Path

import pytest

from distprof.facts.trace import Trace
from distprof.facts.trace_summary import RangeTotal
from distprof.traces.nsys.read_nsys import read_nsys
from distprof.traces.reduce.device_work import examine_device
from distprof.traces.reduce.ranges import total_ranges
from tests.reference_export import (
    BACKWARD_NS,
    BEGIN_NS,
    FORWARD_NS,
    FOUR_TIMES,
    KERNELS,
    LAYER_PARTS,
    OPTIMIZER_NS,
    STEP_NS,
    WARMUP_NS,
    make_reference_export,
)  # fmt: skip

STEP_WINDOW = [(BEGIN_NS + WARMUP_NS, BEGIN_NS + WARMUP_NS + STEP_NS)]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    (found,) = read_nsys(make_reference_export().write(Path(tmp_path_factory.mktemp("capture")) / "train.sqlite"))
    return found


@pytest.fixture(scope="module")
def step(trace: Trace) -> dict[str, RangeTotal]:
    return {total.name: total for total in total_ranges(examine_device(trace), window=STEP_WINDOW)}


def test_the_whole_capture_has_the_totals_of_the_real_one(trace: Trace) -> None:
    totals = {total.name: (total.count, total.host_ns) for total in total_ranges(examine_device(trace), window=None)}
    assert totals["warmup"] == (1, WARMUP_NS)
    assert {name: totals[name] for name in FOUR_TIMES} == {name: (4, facts[0]) for name, facts in FOUR_TIMES.items()}
    for parts in LAYER_PARTS.values():
        assert {name: totals[name] for name, _ in parts} == {name: (128, total_ns) for name, total_ns in parts}
    assert int((trace.gpu.end_ns - trace.gpu.begin_ns).sum()) == sum(fact.total_ns for fact in KERNELS)
    assert len(trace.gpu.call) == sum(fact.launches for fact in KERNELS)
    assert (trace.gpu.call >= 0).all()


def test_the_step_is_measured_and_the_warmup_left_out(step: dict[str, RangeTotal]) -> None:
    """844, 1,732 and 179 of 2,758 ms."""
    phases = ("forward_pass", "backward_pass", "optimizer_step", "profiled_step")
    assert [step[name].host_ns for name in phases] == [FORWARD_NS, BACKWARD_NS, OPTIMIZER_NS, STEP_NS]
    assert [round(step[name].host_ns / 1e6) for name in phases] == [844, 1732, 179, 2758]
    assert {step[name].warmup_count for name in phases} == {0}
    assert {step[name].count for name in (*FOUR_TIMES, "forward_pass")} == {1}
    assert {step[name].warmup_count for name in FOUR_TIMES} == {3}
    assert (step["warmup"].count, step["warmup"].warmup_host_ns) == (0, WARMUP_NS)


def test_host_shares_are_not_device_shares(step: dict[str, RangeTotal]) -> None:
    """The table suggested 69 % for attention: including the warm-up, and on the host's clock."""
    attention, ffn, whole = (step[name] for name in ("attention_sublayer", "ffn_sublayer", "profiled_step"))
    assert (attention.host_ns + attention.warmup_host_ns) / STEP_NS == pytest.approx(0.688, abs=0.001)
    assert attention.host_ns / STEP_NS == pytest.approx(0.186, abs=0.001)
    assert attention.gpu_ns is not None and ffn.gpu_ns is not None and whole.gpu_ns is not None
    assert attention.gpu_ns / whole.gpu_ns == pytest.approx(0.091, abs=0.001)
    assert ffn.gpu_ns / whole.gpu_ns == pytest.approx(0.229, abs=0.001)
    assert attention.host_ns > 2 * ffn.host_ns
    assert ffn.gpu_ns > 2 * attention.gpu_ns


def test_backward_is_launched_by_another_thread_and_belongs_to_its_range(trace: Trace) -> None:
    backward = {}
    for other in (True, False):
        totals = total_ranges(examine_device(trace), window=STEP_WINDOW, other_threads=other)
        (backward[other],) = [total for total in totals if total.name == "backward_pass"]
    assert (backward[False].gpu_ns, backward[False].activities) == (0, 0)
    launches = sum(count for fact in KERNELS for place, count, _ in fact.places if place == "backward_pass")
    assert backward[True].activities == launches
    assert (backward[True].gpu_ns or 0) > 1.6e9
