"""`distprof window`: what it says when there can be no window, and how it follows one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distprof.cli import window
from distprof.cli.parser import run_verb
from distprof.facts.run import RankInfo
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import is_running, rank_path, write_meta
from distprof.storage.window_files import REQUEST, WindowState, read_request, window_path, write_state
from tests.factories import make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = make_run(num_ranks=2)
    (tmp_path / "ranks").mkdir()
    write_meta(tmp_path, run.meta)
    return tmp_path


def begin(folder: Path, info: RankInfo | None = None) -> StreamWriter:
    info = make_run(num_ranks=2).ranks[0] if info is None else info
    return StreamWriter(rank_path(folder, 0), run_id="r", world_size=2, info=info)


@pytest.fixture
def running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(window, "is_running", lambda folder: True)
    return folder


def answer(folder: Path, *states: Callable[[str], WindowState]) -> threading.Thread:
    """Pretends to be rank 0."""

    def run() -> None:
        while not (folder / REQUEST).exists():
            time.sleep(0.005)
        request = read_request(folder)
        (folder / REQUEST).unlink()
        for state in states:
            write_state(folder, state(request.id))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "no"):
        assert run_verb(["window", str(path)]) == 2
        assert capsys.readouterr().err == (
            f"distprof: {path}: not a run folder (no run.json): pass the run folder of a running job\n"
        )
    assert run_verb(["window", str(tmp_path), "--steps", "0"]) == 2
    assert "--steps 0: must be a whole number, 1 to 1000" in capsys.readouterr().err


def test_a_job_that_has_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["window", str(folder)]) == 1
    assert "the job has ended; see what it recorded: distprof report" in capsys.readouterr().err
    assert not (folder / REQUEST).exists()


def test_whether_a_job_runs_is_told_by_its_first_stream(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_running(folder)
    writer = begin(folder)
    # this process holds its own lock, which does not tell; nor does that of another host
    monkeypatch.setattr("distprof.facts.writer_liveness.is_held", lambda descriptor: None)
    assert is_running(folder)
    writer.write_end("completed", error=None, traceback=None, rows_lost=0, notes=[])
    assert not is_running(folder)
    writer.close()


def test_it_follows_the_window_and_says_where_it_is(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = "kernels/step-00000041"
    for rank in (0, 1):
        path = window_path(running, rank, 41)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 2000)
    thread = answer(
        running, lambda id: WindowState(id=id, state="taken"),
        lambda id: WindowState(id=id, state="ended", steps=(41, 42), folder=inside),
    )  # fmt: skip
    assert run_verb(["window", str(running), "--steps", "2"]) == 0
    thread.join()
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"kernel window: {running / inside}  (steps 41 to 42, 2 trace(s), 3.9 KiB)",
        f"look at it: distprof report {running / inside}, or open a trace in ui.perfetto.dev",
    ]
    assert "requested; rank 0 looks every 1 s" in said.err


def test_ranks_without_a_trace_are_named(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    window_path(running, 0, 7).parent.mkdir(parents=True)
    window_path(running, 0, 7).write_bytes(b"x")
    ended = {"state": "ended", "steps": (7,), "folder": "kernels/step-00000007", "missing": ("rank 1: it failed",)}
    thread = answer(running, lambda id: WindowState(id=id, **ended))  # type: ignore[arg-type]
    assert run_verb(["window", str(running)]) == 3
    thread.join()
    assert "distprof: no trace of rank 1: it failed\n" in capsys.readouterr().err
    thread = answer(running, lambda id: WindowState(id=id, state="refused", text="no room"))
    assert run_verb(["window", str(running)]) == 1
    thread.join()
    assert f"distprof: {running}: no kernel window: no room\n" in capsys.readouterr().err


def test_one_that_nobody_answers_is_withdrawn(
    running: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "ANSWER_LIMIT_S", -1.0)
    assert run_verb(["window", str(running)]) == 1
    assert "rank 0 has not answered for" in capsys.readouterr().err and not (running / REQUEST).exists()
    (running / REQUEST).touch()
    assert run_verb(["window", str(running)]) == 1
    assert f"another window has been requested; try again later, or delete {REQUEST}" in capsys.readouterr().err


def test_a_job_that_ends_meanwhile(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, False])
    monkeypatch.setattr(window, "is_running", lambda folder: next(answers))
    assert run_verb(["window", str(folder)]) == 1
    assert "the job has ended before the window was over" in capsys.readouterr().err
    assert not (folder / REQUEST).exists()
