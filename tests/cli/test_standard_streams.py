"""Output that cannot be printed is dropped; impossible terminal sizes are ignored."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest

from distprof.cli.standard_streams import DroppingStream, guard_streams


class Failing(io.StringIO):
    """A stream without a file that raises a given error."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error: OSError | None = error

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), BrokenPipeError(), BlockingIOError()])
def test_what_cannot_be_written_is_dropped(error: OSError) -> None:
    behind = Failing(error)
    stream = DroppingStream(behind, ())
    assert stream.write("lost") == 4
    behind.error = None
    stream.writelines(["ke", "pt"])
    stream.flush()
    assert behind.getvalue() == "kept"


def test_a_secret_does_not_pass_and_data_does() -> None:
    behind = io.StringIO()
    DroppingStream(behind, ("canary-1",)).write("canary-1 https://u:pw@host token: 4 {'auth': 1}")
    assert behind.getvalue() == "[redacted] https://[redacted]@host token: 4 {'auth': 1}"


def test_after_an_error_the_file_behind_is_the_null_device(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        stream = DroppingStream(full, ())
        stream.write("x" * 100_000)
        stream.flush()
        assert os.path.samestat(os.fstat(full.fileno()), os.stat(os.devnull))
        stream.write("nothing is raised")


@pytest.mark.parametrize("text", ["0", "19", "1001", "9" * 30, "-5", "x", "", "²"])
def test_a_width_that_cannot_be_is_forgotten(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, None)
    monkeypatch.setenv("COLUMNS", text)
    monkeypatch.setenv("LINES", "40")
    guard_streams([])
    assert "COLUMNS" not in os.environ and os.environ["LINES"] == "40"
    print("closed streams take what is printed")
