"""Files to one run: in processes side by side or one after the other, with the run folder they belong to or without."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from distprof.activity.phase_names import NameMap
from distprof.bench.made_up_traces import make_kineto
from distprof.errors import DataError
from distprof.folder import kernel_path, write_meta
from distprof.importers import read
from distprof.importers.read import read_folder, read_paths
from tests.factories import make_meta
from tests.test_folder import write_rank

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
    write_meta(folder, make_meta(run_id="id-1", world_size=2))
    for rank in range(2):
        write_rank(folder, rank, [0, 1, 2])
    return folder


def test_side_by_side_is_one_after_the_other_and_progress_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_traces(tmp_path)
    alone = read_paths([folder], NAMES)
    monkeypatch.setattr(read, "MIN_PARALLEL_BYTES", 0)
    told: list[tuple[int, int]] = []
    together = read_paths([folder], NAMES, lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert np.array_equal(alone.rows, together.rows, equal_nan=True)
    assert (alone.meta, alone.ranks, alone.activity) == (together.meta, together.ranks, together.activity)
    assert len(alone.collectives) == len(together.collectives) > 0


def test_what_a_process_refuses_is_said_as_if_there_were_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_traces(tmp_path)
    damaged = folder / "rank-00001.json.gz"
    damaged.write_bytes(damaged.read_bytes()[:-2_000])
    monkeypatch.setattr(read, "MIN_PARALLEL_BYTES", 0)
    with pytest.raises(DataError, match=r"rank-00001\.json\.gz") as refused:
        read_paths([folder], NAMES)
    assert "\n" not in str(refused.value)


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
    run = read_folder(run_folder)
    assert run.activity == () and len(run.ranks) > 0
    assert any("kernel windows are left out" in warning for warning in run.warnings)


def test_traces_named_beside_a_run_folder_are_joined_to_it(tmp_path: Path) -> None:
    run_folder = make_run_folder(tmp_path)
    ranks = len(read_folder(run_folder).ranks)
    run = read_paths([run_folder, make_traces(tmp_path / "traces", ranks)], NAMES)
    assert [item.rank for item in run.activity] == list(range(ranks)) and run.traced_rows is not None
    shutil.copytree(tmp_path / "traces", run_folder / "kernels")
    inside = read_folder(run_folder)
    assert [dataclasses.replace(item, head=run.activity[0].head) for item in inside.activity] == [
        dataclasses.replace(item, head=run.activity[0].head) for item in run.activity
    ]
