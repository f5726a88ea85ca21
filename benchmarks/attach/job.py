"""Runs a program on two ranks, as torchrun does, and collects what came out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.attach.program import ForeignProgram

RANKS = 2
LIMIT_S = 420.0
_HERE = Path(__file__).resolve()


class ProgramOutcome(Struct, frozen=True, kw_only=True):
    """How the ranks ended, by rank."""

    codes: list[int | None]
    """None: ended after `LIMIT_S`."""
    stdout: list[bytes]
    stderr: list[bytes]
    results: list[dict[str, Any]]
    """As `benchmarks.attach.outside` notes them; empty for a rank that was killed."""
    run: Path
    """The run folder."""
    wall_s: float


def run_job(program: ForeignProgram, folder: Path, *, options: list[str] | None = None, **plan: Any) -> ProgramOutcome:
    """Runs it.

    Args:
        program: What to run.
        folder: Is made; gets the output, and is the current folder of the ranks.
        options: Of distprof, beside ``run_dir``. None: without distprof.
        **plan: For rank 1: ``data_ms``, ``module`` with its milliseconds, ``end`` and ``end_at``.
    """
    work = folder / "work"
    work.mkdir(parents=True)
    watch = [] if options is None else ["-m", "distprof.attach", f"run_dir={folder / 'run'}", *options, "--"]
    command = [sys.executable, *watch, *program.words]
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    begin_s = time.monotonic()
    ranks = [_start(command, folder, rank, port, plan | {"folder": str(folder)}) for rank in range(RANKS)]
    deadline_s = begin_s + LIMIT_S
    codes: list[int | None] = []
    for rank in ranks:
        try:
            codes.append(rank.wait(max(deadline_s - time.monotonic(), 0.1)))
        except subprocess.TimeoutExpired:
            codes.append(None)
            rank.kill()
    texts = {name: [(folder / f"{rank}.{name}").read_bytes() for rank in range(RANKS)] for name in ("out", "err")}
    paths = [folder / f"result-{rank}.json" for rank in range(RANKS)]
    return ProgramOutcome(
        codes=codes, stdout=texts["out"], stderr=texts["err"], run=folder / "run",
        results=[json.loads(path.read_text(encoding="utf-8")) if path.exists() else {} for path in paths],
        wall_s=time.monotonic() - begin_s,
    )  # fmt: skip


def _start(command: list[str], folder: Path, rank: int, port: int, plan: dict[str, Any]) -> subprocess.Popen[bytes]:
    paths = [str(_HERE.parent / "site"), str(_HERE.parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
        "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        "ATTACH_BENCHMARK": json.dumps(plan), "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true", "COLUMNS": "120",
    }  # fmt: skip
    with (folder / f"{rank}.out").open("wb") as out, (folder / f"{rank}.err").open("wb") as err:
        return subprocess.Popen(
            command, cwd=folder / "work", env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
