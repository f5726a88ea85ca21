"""Files to one run: in parallel processes or one after another, with the run folder they belong to or without."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from benchmarks.synthetic_traces import make_kineto
from distprof.analyze import analyze
from distprof.errors import DataError
from distprof.facts.trace_summary import TraceSummary
from distprof.storage.run_folder import kernel_path, write_meta
from distprof.traces import reduce_sources as reading
from distprof.traces.load_run import load_run
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.phase_names import NameMap
from tests.factories import make_meta
from tests.kineto_file import make_sound, write_kineto
from tests.storage.test_run_folder import write_rank
from tests.traces.traced_ranks import unpack

NAMES = NameMap()


def make_traces(folder: Path, num_ranks: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(num_ranks):
        path = folder / f"rank-{rank:05d}.json.gz"
        make_kineto(path, rank=rank, world_size=num_ranks, num_events=1_500, num_steps=3, seed=rank)
    return folder


def make_run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "ranks").mkdir(parents=True)
    write_meta(folder, make_meta(run_id="id-1", world_size=2, started_utc="2025-07-01T23:00:00+00:00"))
    for rank in range(2):
        write_rank(folder, rank, [0, 1, 2])
    return folder


def assert_alike(one: Sequence[TraceSummary], other: Sequence[TraceSummary]) -> None:
    np.testing.assert_equal([*map(unpack, one)], [*map(unpack, other)])


@pytest.mark.slow
def test_side_by_side_is_one_after_the_other_and_progress_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_traces(tmp_path)
    alone = read_paths([folder], NAMES)
    monkeypatch.setattr(reading, "MIN_PARALLEL_BYTES", 0)
    told: list[tuple[int, int]] = []
    together = read_paths([folder], NAMES, lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert np.array_equal(alone.rows, together.rows, equal_nan=True)
    assert (alone.meta, alone.ranks) == (together.meta, together.ranks)
    assert_alike(alone.activity, together.activity)
    assert len(alone.collectives) == len(together.collectives) > 0


@pytest.mark.slow
@pytest.mark.parametrize("least_bytes", [0, 1 << 40], ids=["side by side", "one after the other"])
def test_a_damaged_file_costs_itself_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_bytes: int
) -> None:
    folder = make_traces(tmp_path)
    damaged = folder / "rank-00001.json.gz"
    damaged.write_bytes(damaged.read_bytes()[:-2_000])
    monkeypatch.setattr(reading, "MIN_PARALLEL_BYTES", least_bytes)
    run = read_paths([folder], NAMES)
    assert [info.rank for info in run.ranks] == [0, 2] and run.meta.world_size == 3
    (reason,) = run.unread
    assert reason.startswith(f"{damaged}: ") and "\n" not in reason
    facts = analyze(run).coverage
    assert not facts.complete and facts.ranks_missing == (1,)
    assert facts.notes[0] == f"not readable and left out: {reason}"


def test_a_file_that_nobody_missed_makes_the_result_partial_all_the_same(tmp_path: Path) -> None:
    """No file says how many ranks there were, so the others look complete."""
    for rank in range(2):
        write_kineto(tmp_path / f"{rank}.json", make_sound())
    assert analyze(read_paths([tmp_path], NAMES)).coverage.complete
    (tmp_path / "2.json").write_text('{"traceEvents": [{')
    assert not analyze(read_paths([tmp_path], NAMES)).coverage.complete


def test_where_nothing_is_readable_the_first_reason_is_said(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text('{"traceEvents": [{')
    with pytest.raises(DataError, match=r"rank0\.json: .*and 1 more that cannot be read") as refused:
        read_paths([tmp_path], NAMES)
    assert "\n" not in str(refused.value)


def test_one_damaged_kernel_window_of_two_costs_that_rank_only(tmp_path: Path) -> None:
    run_folder = make_run_folder(tmp_path)
    make_traces(run_folder / "kernels", 2)
    kernel_path(run_folder, 0).write_bytes(b'{"traceEvents": [{')
    run = load_run(run_folder)
    assert [item.rank for item in run.activity] == [1]
    (warning,) = run.warnings
    assert warning.startswith("kernel windows are left out: ") and "rank-00000.json.gz" in warning


def test_traces_that_were_over_before_the_run_began_are_refused(tmp_path: Path) -> None:
    run_folder = make_run_folder(tmp_path)
    traces = make_traces(tmp_path / "traces", 2)
    write_meta(run_folder, make_meta(run_id="id-1", world_size=2, started_utc="2026-07-01T23:00:00+00:00"))
    with pytest.raises(DataError, match=r"rank-00000\.json\.gz ends 2025-.*, but the run started 2026-07-01 23:00:00"):
        read_paths([run_folder, traces], NAMES)


def test_two_run_folders_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    with pytest.raises(DataError, match="two runs"):
        read_paths([tmp_path / "one", tmp_path / "two"], NAMES)


def test_a_damaged_kernel_window_costs_the_window_and_not_the_run(tmp_path: Path) -> None:
    run_folder = make_run_folder(tmp_path)
    path = kernel_path(run_folder, 0)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'{"traceEvents": [{')
    run = load_run(run_folder)
    assert run.activity == () and len(run.ranks) > 0
    assert any("kernel windows are left out" in warning for warning in run.warnings)


def test_traces_named_beside_a_run_folder_are_joined_to_it(tmp_path: Path) -> None:
    run_folder = make_run_folder(tmp_path)
    ranks = len(load_run(run_folder).ranks)
    run = read_paths([run_folder, make_traces(tmp_path / "traces", ranks)], NAMES)
    assert [item.rank for item in run.activity] == list(range(ranks)) and run.traced_rows is not None
    shutil.copytree(tmp_path / "traces", run_folder / "kernels")
    inside = load_run(run_folder)
    assert_alike(
        *([structs.replace(item, head=run.activity[0].head) for item in found.activity] for found in (inside, run))
    )
