"""Jobs that take turns on the processors."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from benchmarks.turns import run_in_turns
from distprof.errors import DistprofError

PROGRAM = """
import os, subprocess, sys
path, name, lines, deep = sys.argv[1:]
if deep == "1":
    sys.exit(subprocess.call([sys.executable, "-c", os.environ["PROGRAM"], path, name, lines, "0"]))
with open(path, "a", buffering=1) as file:
    for _ in range(int(lines)):
        file.write(name + "\\n")
"""


def test_only_one_job_runs_at_a_time_with_what_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROGRAM", PROGRAM)
    path = tmp_path / "said"
    command = [sys.executable, "-c", PROGRAM, str(path)]
    taken_s = run_in_turns({name: [*command, name, "400000", "1"] for name in "ab"}, 0.1)
    said = path.read_text().splitlines()
    assert list(taken_s) == ["a", "b"] and sorted(said) == ["a"] * 400_000 + ["b"] * 400_000
    most_turns = 2 * (max(taken_s.values()) / 0.1 + 1)
    # A line may be on its way when its process is stopped. Side by side they would change some 100,000 times.
    assert 2 <= len(list(itertools.groupby(said))) <= 2 * most_turns


def test_a_job_that_fails_is_an_error_and_ends_the_other() -> None:
    fails = [sys.executable, "-c", "import sys; sys.exit('no such thing')"]
    endless = [sys.executable, "-c", "while True: pass"]
    with pytest.raises(DistprofError, match="bad: exit code 1: no such thing"):
        run_in_turns({"endless": endless, "bad": fails}, 0.05)
