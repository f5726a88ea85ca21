"""Real traces against `recounts`, to the nanosecond: those in tests/data, and more beside the checkout."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from distprof.analyze import analyze
from distprof.facts.plain import make_plain
from distprof.facts.run import COLUMN
from distprof.facts.trace_summary import Category, KernelTotal, LaunchGaps
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.kernel_names import classify_kernel
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import trace_rank
from tests.traces.reduce.real_traces import SHARED
from tests.traces.reduce.recounts import recount

KINETO = SHARED / "data" / "kineto"
EXCERPTS = Path(__file__).resolve().parents[2] / "data"
FILES = sorted(path for folder in (EXCERPTS, KINETO) for path in folder.rglob("*.json*") if path.is_file())
MARKED = [pytest.param(path, marks=pytest.mark.slow if path.is_relative_to(KINETO) else ()) for path in FILES]


@pytest.mark.parametrize("path", MARKED, ids=lambda path: f"{path.parent.name}/{path.name.partition('.')[0]}")
def test_real_traces_are_counted_as_by_plain_loops(path: Path) -> None:
    found, truth = trace_rank(read_kineto(path), NameMap()), recount(path)
    activity = found.activity
    if truth is None:
        assert (activity.device, activity.queue, activity.kernels) == (None, None, ())
        return
    assert activity.device is not None and activity.queue is not None
    assert activity.num_steps == truth.steps
    assert found.rows[:, COLUMN["step_device_ns"]].tolist() == truth.step_ns
    assert make_plain(activity.device) == {f"{name}_ns": ns for name, ns in truth.times.items()}
    assert activity.queue.max == truth.queue_max
    assert activity.queue.mean == pytest.approx(truth.queue_ns / truth.times["span"], rel=1e-9)
    assert activity.queue.empty_ratio == pytest.approx(truth.empty_ns / truth.times["span"], abs=1e-12)
    assert sum(kernel.count for kernel in activity.kernels) == truth.launches
    assert activity.unobserved_ns == truth.unseen_ns
    check_gaps(activity.gaps, truth.gaps)
    assert sum(activity.idle_host_in.values()) == activity.device.idle_host_ns
    check_kernels(activity.kernels, truth.kernels)


def check_gaps(found: LaunchGaps | None, truth: list[tuple[int, str]]) -> None:
    """The longest by length and name, and the distribution of all."""
    if found is None:
        assert not truth
        return
    long = [ns for ns, _ in truth]
    assert (found.count, found.median_ns) == (len(truth), statistics.median(long))
    assert found.p90_ns == sorted(long)[math.ceil(len(long) * 9 / 10) - 1]
    assert [gap.length_ns for gap in found.longest] == long[:10]
    assert {(gap.length_ns, gap.name) for gap in found.longest} <= set(truth)


def check_kernels(found: Sequence[KernelTotal], truth: dict[str, tuple[int, int]]) -> None:
    """Each kernel that is kept, and the categories: what is kept of one and what is summed up is all of it."""
    named = {kernel.name: (kernel.count, kernel.total_ns) for kernel in found if not kernel.name.startswith("(other ")}
    assert named.items() <= truth.items()
    categories: Counter[str] = Counter()
    for kernel in found:
        categories[kernel.category] += kernel.total_ns
    counted: Counter[str] = Counter()
    for name, (_, ns) in truth.items():
        counted[Category.COPY if name.startswith(("Memcpy", "Memset", "CopyDevice")) else classify_kernel(name)] += ns
    assert +categories == +counted


def test_every_file_is_counted() -> None:
    assert sum(path.is_relative_to(EXCERPTS) for path in FILES) == 11
    if not KINETO.is_dir():
        pytest.skip("no data/kineto beside the checkout")
    assert len(FILES) >= 11 + 19


def test_all_ranks_of_a_real_job_make_one_report() -> None:
    """Step time and exposed communication of eight ranks; the verdict needs more than one step."""
    folder = EXCERPTS / "v100_dlrm_8ranks"
    truths = [recount(path) for path in sorted(folder.iterdir())]
    report = analyze(read_paths([folder], NameMap()))
    assert report.coverage.ranks_present == tuple(range(8)) and report.world_size == 8
    assert report.verdict.rank is None and report.coverage.steps_measured == 1
    assert report.activity is not None
    for found, truth in zip(report.activity.devices, truths, strict=True):
        assert truth is not None
        assert found.span_ns == truth.times["span"]
        assert found.idle_communication_ns == truth.times["idle_communication"]
