"""Waiting for a tool as long as it makes progress, and no longer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from distprof.errors import DataError
from distprof.traces.nsys import nsys_tool
from distprof.traces.nsys.nsys_tool import Nsys, Patience, export_sqlite, find_nsys


def make_tool(folder: Path, script: str) -> str:
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_fault_27_an_export_that_stands_still_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_tool, "QUIET_TIMEOUT_S", 0.5)
    tool = make_tool(tmp_path, f'echo "part of a file" > "$5"; sleep 600 & echo $! > {tmp_path}/child; wait')
    target = tmp_path / "out.sqlite"
    with pytest.raises(DataError, match=r"nsys export made no file \(it made no progress for 0\.5 s") as caught:
        export_sqlite(Nsys(path=tool, version=None), tmp_path / "job.nsys-rep", target)
    assert "\n" not in str(caught.value)
    assert not target.exists(), "the part of a file is none"
    child, deadline = int((tmp_path / "child").read_text()), time.monotonic() + 60
    while is_there(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_fault_27_a_version_that_is_never_said_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody must wait for processes that the tool started, although they hold the pipe."""
    monkeypatch.setattr(nsys_tool, "VERSION_TIMEOUT_S", 0.3)
    tool = make_tool(tmp_path, "sleep 600 & wait")
    begin_s = time.monotonic()
    assert find_nsys({"NSYS": tool, "PATH": os.environ["PATH"]}) == Nsys(path=tool, version=None)
    assert time.monotonic() - begin_s < 300


def test_as_long_as_something_is_written_an_export_is_waited_for() -> None:
    said: list[str] = []
    patience = Patience(limit_s=600, quiet_s=60, begin_s=0, print_line=said.append)
    assert [patience.judge(now_s, size_bytes=now_s // 50) for now_s in range(599)] == [None] * 599
    assert said == ["10 s so far", "20 s so far", "40 s so far", "80 s so far", "160 s so far", "320 s so far"]
    assert patience.judge(600, 12) == "it took longer than 600 s"


def test_an_export_that_is_quiet_is_given_up() -> None:
    patience = Patience(limit_s=600, quiet_s=60, begin_s=0, print_line=lambda text: None)
    assert [patience.judge(now_s, size_bytes=7) for now_s in (0, 59)] == [None, None]
    assert patience.judge(60, 8) is None
    assert patience.judge(119, 8) is None
    assert patience.judge(120, 8) == "it made no progress for 60 s, nothing printed and nothing written"
