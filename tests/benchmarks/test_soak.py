"""The soak: what its checks see, and a handful of its events."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.soak.cut_links import can_cut, cut_links
from benchmarks.soak.folder_check import Counts, check_rows, check_verdict, count_steps, read_rows
from benchmarks.soak.leftovers import list_processes
from distprof.facts.run import COLUMN
from distprof.storage.run_folder import rank_path
from tests.faults.run_folder import make_late_run, write_run
from tests.ranks import REPOSITORY, make_environment

RUN = make_late_run()


def test_a_row_that_was_flushed_and_is_gone_or_is_another_is_a_failure(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", RUN)
    before, counts = read_rows(folder), Counts()
    assert len(before) == 4 * RUN.rows.shape[1] and count_steps(folder, {}) == (0, RUN.rows.shape[1])
    shutil.copytree(folder, folder / "generation-1")
    after = check_rows(folder, before, counts)
    assert len(after) == 2 * len(before) and counts.rows == len(before) and not counts.failures
    path = rank_path(folder, 2)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))  # the end, and a step before it
    assert len(check_rows(folder, after, counts)) == len(after) - 1
    assert counts.rows_lost == 1 and "rank, step) (0, 2, 19)" in counts.failures[0]


def test_a_verdict_that_names_a_rank_where_nobody_was_disturbed_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, counts = write_run(tmp_path / "run", RUN), Counts()
    last = int(np.nanmax(RUN.column("step"))) + 1
    assert int(RUN.rows[0, -1, COLUMN["step"]]) == last - 1
    check_verdict(folder, 0, last, None, counts)
    assert counts.verdicts == 0  # too few steps
    monkeypatch.setattr("benchmarks.soak.folder_check.UNDISTURBED_STEPS", 10)
    check_verdict(folder, 0, last, 2, counts)
    assert counts.verdicts == 1 and not counts.failures
    check_verdict(folder, 0, last, None, counts)
    assert counts.verdicts == 2 and "rank 2 is named" in counts.failures[0]
    check_verdict(folder, 0, last, None, counts, quiet=False)
    assert (counts.verdicts, counts.busy, len(counts.failures)) == (3, 1, 1)


def test_processes_are_known_by_what_they_were_started_with() -> None:
    environment = os.environ | {"DISTPROF_SOAK": "some"}
    child = subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE)
    try:
        assert list_processes("DISTPROF_SOAK=some") == [child.pid] and not list_processes("DISTPROF_SOAK=so")
    finally:
        child.communicate()
    assert not list_processes("DISTPROF_SOAK=some")


@pytest.fixture
def cutting() -> None:
    if not can_cut():
        pytest.skip("ss -K ends no connection here: it needs root, and a kernel with INET_DIAG_DESTROY")


@pytest.mark.root
@pytest.mark.usefixtures("cutting")
def test_the_connections_between_two_processes_are_cut_and_no_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = (
            f"import socket; near = socket.create_connection(('127.0.0.1', {server.getsockname()[1]})); near.recv(1)"
        )
        with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as other:
            far, _ = server.accept()
            with far, socket.create_connection(server.getsockname()) as own, server.accept()[0]:
                assert cut_links(os.getpid(), []) == 0 and cut_links(os.getpid(), [other.pid]) == 1
                assert own.send(b".") == 1
                with pytest.raises(ConnectionAbortedError):
                    far.send(b".")
            assert "Error" in other.communicate(timeout=60)[1] and other.returncode == 1


@pytest.mark.root
@pytest.mark.live
@pytest.mark.usefixtures("cutting")
def test_a_link_that_is_cut_costs_no_row_and_leaves_nothing() -> None:
    assert "events: 1 cut link; jobs: 1" in run_soak("--events", "1", "--seed", "30")


@pytest.mark.live
def test_events_under_torchrun_cost_no_row_and_leave_nothing() -> None:
    """A rank is stopped, and one is killed and started again."""
    assert "events: 1 kill, 1 stop; jobs: 1" in run_soak("--events", "2", "--seed", "4")


def run_soak(*options: str) -> str:
    """What it prints, if nothing fails."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "soak", "--minutes", "5", *options],
        cwd=REPOSITORY, env=make_environment(), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flushed rows lost: 0" in done.stdout
    return done.stdout
