"""Named baselines that no comparison would write, beside a sound run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from benchmarks.fuzz.streams import Folder
from benchmarks.fuzz.values import SCALARS, dump, mutate
from distprof.report.comparison_report import Average, Figure, RunFigures, Scope
from distprof.storage.baseline_file import FOLDER, write_baseline

SCOPES: tuple[Scope, ...] = ("step", "phase", "rank", "part")
NAMES = ("step", "forward", "backward", "transfers")


def make_baseline_case(folder: Path, draws: random.Random) -> list[str]:
    """Writes a run folder, and a baseline that is changed. Returns the changes."""
    Folder().write(folder / "run")
    path = folder / FOLDER / "main.json"
    write_baseline(path, [_make_run()] * draws.choice((1, 2)))
    fields: Any = json.loads(path.read_bytes())
    told = [mutate(fields, draws) for _ in range(draws.choice((1, 1, 2, 5)))]
    if draws.random() < 0.03:
        fields = draws.choice(SCALARS)
        told.append(str(fields)[:40])
    path.write_bytes(dump(fields).encode("utf-8", "replace")[: draws.choice((None, None, None, 300))])
    return told


def _make_run() -> RunFigures:
    average = Average(value_ns=2e7, variance_ns2=1e10, degrees_of_freedom=9.0, autocorrelation=0.5)
    return RunFigures(
        name="main", started_utc=None, complete=True, notes=("a note",),
        environment={"job": {"ranks": "2"}, "configuration": {"train.steps": "5"}},
        figures=tuple(
            Figure(
                scope=scope, name=name, rank=0 if scope == "rank" else None, place=None, clock="host", steps=40,
                mean=average, usual=average,
            )
            for scope, name in zip(SCOPES, NAMES, strict=True)
        ),
    )  # fmt: skip
