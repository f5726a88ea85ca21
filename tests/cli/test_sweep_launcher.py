"""The launcher of sweeps, with a shell script in place of torchrun: what becomes of each job, and of the others."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobStatus

from distprof.cli.sweep.launcher import CAPTURE, TorchrunLauncher
from distprof.cli.sweep.process import JobProcess
from distprof.facts.sweep import Sweep, SweepJob, SweepStatus
from distprof.storage.sweep_folder import read_sweep, write_sweep

SCRIPT = """\
echo "$@"
echo "$OMP_NUM_THREADS thread, group $WANDB_RUN_GROUP, run $WANDB_NAME"
case "$*" in
  *do=fail*) echo "distprof: rank 1 failed: ValueError: token=hush-hush"; echo "distprof: stopped early"; exit 1 ;;
  *do=memory*) echo "torch.OutOfMemoryError: CUDA out of memory."; exit 1 ;;
  *do=killed*) cat "$0.killed"; exit 1 ;;
  *do=quiet*) exit 4 ;;
  *do=hang*) exec sleep 600 ;;
esac
"""

KILLED = """\
distprof: rank 0 failed: RuntimeError: Connection closed by peer
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 15565)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_12:26:28
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 15566)
  traceback : Signal 9 (SIGKILL) received by PID 15566
"""
"""What torchrun prints when a rank is killed."""


def launch(tmp_path: Path, wishes: list[str], **changes: Any) -> tuple[TorchrunLauncher, list[str]]:
    """Runs one job for each wish, on 2 ranks, and returns what was shown."""
    (tmp_path / "torchrun").write_text(SCRIPT)
    (tmp_path / "torchrun.killed").write_text(KILLED)
    jobs = tuple(
        SweepJob(number=number, overrides=(f"do={wish}",), settings={"do": wish}, ranks=2)
        for number, wish in enumerate(wishes, start=1)
    )
    sweep = Sweep(name="made", started_utc="2026-01-02T03:04:05+00:00", distprof_version="0", jobs=jobs)
    shown: list[str] = []
    values: dict[str, Any] = {
        "sweep": sweep, "folder": tmp_path, "timeouts_s": [0.2 if wish == "hang" else 60.0 for wish in wishes],
        "under_nsys": [False] * 9,
        "flags": ["--config-name", "mine"], "secrets": ["hush-hush"], "print_line": shown.append,
        "torchrun": ("/bin/sh", str(tmp_path / "torchrun")), **changes,
    }  # fmt: skip
    return TorchrunLauncher(**values), shown


def test_every_job_runs_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    wishes = ["well", "fail", "memory", "hang", "killed", "quiet", "well"]
    launcher, shown = launch(tmp_path, wishes)
    returns = launcher.launch([[f"do={wish}", "token=hush-hush"] for wish in wishes], initial_job_idx=0)
    found = read_sweep(tmp_path)
    assert found == launcher.sweep
    expected: list[tuple[SweepStatus, str | None]] = [
        ("completed", None), ("failed", "rank 1 failed: ValueError: token=[redacted]"),
        ("out of memory", "torch.OutOfMemoryError: CUDA out of memory."),
        ("timed out", "not ended after 0.2 s (sweep.timeout_s)"),
        ("failed", "rank 1 was ended by SIGKILL, as by the kernel when memory runs out"), ("failed", "exit code 4"),
        ("completed", None),
    ]  # fmt: skip
    assert [(job.status, job.reason) for job in found.jobs] == expected
    assert [job.exit_code for job in found.jobs] == [0, 1, 1, None, 1, 4, 0]
    assert [item.status for item in returns] == [
        JobStatus.COMPLETED if status == "completed" else JobStatus.FAILED for status, _ in expected
    ]
    assert shown[0] == "job 1 of 7: do=well, 2 ranks" and "failed after" in shown[3]
    assert "hush-hush" not in (tmp_path / "sweep.json").read_text() + "".join(shown)


def test_a_job_has_its_own_group_port_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "WANDB_RUN_GROUP", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    launcher, _ = launch(tmp_path, ["well", "good"])
    launcher.launch([["do=well", "seed=1"], ["do=well", "seed=2"]], initial_job_idx=0)
    words = "--standalone --nproc-per-node=2 -m distprof --config-name mine do=well seed={} run_dir='{}'\n"
    for number, wish in enumerate(("well", "good"), start=1):
        expected = words.format(number, tmp_path / f"jobs/00{number}")
        run = f"00{number} do={wish}, 2 ranks"
        assert (tmp_path / f"jobs/00{number}.log").read_text() == f"{expected}1 thread, group made, run {run}\n"
    monkeypatch.setenv("WANDB_NAME", "mine")
    assert launcher._make_environment(launcher.sweep.jobs[1])["WANDB_NAME"] == "mine 002 do=good, 2 ranks"


def test_a_job_under_nsys_is_started_by_the_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own folder, on as many ranks, whatever the environment says about nodes."""
    monkeypatch.setenv("NNODES", "4")
    (tmp_path / "capture").write_text('echo "$@"; echo "$NPROC $NNODES"')
    command = ("/bin/sh", str(tmp_path / "capture"), "--no-report", "--")
    launcher, _ = launch(tmp_path, ["well", "well"], under_nsys=[False, True], capture=command)
    launcher.launch([["do=well", "seed=1"], ["do=well", "seed=2"]], initial_job_idx=0)
    assert (tmp_path / "jobs/001.log").read_text().startswith("--standalone")
    folder = tmp_path / "jobs/002"
    words = f"--no-report -- --config-name mine do=well seed=2 run_dir='{folder}' runs_dir='{folder}-nsys'\n2 1\n"
    assert (tmp_path / "jobs/002.log").read_text() == words
    assert CAPTURE[1:] == ("-m", "distprof.cli.capture", *command[2:])


def test_jobs_that_have_completed_or_cannot_work_do_not_run(tmp_path: Path) -> None:
    done: list[SweepStatus] = ["completed", "refused", "timed out"]
    jobs = tuple(
        SweepJob(number=number, overrides=(), settings={}, ranks=2, status=status)
        for number, status in enumerate(done, start=1)
    )
    sweep = Sweep(name="made", started_utc="2026-01-02T03:04:05+00:00", distprof_version="0", jobs=jobs)
    launcher, shown = launch(tmp_path, [], sweep=sweep, timeouts_s=[None] * 3)
    launcher.launch([["do=well"]] * 3, initial_job_idx=0)
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["003.log"]
    assert [job.status for job in launcher.sweep.jobs] == ["completed", "refused", "completed"]
    assert len(shown) == 2


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(path: Path) -> str:
    for _ in range(2000):
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text()
        time.sleep(0.01)
    raise TimeoutError(path)


def test_nothing_that_a_job_has_started_outlives_it(tmp_path: Path) -> None:
    """A rank has a session of its own, like torchrun's, and does not hear of the end of its launcher."""
    told, ended = tmp_path / "pid", []
    process = JobProcess()
    command = ["/bin/sh", "-c", f"setsid sleep 600 & echo $! > {told}; wait"]
    log = tmp_path / "log"
    thread = threading.Thread(
        target=lambda: ended.append(process.run(command, log=log, environment=os.environ, timeout_s=None))
    )
    thread.start()
    pid = int(wait_for(told))
    process.stop(60.0)
    thread.join()
    for _ in range(500):  # the system takes a moment to end what was killed
        if not is_alive(pid):
            break
        time.sleep(0.01)
    assert not is_alive(pid)
    after = process.run(["/bin/sh", "-c", "exit 3"], log=log, environment=os.environ, timeout_s=None)
    assert after.exit_code is None, "a stopped sweep starts nothing more"


def test_a_signal_ends_the_sweep_and_leaves_the_rest_to_be_resumed(tmp_path: Path) -> None:
    launcher, shown = launch(tmp_path, ["hang", "well"], timeouts_s=[None, None])
    write_sweep(tmp_path, launcher.sweep)
    thread = threading.Thread(target=lambda: launcher.launch([["do=hang"], ["do=well"]], initial_job_idx=0))
    thread.start()
    wait_for(tmp_path / "jobs/001.log")
    launcher.interrupt("SIGTERM")
    thread.join()
    found = read_sweep(tmp_path)
    assert [(job.status, job.reason) for job in found.jobs] == [
        ("interrupted", "SIGTERM ended the sweep"), ("waiting", None),
    ]  # fmt: skip
    assert shown[-1] == f"interrupted; the rest: the same command with sweep.resume={tmp_path}"


@pytest.mark.parametrize("missing", ["/nonexistent/torchrun"])
def test_a_launcher_that_cannot_be_started_is_said(tmp_path: Path, missing: str) -> None:
    launcher, _ = launch(tmp_path, ["well"], torchrun=(missing,))
    with pytest.raises(OSError, match="No such file"):
        launcher.launch([["do=well"]], initial_job_idx=0)
