"""What attach adds to steps that the host limits and to those that the GPU limits, and whether losses stay the same."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.gpu_check.check_result import CheckResult

PROGRAM = Path(__file__).with_name("attach_program.py")
ROUNDS, LIMIT_S = 3, 60.0
SIZES = {"the host limits": (4, 300, 3.0), "the GPU limits": (128, 60, 1.0)}
"""Sequences of a batch, steps, and what attach may add, %."""
Measure = Callable[[bool, int, int], tuple[float, float]]
"""Takes whether it is watched, the batch and the steps; returns the step, ms, and the last loss."""


def check_attach(*, dry: bool, measure: Measure | None = None) -> Iterator[CheckResult]:
    """The checks of this file; ``dry``: nothing is trained."""
    measure = measure or ((lambda watched, batch, steps: (1.0, 0.0)) if dry else run_program)
    for name, (batch, steps, most_percent) in SIZES.items():
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for watched, results in found.items():
                results.append(measure(watched, batch, steps))
        plain_ms, watched_ms = (statistics.median(step_ms for step_ms, _ in results) for results in found.values())
        losses = {loss for results in found.values() for _, loss in results}
        yield CheckResult(
            name=f"attach, {name}: added to a step, %", value=100 * (watched_ms / plain_ms - 1), low=-5,
            high=most_percent,
            note=f"{plain_ms:.2f} ms without, {watched_ms:.2f} ms with it, medians of {ROUNDS}",
        )  # fmt: skip
        yield CheckResult(name=f"attach, {name}: different last losses", value=float(len(losses)), low=1, high=1)


def run_program(watched: bool, batch: int, steps: int) -> tuple[float, float]:
    """Runs it in a process of its own.

    Raises:
        subprocess.SubprocessError: It failed or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="distprof-gpu-") as folder:
        out = Path(folder) / "out.json"
        attach = ["-m", "distprof.attach", f"run_dir={folder}/run", "--"] if watched else []
        subprocess.run(
            [sys.executable, *attach, str(PROGRAM), str(batch), str(steps), str(out)], check=True, timeout=LIMIT_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        found = json.loads(out.read_text())
    return found["step_ms"], found["loss"]
