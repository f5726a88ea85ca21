"""How ranks exit: by signals during a hang and at the start, by a time-out, and beside a W&B that hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distprof.cli.parser import run_verb
from distprof.storage.rank_stream import read_stream
from distprof.storage.run_folder import read_run
from tests.faults.forked import Started, fork_ranks
from tests.ranks import start_ranks, wait_until

ENDLESS = (
    "train=gpt2_tiny",
    "train.steps=100000",
    "train.warmup_steps=1",
    "hardware.peak=none",
    "profile.window_s=0.1",
)
END_LIMIT_S = 5.0
"""A rank's file has its end record by then. Two seconds are promised, but a test machine may be busy."""


def find_folder(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def count_steps(tmp_path: Path) -> list[int]:
    """Steps on disk, for every rank that has a file."""
    return [path.read_bytes().count(b'"type":"step"') for path in sorted(tmp_path.glob("runs/*/ranks/rank-*.jsonl"))]


def has_ended(tmp_path: Path, rank: int) -> bool:
    """Whether a rank's file has its end record."""
    return b'"type":"end"' in (find_folder(tmp_path) / "ranks" / f"rank-{rank:05d}.jsonl").read_bytes()


def end_all(processes: Sequence[Started | subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate(timeout=30)


def read_report(tmp_path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((find_folder(tmp_path) / "report.json").read_text())
    return report


def test_fault_33_signals_end_the_files_of_ranks_that_hang_and_twice_is_once(tmp_path: Path) -> None:
    ranks = fork_ranks(3, [*ENDLESS, "logger=none"], tmp_path)
    try:
        wait_until(lambda: len(count_steps(tmp_path)) == 3 and min(count_steps(tmp_path)) > 3, ranks)
        ranks[2].send_signal(signal.SIGSTOP)
        seen: list[list[int]] = []
        wait_until(lambda: seen.append(count_steps(tmp_path)) or seen[-8:] == [seen[-1]] * 8, ranks)  # type: ignore[func-returns-value]
        told_s = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGTERM):
            ranks[0].send_signal(number)
        ranks[1].send_signal(signal.SIGHUP)
        wait_until(lambda: all(has_ended(tmp_path, rank) for rank in (0, 1)), [], END_LIMIT_S)
        print(f"their ends were written {time.monotonic() - told_s:.2f} s after the signals")
        said = [process.communicate(timeout=20) for process in ranks[:2]]
    finally:
        end_all(ranks)
    assert [process.returncode for process in ranks[:2]] == [128 + signal.SIGTERM, 128 + signal.SIGHUP]
    assert "Traceback" not in "".join(map("".join, said)) and "distprof report" in said[0][0]
    run = read_run(find_folder(tmp_path))
    assert [rank.ended for rank in run.ranks] == ["terminated", "terminated", None]
    told = [rank.error or "" for rank in run.ranks[:2]]
    assert re.match(r"SIGTERM in step \d+, \w+", told[0]) and re.match(r"SIGHUP in step \d+, \w+", told[1])
    assert (find_folder(tmp_path) / "ranks" / "flight_recorder-rank-00000.json").is_file()


def hears(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)", status, re.M)
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_fault_33_an_interrupt_at_the_start_is_no_traceback(tmp_path: Path) -> None:
    (process,) = start_ranks(1, ["-m", "distprof", *ENDLESS], tmp_path)
    try:
        wait_until(lambda: hears(process, signal.SIGHUP), [process])
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)  # loading torch holds up every thread for a while
    finally:
        end_all([process])
    assert (process.returncode, said) == (128 + signal.SIGINT, ("", "")) and not (tmp_path / "runs").exists()


def test_fault_03_a_rank_that_never_comes_ends_the_job_at_the_time_out_of_its_group(tmp_path: Path) -> None:
    """It says where it stands before that. The Flight Recorder's dump lies beside the streams."""
    drill = ["inject.rank=1", "inject.phase=forward", "inject.delay_ms=600000", "inject.from_step=3"]
    ranks = fork_ranks(2, [*ENDLESS, "logger=none", "group_timeout_s=6", *drill], tmp_path)
    try:
        _, errors = ranks[0].communicate(timeout=100)  # the delay is ten minutes
        stream = find_folder(tmp_path) / "ranks" / "rank-00001.jsonl"
        wait_until(lambda: read_stream(stream).info.error is not None, ranks[1:])
        state = str(read_stream(stream).info.error)
        ranks[1].send_signal(signal.SIGTERM)  # as the launcher does when a rank has failed
        ranks[1].communicate(timeout=20)
    finally:
        end_all(ranks)
    assert [process.returncode for process in ranks] == [1, 128 + signal.SIGTERM]
    assert "rank 0 failed: " in errors and "imed out" in errors
    assert re.match(r"no step had ended for 4\.8 s, in step 3, \w+", state)  # of the time-out's 6 s
    folder = find_folder(tmp_path)
    assert run_verb(["report", str(folder)]) == 3
    ranks = read_report(tmp_path)["ranks"]
    assert (ranks[0]["ended"], ranks[1]["ended"]) == ("failed", "terminated") and "imed out" in ranks[0]["error"]
    assert re.match(r"SIGTERM in step 3, \w+", ranks[1]["error"])
    for rank in range(2):
        json.loads((folder / "ranks" / f"flight_recorder-rank-{rank:05d}.json").read_text())


IMPATIENT = "from distprof.record.gather import background_consumer; background_consumer.CALL_LIMIT_S = 2.0"
"""W&B counts as stuck after two seconds of silence, so that the test need not wait for ten."""


def find_service(parent: int) -> int | None:
    """The process of wandb's service."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"wandb-core" in words[0] and str(parent).encode() in words:
            return int(folder.name)
    return None


def test_fault_31_a_wandb_that_stands_still_holds_nobody_up_and_leaves_nothing(tmp_path: Path) -> None:
    own = tmp_path / "tmp"
    own.mkdir()
    arguments = [
        "train=gpt2_tiny",
        "train.steps=60",
        "train.warmup_steps=1",
        "hardware.peak=none",
        "profile.window_s=0.1",
        "inject.rank=1",  # as long as W&B may take to start
        "inject.delay_ms=50",
    ]
    ranks = fork_ranks(2, arguments, tmp_path, before=IMPATIENT, WANDB_MODE="offline", TMPDIR=str(own))
    service: int | None = None
    try:
        wait_until(lambda: "wandb: offline" in ranks[0].read()[0], ranks)
        service = find_service(ranks[0].pid)
        assert service is not None
        os.kill(service, signal.SIGSTOP)
        said, errors = ranks[0].communicate(timeout=60)
        ranks[1].communicate(timeout=30)
        wait_until(lambda: find_service(ranks[0].pid) is None, [], 10)  # nobody holds the job's output open
    finally:
        if service is not None and find_service(ranks[0].pid) is not None:
            os.kill(service, signal.SIGKILL)
        end_all(ranks)
    assert [process.returncode for process in ranks] == [0, 0], errors
    assert count_steps(tmp_path) == [61, 61]
    report = read_report(tmp_path)
    assert report["coverage"]["complete"]
    (note,) = (note for note in report["coverage"]["notes"] if note.startswith("W&B did not get "))
    assert re.match(r"W&B did not get \d+ of 61 steps and the tables and the summary", note)
    assert f"wandb: {note.partition(':')[0]}" in said.replace("\n", " ")
    assert [path.name for path in own.iterdir() if not path.name.startswith("torch")] == []
