"""The streams of a run folder give the same run, whoever reads them, and however many processes that are."""

from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from distprof.facts.run import Run
from distprof.storage.run_folder import rank_path
from distprof.traces import read_streams
from distprof.traces.load_run import load_run
from tests.faults.run_folder import make_late_run, write_run
from tests.ranks import REPOSITORY, make_environment


def describe(run: Run) -> str:
    kept = hashlib.sha256(run.rows.tobytes()).hexdigest()
    return f"{kept} {run.ranks} {run.warnings} {run.unread} {sorted(run.segments)}"


IN_PROCESSES = f"""
from __future__ import annotations
import hashlib, os, sys
from pathlib import Path
from distprof.traces import executors, read_streams
from distprof.traces.load_run import load_run

{inspect.getsource(describe)}
assert "torch" not in sys.modules
read_streams.MIN_PARALLEL_BYTES, told, workers, usual = 1, [], [], executors.run_tasks
os.sched_getaffinity = lambda process: {{0, 1}}
executors.run_tasks = lambda spec, work, tasks, number: (workers.append(number), usual(spec, work, tasks, number))[1]
run = load_run(Path(sys.argv[1]), on_progress=lambda *progress: told.append(progress))
assert workers == [2] and told == [(1, 4), (2, 4), (3, 4), (4, 4)]
print(describe(run))
"""


def test_several_processes_read_what_one_reads_damaged_and_unreadable_files_included(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", make_late_run())
    damaged, unreadable = rank_path(folder, 1), rank_path(folder, 2)
    lines = damaged.read_bytes().splitlines(keepends=True)
    damaged.write_bytes(b"".join([*lines[:9], b"{" + lines[9], *lines[10:]]))
    unreadable.write_bytes(b"no header\n")
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESSES, str(folder)], cwd=REPOSITORY, env=make_environment(), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    run = load_run(folder)
    assert done.stdout == f"{describe(run)}\n", done.stderr
    assert len(run.ranks) == 3 and "rank-00002" in run.unread[0] and "1 damaged record" in str(run.warnings)


def test_small_folders_and_those_of_a_process_with_torch_are_read_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told = write_run(tmp_path / "run", make_late_run()), list[tuple[int, int]]()
    monkeypatch.setattr("distprof.traces.executors.run_tasks", None)
    for loaded, least in ((True, 1), (False, read_streams.MIN_PARALLEL_BYTES)):
        monkeypatch.setitem(sys.modules, "torch", sys) if loaded else monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.setattr(read_streams, "MIN_PARALLEL_BYTES", least)
        load_run(folder, on_progress=lambda done, total: told.append((done, total)))
    assert told == 2 * [(1, 4), (2, 4), (3, 4), (4, 4)]
