"""Run folders as private as the umask asks for, where they were said to be, and followed nowhere else."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.faults.forked import Command, run

QUICK = ("train=gpt2_tiny", "train.steps=2", "train.warmup_steps=0", "logger=none", "hardware.peak=none", "device=cpu")
PRIVATE = "import os; os.umask(0o077)"
ATTACH = "import sys; from distprof.attach.command import attach; attach(sys.argv[1:]); raise SystemExit(0)"
SCRIPT = """
import os, sys, torch, distprof
from torch import nn
profiler = distprof.start("mine", {place}, warmup_steps=0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number, _ in enumerate(profiler.steps(range(4))):
    if number == 2:
        {change}
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
profiler.close()
"""
AWAY = 'os.makedirs("elsewhere"); os.chdir("elsewhere")'
SWAPPED = 'os.rename("run", "kept"); os.symlink("victim", "run")'


def write_script(folder: Path, name: str, *, place: str, change: str) -> Command:
    (folder / name).write_text(SCRIPT.format(place=place, change=change))
    return Command(arguments=[name], before=ATTACH)


@pytest.mark.slow
def test_fault_50_files_are_as_private_as_asked_for_and_where_they_were_said_to_be(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("report.json", "run.json", "ranks"):
        (victim / name).write_text("theirs")
    commands = (
        Command(arguments=[*QUICK, "runs_dir=private/runs", "profile=modules"], before=PRIVATE),
        write_script(tmp_path, "away.py", place="runs_dir='here'", change=AWAY),
        write_script(tmp_path, "swapped.py", place="run_dir='run'", change=SWAPPED),
    )
    private, away, swapped = run(*commands, cwd=tmp_path)
    assert (private.code, away.code, swapped.code) == (0, 0, 0), (private, away, swapped)

    made = list((tmp_path / "private").rglob("*"))
    assert {"report.json", "run.json", "config.yaml", "rank-00000.jsonl"} <= {path.name for path in made}
    assert [path for path in made if stat.S_IMODE(path.stat().st_mode) != (0o700 if path.is_dir() else 0o600)] == []

    (folder,) = (tmp_path / "here").iterdir()
    assert json.loads((folder / "report.json").read_text())["coverage"]["steps_measured"] == 4
    assert list((tmp_path / "elsewhere").iterdir()) == [] and str(folder) in away.err

    assert sorted(path.name for path in victim.iterdir()) == ["ranks", "report.json", "run.json"]
    assert all(path.read_text() == "theirs" for path in victim.iterdir())
    assert not (tmp_path / "kept" / "report.json").exists()
    said = [line for line in swapped.err.splitlines() if "the run folder" in line]
    assert len(said) == 1 and "something else has taken the place" in said[0], swapped.err
