"""The example for Ray Train, on a local Ray of two workers: a run folder with both ranks, and its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.ray
def test_the_example_leaves_a_report_on_both_workers(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.torch", reason="ray: the package ray[train] is not installed", exc_type=ImportError)
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "docs" / "examples" / "ray_train.py"), "2", str(tmp_path / "runs")],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, cwd=tmp_path, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (report,) = (tmp_path / "runs").glob("*_ray/report.json")
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["world_size"] == len(found["ranks"]) == 2 and found["coverage"]["complete"]
