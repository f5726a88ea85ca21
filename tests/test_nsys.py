"""Our NVTX ranges as a real Nsight Systems sees them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from distprof.facts.run import PHASES
from tests.ranks import make_environment


@pytest.mark.live
@pytest.mark.nsys
@pytest.mark.skipif(metadata.version("nvtx") > "0.2.11", reason="nvtx after 0.2.11 is silent under older nsys")
def test_every_step_phase_and_rank_is_in_the_capture(tmp_path: Path) -> None:
    nsys = os.environ.get("NSYS", "nsys")
    job = [sys.executable, "-m", "distprof", "train=gpt2_tiny", "train.steps=2", "train.warmup_steps=1", "logger=none"]
    command = [nsys, "profile", "-t", "nvtx", "-o", "capture", "--export", "sqlite", *job]
    done = subprocess.run(
        command, cwd=tmp_path, env=make_environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "capture.sqlite") as base:
        rows = base.execute(
            "SELECT COALESCE(text, value), int64Value, end FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id "
            "WHERE eventType IN (34, 59, 60)"
        ).fetchall()
    steps_by_name: dict[str, list[int]] = {}
    for name, step, end in rows:
        if not name.startswith("rank="):
            assert end is not None, f"{name} was never closed"
            steps_by_name.setdefault(name, []).append(step)
    assert any(name.startswith("rank=0 world=1 host=") for name, _, _ in rows)
    shown = {phase.value for phase in PHASES} - {"all_gather", "other"}
    for name in {"step", "blocks.0", "blocks.1.attention"} | shown:
        assert steps_by_name[name] == [0, 1, 2], name
