"""On a small trace, most of the time of a verb that reads is that of Python's start and end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent.parent / "data"
NEEDLESS = {
    "concurrent.futures", "multiprocessing", "subprocess", "sqlite3", "tempfile", "logging", "secrets", "rich.progress",
    "distprof.storage.run_folder", "distprof.storage.rank_stream", "distprof.traces.nsys.capture",
    "distprof.render.html.html", "distprof.render.files.files",
}  # fmt: skip
"""What reading one trace and showing its report needs nothing of."""
PROGRAM = """
import atexit, os
from distprof.__main__ import main
from distprof.cli import parser

class TakenApart:
    def __del__(self):
        os.write(1, b"taken apart\\n")

kept = TakenApart()
run_verb = parser.run_verb
def tell():
    print("called back with", len(os.listdir("/proc/self/task")), "thread")
def run(arguments):
    atexit.register(tell)
    return run_verb(arguments)
parser.run_verb = run
main()
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, timeout=120)


def list_imported(*command: str) -> set[str]:
    done = run("-X", "importtime", *command)
    assert done.returncode == 0 and done.stdout
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_a_report_without_files_imports_only_what_it_needs() -> None:
    found = list_imported("-m", "distprof", "report", str(DATA / "mi250_toy.json.gz"), "--no-write")
    assert "distprof.render.terminal.terminal" in found and not found & NEEDLESS


def test_the_version_is_printed_without_numpy() -> None:
    assert not list_imported("-m", "distprof", "version") & {"numpy", "rich"}


def test_tables_of_a_trace_import_no_reader_of_captures() -> None:
    found = list_imported("-m", "distprof", "tables", str(DATA / "mi250_toy.json.gz"))
    assert "distprof.render.terminal.nsys_tables" in found
    assert not found & (NEEDLESS - {"tempfile"})


@pytest.mark.parametrize(("path", "exit_code"), [("mi250_toy.json.gz", 0), ("missing.json", 1)])
def test_a_reader_ends_with_its_code_after_all_callbacks_and_takes_nothing_apart(path: str, exit_code: int) -> None:
    done = run("-c", PROGRAM, "report", str(DATA / path), "--no-write")
    assert done.returncode == exit_code
    assert done.stdout.endswith("called back with 1 thread\n")
    assert ("step time" in done.stdout) == (exit_code == 0) and ("no such file" in done.stderr) == (exit_code == 1)
