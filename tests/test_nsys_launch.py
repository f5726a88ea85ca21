"""`launch/nsys.sh`, from the command line to the report; with a real Nsight Systems if there is one."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from distprof.cli.capture.environment import probe_isolation
from distprof.facts.run import PHASES
from tests.ranks import REPOSITORY, make_environment

CANARIES = {name: f"canary4f1c9e7d20{name.lower()[:2]}" for name in ("WANDB_API_KEY", "HF_TOKEN", "STORAGE_KEY")}
CONTROL = "control4f1c9e7d20"
WARMUP_STEPS, STEPS = 2, 3
JOB = ("train=gpt2_tiny", f"train.steps={STEPS}", f"train.warmup_steps={WARMUP_STEPS}", "logger=none")
RANGES = """SELECT COALESCE(text, value), int64Value, end, eventType, (globalTid >> 24) & 0xFFFFFF
    FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id WHERE eventType IN (34, 59, 60)"""


def launch(place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with this same Python, in an environment where nothing needs installing."""
    venv = place / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (venv / "bin" / "python").chmod(0o755)
    sums = 'echo "$0"; cat "$0/pyproject.toml" "$0/constraints.txt"'
    stamp = subprocess.run(["bash", "-c", f"{{ {sums}; }} | cksum", str(REPOSITORY)], capture_output=True, check=True)
    (venv / ".distprof-gpu").write_bytes(stamp.stdout)
    # Between the test and the script stands a shell that keeps all this in its environment, as a user's shell does.
    shell = ["bash", "-c", '"$@"; exit $?', "bash"]
    script = str(REPOSITORY / "launch" / "nsys.sh")
    return subprocess.run(
        [*shell, script, *arguments], cwd=place, env=make_environment(DISTPROF_VENV=str(venv), **environment),
        capture_output=True, text=True, timeout=240, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_without_nsys_the_script_says_so(tmp_path: Path) -> None:
    done = launch(tmp_path, "-t", "nvtx", "--", "train=gpt2_tiny", NSYS="/no/such/nsys")
    assert done.returncode == 2 and done.stderr.startswith("distprof: nsys: not found"), done.stderr
    assert not (tmp_path / "runs").exists()


class Captured:
    """A finished capture."""

    def __init__(self, place: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.place, self.done = place, done
        (self.folder,) = (place / "runs").iterdir()

    def read_ranges(self) -> dict[int, dict[str, list[tuple[int, bool]]]]:
        """The ranges and marks of each process by name: step, and whether it is closed."""
        found: dict[int, dict[str, list[tuple[int, bool]]]] = {}
        with sqlite3.connect(self.folder / "capture.sqlite") as base:
            for name, step, end, _, pid in base.execute(RANGES):
                found.setdefault(pid, {}).setdefault(name, []).append((step, end is not None))
        return found


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    if metadata.version("nvtx") > "0.2.11":
        pytest.skip("nvtx after 0.2.11 is silent under older nsys")
    place = tmp_path_factory.mktemp("captured")
    environment = {**CANARIES, "NPROC": "2", "PLAIN_CONTROL": CONTROL, "NSYS": os.environ.get("NSYS", "nsys")}
    if probe_isolation() is None:
        pytest.skip("no process namespaces here, and nsys reads the environment of the tests")
    done = launch(place, "-t", "nvtx", "--", *JOB, **environment)
    assert (place / "runs").is_dir(), done.stdout + done.stderr
    return Captured(place, done)


@pytest.mark.live
@pytest.mark.nsys
def test_every_measured_step_of_both_ranks_is_in_the_capture_and_no_other(captured: Captured) -> None:
    processes = captured.read_ranges()
    ranks = {mark.split()[0] for found in processes.values() for mark in found if mark.startswith("rank=")}
    assert ranks == {"rank=0", "rank=1"} and len(processes) == 2
    measured = [(step, True) for step in range(WARMUP_STEPS, WARMUP_STEPS + STEPS)]
    shown = {phase.value for phase in PHASES} - {"all_gather", "other"}
    for found in processes.values():
        for name in {"step", "blocks.1.attention"} | shown:
            assert sorted(found[name]) == measured, name


@pytest.mark.live
@pytest.mark.nsys
def test_no_secret_is_in_any_file(captured: Captured) -> None:
    files = [path for path in captured.place.rglob("*") if path.is_file() and "venv" not in path.parts]
    assert {"capture.nsys-rep", "capture.sqlite", "run.json", "report.json"} <= {path.name for path in files}
    said = (captured.done.stdout + captured.done.stderr).encode()
    holders = [path.name for path in files if CONTROL.encode() in path.read_bytes()]
    assert "capture.sqlite" in holders, "this nsys does not write the environment: the test shows nothing"
    leaks = [path.name for path in files for canary in CANARIES.values() if canary.encode() in path.read_bytes()]
    assert leaks == [] and not any(canary.encode() in said for canary in CANARIES.values())


@pytest.mark.live
@pytest.mark.nsys
def test_the_capture_is_reported_at_the_end(captured: Captured) -> None:
    assert captured.done.returncode in (0, 3), captured.done.stdout + captured.done.stderr
    assert str(Path("runs") / captured.folder.name / "capture.nsys-rep") in captured.done.stderr
    (written,) = (path for path in captured.folder.iterdir() if path.name == "run")
    assert written.stat().st_mode & 0o022 == 0, "everyone may write into the run folder"
    reported = captured.done.stdout.partition("step time")[2]
    assert "rank 0" in reported and "forward" in reported and "optimizer" in reported
