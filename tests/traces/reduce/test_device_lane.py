"""What the device did at each moment of a step."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from distprof.analyze import analyze
from distprof.facts.trace_summary import DEVICE_STATES, DeviceLane
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.device_lane import PARTS
from distprof.traces.reduce.phase_names import USUAL_NAMES
from tests.kineto_file import make_kernel, make_launch, make_step, write_kineto

DATA = Path(__file__).resolve().parents[2] / "data"
REDUCE = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"


def list_stretches(lane: DeviceLane) -> list[tuple[str, int]]:
    """States in a row, and how many parts each takes."""
    return [(DEVICE_STATES[state], len([*same])) for state, same in itertools.groupby(lane.states)]


def test_work_and_each_cause_of_idling_stand_where_they_were(tmp_path: Path) -> None:
    """A step of 400 us, of which each part is 1 us: launched late, then computing, then only a collective."""
    events = [
        make_step(0, 1_000, 400), make_launch(1_100, 2, 1), make_kernel("gemm", 1_150, 100, 1),
        make_launch(1_110, 2, 2), make_kernel(REDUCE, 1_200, 120, 2, stream=9),
        make_launch(1_330, 2, 3), make_kernel("gemm", 1_350, 50, 3),
    ]  # fmt: skip
    run = read_paths([write_kineto(tmp_path / "trace.json", events)], USUAL_NAMES)
    (lane,) = run.activity[0].lanes.values()
    assert (lane.begin_ns, lane.end_ns, len(lane.states)) == (0, 400_000, PARTS)
    assert list_stretches(lane) == [
        ("host", 102), ("launch", 48), ("compute", 100), ("exposed", 70), ("host", 12), ("launch", 18), ("compute", 50),
    ]  # fmt: skip
    (timeline,) = analyze(run).timelines
    device = timeline.lanes[0].device
    assert device is not None and device.kinds[2] == "compute"
    assert (device.begin_ns[2], device.end_ns[2]) == (150_000, 250_000)


@pytest.mark.parametrize("rank", range(3))
def test_a_real_step_is_divided_as_its_sums_are(rank: int) -> None:
    run = read_paths([DATA / "v100_dlrm_8ranks" / f"rank{rank}.json.gz"], USUAL_NAMES)
    (summary,) = run.activity
    device = summary.device
    assert device is not None and summary.num_steps == 1
    sums = (device.compute_ns, device.memory_ns, device.idle_communication_ns, device.idle_host_ns,
            device.idle_launch_ns, device.idle_unknown_ns)  # fmt: skip
    lane = summary.lanes[max(summary.lanes)]
    assert lane.end_ns - lane.begin_ns == device.span_ns
    for state, spent_ns in enumerate(sums):
        drawn_ns = lane.states.count(state) / PARTS * device.span_ns
        assert drawn_ns == pytest.approx(spent_ns, abs=0.01 * device.span_ns), DEVICE_STATES[state]
