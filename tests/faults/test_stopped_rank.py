"""One rank of a job is stopped and continued, as by a debugger or a frozen machine: whose stall is reported?"""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_PARTIAL
from distprof.facts.run import Run
from distprof.storage.run_folder import read_run
from tests.faults.forked import Started, fork_ranks

QUICK = (
    "train=gpt2_tiny", "train.steps=100000", "train.warmup_steps=2", "logger=none", "hardware.peak=none",
    "profile.window_s=0.1", "profile.shadow_every=0",
)  # fmt: skip
VICTIM = 1
LEAST_STOP_S = 1.0
STOP_STEPS = 5.0
"""A stop is this many times as long as the longest step before: whatever holds this machine up now and then is shorter.
"""
STOPS = 2


def read_job(folder: Path) -> Run | None:
    """What both ranks have written so far; None: one has not begun."""
    found = list((folder / "runs").glob("*/run.json"))
    run = read_run(found[0].parent) if found else None
    return run if run is not None and len(run.ranks) == 2 and run.rows.shape[1] else None


def wait_for_steps(ranks: list[Started], folder: Path, number: int) -> Run:
    """Waits until both ranks have written this many steps."""
    deadline = time.monotonic() + 120
    while (run := read_job(folder)) is None or run.measured().all(axis=0).sum() < number:
        assert all(rank.poll() is None for rank in ranks) and time.monotonic() < deadline
        time.sleep(0.2)
    return run


def choose_length(run: Run) -> float:
    """How long to stop the rank, s."""
    longest_ns = float(run.column("step_host_ns")[:, run.measured().all(axis=0)].max())
    return max(LEAST_STOP_S, STOP_STEPS * longest_ns / 1e9)


def find_struck(run: Run, stopped_ns: list[tuple[int, int]]) -> list[set[int]]:
    """For each stop, the numbers of the steps that a rank was in meanwhile, and of the next step."""
    begin, number = run.column("begin_host_ns"), run.column("step")
    over = begin + run.column("step_host_ns")
    inside = [(begin < until) & (over > since) for since, until in stopped_ns]
    return [{*number[struck].astype(int).tolist(), int(number[struck].max()) + 1} for struck in inside]


@pytest.mark.live
def test_fault_34_a_stopped_rank_has_one_stall_or_nobody_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = fork_ranks(2, QUICK, tmp_path)
    stopped_ns = []
    try:
        run = wait_for_steps(ranks, tmp_path, 15)
        stop_s = choose_length(run)
        for _ in range(STOPS):
            steps = run.rows.shape[1]
            since = time.monotonic_ns()
            ranks[VICTIM].send_signal(signal.SIGSTOP)
            time.sleep(stop_s)  # no tolerance: this is how long the rank is stopped
            ranks[VICTIM].send_signal(signal.SIGCONT)
            stopped_ns.append((since, time.monotonic_ns()))
            run = wait_for_steps(ranks, tmp_path, steps + 8)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        for rank in ranks:
            rank.communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
    (folder,) = (tmp_path / "runs").iterdir()
    capsys.readouterr()
    assert run_verb(["report", str(folder), "--details"]) == EXIT_PARTIAL
    shown = capsys.readouterr().out
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    for struck in find_struck(read_run(folder), stopped_ns):
        near = [stall for stall in report["stalls"] if stall["step"] in struck]
        stalls = [stall for stall in near if stall["lost_ns"] > 0.4e9 * stop_s]  # the machine has hiccups of its own
        assert len(stalls) == 1 and stalls[0]["rank"] in (VICTIM, None), (struck, report["stalls"])
        assert stalls[0]["lost_ns"] > 0.8e9 * stop_s  # the other rank had a step to do meanwhile, at most
        lines = re.findall(rf"step {stalls[0]['step']} took .* longer than usual", shown)
        assert len(lines) == 1
