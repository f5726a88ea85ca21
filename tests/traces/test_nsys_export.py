"""Captures of nsys that have to be exported first, by an nsys that is there and suits the file."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from distprof.errors import DataError
from distprof.facts.trace import UNKNOWN
from distprof.storage.safe_open import SQLITE_MAGIC, begins_with
from distprof.traces.nsys import nsys_tool
from distprof.traces.nsys.nsys_tool import export_report
from distprof.traces.nsys.read_nsys import read_nsys
from tests.nsys_file import (
    make_training_export,
)  # fmt: skip
from tests.ranks import make_environment
from tests.traces.test_nsys_import import list_ranges


def write_tool(folder: Path, *lines: str) -> str:
    """A script that stands in for nsys: ``$5`` is the file it is to make."""
    tool = folder / "nsys-stand-in"
    tool.write_text("\n".join(("#!/bin/sh", *lines)))
    tool.chmod(0o755)
    return str(tool)


def test_a_capture_is_exported_by_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_training_export().write(tmp_path / "made")
    report, out = tmp_path / "job 1.nsys-rep", tmp_path / "out"
    report.write_bytes(b"anything")
    out.mkdir()
    monkeypatch.setenv("NSYS", write_tool(tmp_path, f'cp "{made}" "$5"', "exit 3"))  # its code is not believed
    assert export_report(report, out) == out / "job 1.sqlite"
    assert len(read_nsys(out / "job 1.sqlite")) == 2
    beside = make_training_export().write(tmp_path / "job 1.sqlite")
    os.utime(beside, ns=(10, 10))
    assert export_report(report, out) == out / "job 1.sqlite", "the export beside it is older than the capture"
    os.utime(beside, ns=(2**62, 2**62))
    assert export_report(report, out) == beside


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["exit 0"], r"made no file \(exit code 0\)"),
        (["echo first", "echo 'disk is \033[31mfull' >&2", "exit 1"], r"exit code 1: disk is \[31mfull"),
        (['[ "$1" = --version ] || : > "$5"'], "made no file"),
        (['[ "$1" = --version ] || sleep 60'], "longer than 0.2 s"),
    ],
)
def test_nsys_is_judged_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], said: str
) -> None:
    (tmp_path / "job.nsys-rep").write_bytes(b"anything")
    monkeypatch.setenv("NSYS", write_tool(tmp_path, *lines))
    monkeypatch.setattr(nsys_tool, "EXPORT_TIMEOUT_S", 0.2 if lines[-1].endswith("sleep 60") else 60.0)
    with pytest.raises(DataError, match=said) as caught:
        export_report(tmp_path / "job.nsys-rep", tmp_path)
    assert "\n" not in str(caught.value) and "\033" not in str(caught.value)


def test_without_nsys_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.nsys-rep").write_bytes(b"anything")
    monkeypatch.setenv("NSYS", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nsys export --type sqlite job\.nsys-rep"):
        export_report(tmp_path / "job.nsys-rep", tmp_path)
    with pytest.raises(DataError, match="not a file"):
        export_report(tmp_path / "other.nsys-rep", tmp_path)


PROGRAM = """
import os, subprocess, sys, nvtx
if len(sys.argv) == 1:
    sys.exit(any([child.wait() for child in [subprocess.Popen([sys.executable, __file__, str(r)]) for r in (0, 1)]]))
rank = int(sys.argv[1])
nvtx.mark(f"rank={rank} world=2 host=here pid={os.getpid()}", domain="distprof", category="meta")
for step in range(3):
    nvtx.push_range("step", domain="distprof", category="step", payload=step)
    with nvtx.annotate("inner", domain="other"):
        nvtx.end_range(nvtx.start_range("mark", domain="distprof", payload=step))
    nvtx.pop_range(domain="distprof")
nvtx.push_range("never closed")
"""


@pytest.mark.nsys
@pytest.mark.skipif(metadata.version("nvtx") > "0.2.11", reason="nvtx after 0.2.11 is silent under older nsys")
def test_a_real_capture_of_two_processes(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    nsys = os.environ.get("NSYS", "nsys")
    command = [
        nsys,
        "profile",
        "-t",
        "nvtx",
        "-s",
        "none",
        "--cpuctxsw",
        "none",
        "-o",
        "job",
        sys.executable,
        "program.py",
    ]
    subprocess.run(command, cwd=tmp_path, env=make_environment(), check=True, capture_output=True, timeout=120)
    path = export_report(tmp_path / "job.nsys-rep", tmp_path)
    assert begins_with(path, SQLITE_MAGIC)
    traces = read_nsys(path)
    assert [(trace.head.rank, trace.head.world_size) for trace in traces] == [(0, 2), (1, 2)]
    for trace in traces:
        rows = list_ranges(trace)
        expected = [("distprof", "step"), ("other", "inner"), ("distprof", "mark")] * 3 + [("", "never closed")]
        assert [row[:2] for row in rows] == expected
        assert trace.ranges.payload.tolist() == [0, UNKNOWN, 0, 1, UNKNOWN, 1, 2, UNKNOWN, 2, UNKNOWN]
        assert trace.ranges.style.tolist() == [0, 0, 1] * 3 + [0]
        assert rows[-1][3] == UNKNOWN and all(begin <= end for _, _, begin, end in rows[:-1])
        assert all(
            outer[2] < inner[2] <= inner[3] < outer[3] for outer, inner in zip(rows[:-1:3], rows[1::3], strict=True)
        )
