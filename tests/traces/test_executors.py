"""Where traces are reduced: a worker that dies costs time only, and what an engine cannot do is one line."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

from distprof.errors import DataError, UsageError
from distprof.traces.executors import MAX_TRIES, run_tasks
from distprof.traces.reduce.phase_names import USUAL_NAMES
from distprof.traces.reduce_sources import reduce_task
from distprof.traces.sources import list_sources
from tests.kineto_file import make_sound, write_kineto


def work(number: int, folder: Path, deaths: int) -> int:
    """Twice the number; number 3 kills its worker so many times before."""
    if number == 3 and len(list(folder.iterdir())) < deaths:
        (folder / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [1, MAX_TRIES - 1])
def test_what_lost_workers_had_is_done_again(tmp_path: Path, deaths: int) -> None:
    done = dict(run_tasks(None, work, [(number, tmp_path, deaths) for number in range(6)], 2))
    assert done == {number: 2 * number for number in range(6)}
    assert len(list(tmp_path.iterdir())) == deaths


@pytest.mark.slow
def test_a_task_that_always_kills_its_worker_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="killed, again and again"):
        list(run_tasks("local", work, [(3, tmp_path, 99)], 2))
    assert len(list(tmp_path.iterdir())) == MAX_TRIES


@pytest.mark.parametrize("spec", ["dask", "dask:", "slurm:host", ""])
def test_an_engine_that_there_is_not_is_named(spec: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--executor {spec}: expected local, dask:ADDRESS or ray:ADDRESS"):
        list(run_tasks(spec, work, [(1, tmp_path, 0)], 2))


def test_an_engine_whose_package_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"--executor ray:auto: .* a package is missing: .*ray"):
        list(run_tasks("ray:auto", work, [(1, tmp_path, 0)], 2))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "127.0.0.1:99999999"])
def test_a_head_node_that_is_not_there_is_not_looked_for_by_ray(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray = ModuleType("ray")
    ray.exceptions = ModuleType("ray.exceptions")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)  # it could not be started
    with pytest.raises(DataError, match=rf"^--executor ray:{re.escape(address)}: cannot be reached \(.*\): is this"):
        list(run_tasks(f"ray:{address}", work, [(1, tmp_path, 0)], 2))


def test_a_worker_with_another_distprof_says_so(tmp_path: Path) -> None:
    (source,), _ = list_sources([write_kineto(tmp_path / "a.json", make_sound())])
    said = reduce_task([source], USUAL_NAMES, "0.0")
    assert isinstance(said, str) and said.startswith(f"{source.path}: a worker has distprof ") and "not 0.0" in said
