"""What `launch/gpu_check.sh` asks of a run's collectives on the device: a made-up job, and worse ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.gpu_check.check_result import CheckResult, NotHere
from benchmarks.gpu_check.collective_values import (
    compare_kernels,
    count_backward,
    find_stride,
    find_timed_ratio,
    find_worst_anchor_us,
)
from benchmarks.gpu_check.job_checks import KERNELS, JobCheck, check_job
from benchmarks.gpu_check.made_up import EVERY, make_up
from distprof.facts.run import COLUMN, Run
from distprof.storage.run_folder import kernel_path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_up(tmp_path)


def change(run: Run, **arrays: np.ndarray) -> Run:
    return replace(run, device_collectives=(replace(run.device_collectives[0], **arrays),))


def test_what_is_whole_is_found_whole(run: Run, tmp_path: Path) -> None:
    assert (find_timed_ratio(run), count_backward(run), find_stride(run)) == (1.0, 0.0, EVERY)
    assert find_worst_anchor_us(run) == 5.0 and compare_kernels(run, tmp_path) == pytest.approx(0, abs=0.01)


def test_what_lacks_an_end_or_an_arrival_is_missed_and_what_runs_backward_counted(run: Run) -> None:
    (item,) = run.device_collectives
    end_ns = item.end_ns.copy()
    end_ns[0, 0, 0] = np.nan
    assert find_timed_ratio(change(run, end_ns=end_ns)) == 1 - 1 / end_ns.size
    end_ns[:, 0, 0] = 0.0
    assert count_backward(change(run, end_ns=end_ns)) == len(item.ranks)
    bare = replace(run, device_collectives=())
    assert np.isnan([find_timed_ratio(bare), count_backward(bare), find_stride(bare)]).all()
    with pytest.raises(NotHere, match="no collectives on one rank"):
        find_timed_ratio(replace(bare, collectives=()))


def test_a_rank_without_a_reading_of_its_clock_is_not_within_any_bound(run: Run) -> None:
    rows = run.rows.copy()
    rows[1, :, COLUMN["anchor_bound_ns"]] = np.nan
    assert np.isnan(find_worst_anchor_us(replace(run, rows=rows)))
    rows[1, 3, COLUMN["anchor_bound_ns"]] = 60_000
    assert find_worst_anchor_us(replace(run, rows=rows)) == 60.0


def test_a_collective_may_be_off_its_kernel_by_two_percent_or_20_us(run: Run, tmp_path: Path) -> None:
    (item,) = run.device_collectives
    late_ns = item.end_ns.copy()
    late_ns[0, -1, -1] += 1e6  # the last of a step in the window
    off = compare_kernels(change(run, end_ns=late_ns), tmp_path)
    took_ns = item.end_ns[0, -1, -1] - max(item.arrival_ns[0, -1, -1], item.end_ns[0, -1, -2])
    assert off == pytest.approx(1e6 / max(0.02 * took_ns, 20_000), rel=0.01) and off > 1
    late_ns[0, 0, 0] += 1e9  # not in the window
    assert compare_kernels(change(run, end_ns=late_ns), tmp_path) == off


def test_where_there_are_no_kernels_of_nccl_the_check_is_skipped_with_the_reason(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gzip.open(kernel_path(tmp_path, 0), "wt") as file:
        json.dump({"traceEvents": [{"cat": "kernel", "name": "gemm", "ts": 1, "dur": 1}], "distprof": {}}, file)
    monkeypatch.setattr("benchmarks.gpu_check.job_checks.make_up", lambda folder: run)
    job = JobCheck(name="alone", overrides=(), expected=(KERNELS,))
    (found,) = check_job(job, tmp_path, dry=True)
    assert found.judge() == found.judge(dry=True) == "skipped"
    assert "n/a" in found.describe() and "one rank has nobody to talk to" in found.describe()
    (item,) = run.device_collectives
    early = {name: getattr(item, name)[:, :3] for name in ("arrival_ns", "end_ns", "exposed_ns")}
    whole = make_up(tmp_path)
    with pytest.raises(NotHere, match="no step of the window"):
        compare_kernels(change(whole, steps=item.steps[:3], **early), tmp_path)


def test_skipped_is_not_failed() -> None:
    assert CheckResult(name="a", value=None, low=0, skipped=True).judge() == "skipped"
    assert CheckResult(name="a", value=None, low=0).judge() == "FAILED"
