"""The process of the live view begins and ends with the job, and takes nothing from it."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import pytest

import distprof
from distprof.profiler.job import live_view
from distprof.profiler.job.live_view import AGAIN_S, LiveFeed, LiveView


def write_program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_a_session_shows_its_job_on_standard_error_and_leaves_noprocess(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "END_LIMIT_S", 60.0)  # on a busy machine, its last look may take long
    said, until_s = "", time.monotonic() + 60
    with distprof.start(
        "a", run_dir=str(tmp_path / "a"), find=False, live=True, window_s=0.01, warmup_steps=0
    ) as session:
        while "distprof: live: step" not in said and time.monotonic() < until_s:
            with session.step():
                time.sleep(0.002)
            said += capfd.readouterr().err
        assert session.job is not None
        view = session.job._rank_zero._view  # type: ignore[attr-defined]
    assert "distprof: live: step" in said and view.process.returncode == 0
    assert "live" not in capfd.readouterr().err


def test_a_view_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", write_program(tmp_path / "python", "exec sleep 600"))
    monkeypatch.setattr(live_view, "END_LIMIT_S", 0.05)
    view = LiveView(tmp_path)
    view.close()
    assert view.process.wait(60) == -9
    view.close()  # once more does nothing


def test_the_terminal_of_a_view_that_was_killed_gets_its_margins_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", write_program(tmp_path / "python", "kill -9 $$"))
    monkeypatch.setattr("os.isatty", lambda descriptor: True)
    view = LiveView(tmp_path)
    view.process.wait(60)
    view.close()
    assert capfd.readouterr().err == "\x1b7\x1b[r\x1b8"


def join_readers() -> None:
    for thread in threading.enumerate():
        if thread.name == "distprof-live-page":
            thread.join(60)


def test_the_page_s_process_starts_when_somebody_asks_and_again_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"asked=$(head -c 1); while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo x >> {tmp_path}/starts; "
    program += 'echo "[1, \\"$asked\\"]"; printf cut'
    monkeypatch.setattr(sys, "executable", write_program(tmp_path / "python", program))
    at_s = [100.0]
    feed = LiveFeed(tmp_path, now_s=lambda: at_s[0])
    assert not (tmp_path / "starts").exists()
    assert json.loads(feed.read()) == {"view": None, "age_s": 0.0, "problem": ""}
    (tmp_path / "go").touch()
    join_readers()
    assert feed._view is not None
    feed._view.process.wait(60)
    at_s[0] += AGAIN_S - 1
    assert json.loads(feed.read()) == {"view": [1, "?"], "age_s": AGAIN_S - 1, "problem": ""}
    at_s[0] += 1
    (tmp_path / "go").unlink()
    assert json.loads(feed.read())["view"] is None  # of the process that has just been started
    (tmp_path / "go").touch()
    join_readers()
    assert json.loads(feed.read())["age_s"] == 0.0 and (tmp_path / "starts").read_text() == "x\nx\n"
    feed.close()
    at_s[0] += 2 * AGAIN_S
    feed.read()
    assert (tmp_path / "starts").read_text() == "x\nx\n"


def test_a_page_whose_process_cannot_be_started_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert "cannot be started" in json.loads(LiveFeed(tmp_path).read())["problem"]


def test_a_view_that_cannot_be_started_costs_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with distprof.start("a", run_dir=str(tmp_path / "a"), find=False, live=True) as session, session.step():
        pass
    assert "no live view: FileNotFoundError" in capsys.readouterr().err
