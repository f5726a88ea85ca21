"""Full disks, running runs, killed ranks: real processes, read by another one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_OK, EXIT_PARTIAL
from distprof.storage.run_folder import read_run
from tests.faults.forked import Started, fork_ranks

QUICK = ("train=gpt2_tiny", "logger=none", "hardware.peak=none", "profile.window_s=0.05")
LIMIT_S = 120
FILE_LIMIT_BYTES = 14_000
"""Without a small disk: the largest file that the job may write."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A disk of 48 kB or, where nothing can be mounted, a limit that keeps every file small."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield disk, f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_LIMIT_BYTES},) * 2)"
        return
    try:
        yield disk, ""
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_fault_08_a_full_disk_ends_recording_once_and_no_training(
    small_disk: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, before = small_disk
    steps = 60
    plan = f"train.steps={steps - 2}", "train.warmup_steps=2"
    ranks = fork_ranks(2, [*QUICK, f"runs_dir={disk}/runs", *plan], tmp_path, before=before)
    said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [EXIT_PARTIAL, EXIT_OK], said
    for rank, (shown, _) in enumerate(said):
        assert shown.count("training goes on") == 1 and f"rank {rank}: steps are no longer written (" in shown
    shown = said[0][0]
    assert "killed?" not in shown and shown.count("could not be written (") == 1 and "Traceback" not in shown
    (folder,) = (disk / "runs").iterdir()
    written = shown[shown.rindex("\nfiles ") :]
    for name in ("report.html", "report.json", "trace.json.gz"):
        assert (name in written) == (folder / name).exists()
    assert not list(folder.glob(".*"))  # nothing half-written
    run = read_run(folder)
    for info, recorded in zip(run.ranks, (run.column("step") >= 0).sum(axis=1), strict=True):
        assert info.ended == "completed" and 0 < info.rows_lost == steps - recorded
    capsys.readouterr()
    assert run_verb(["report", str(folder), "--out", str(tmp_path / "out")]) == EXIT_PARTIAL
    lost = json.loads((tmp_path / "out" / "report.json").read_text())["coverage"]["rows_lost"]
    assert lost == sum(info.rows_lost for info in run.ranks)


def wait_for_steps(ranks: list[Started], tmp_path: Path) -> Path:
    deadline = time.monotonic() + LIMIT_S
    while sum(b'"type":"step"' in path.read_bytes() for path in tmp_path.glob("runs/*/ranks/*")) < len(ranks):
        assert all(rank.poll() is None for rank in ranks) and time.monotonic() < deadline
        time.sleep(0.05)
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def test_fault_39_a_running_job_is_told_as_running_and_fault_05_rebuilt_after_rank_0_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = fork_ranks(2, [*QUICK, "train.steps=100000", "group_timeout_s=60"], tmp_path)
    try:
        folder = wait_for_steps(ranks, tmp_path)
        capsys.readouterr()
        assert run_verb(["report", str(folder), "--width", "200"]) == EXIT_PARTIAL
        shown = capsys.readouterr().out
        assert "ranks 0-1 are still running, last written at 20" in shown.splitlines()[0]
        assert "killed?" not in shown and "missing" not in shown and "damaged" not in shown
        ranks[0].send_signal(signal.SIGKILL)
        for rank in ranks:
            rank.communicate(timeout=LIMIT_S)
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[1].returncode not in (EXIT_OK, EXIT_PARTIAL)
    assert run_verb(["report", str(folder), "--width", "200"]) == EXIT_PARTIAL
    lines = capsys.readouterr().out.splitlines()
    missing = next(line for line in lines if "rank 0 is missing (last recorded step: " in line)
    assert "(killed?): in step " in missing or "(killed?): after step " in missing
    report = json.loads((folder / "report.json").read_text())
    assert report["coverage"]["ranks_missing"] == [0] and report["ranks"][1]["ended"] == "failed"
    assert min(rank["steps_recorded"] for rank in report["ranks"]) > 0
