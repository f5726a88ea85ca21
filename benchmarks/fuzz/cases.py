"""One case: inputs in a folder, generated from a seed and a number, and a command line for them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.fuzz.baselines import make_baseline_case
from benchmarks.fuzz.captures import make_capture_case, make_sound_capture
from benchmarks.fuzz.kineto import make_kineto_case, make_sound_trace
from benchmarks.fuzz.modules import make_module_case
from benchmarks.fuzz.operations import make_operations_case
from benchmarks.fuzz.reduced import make_reduced_case
from benchmarks.fuzz.streams import Folder, make_stream_case
from benchmarks.fuzz.tops import make_top_case
from distprof.traces.tables.projection import PROJECTIONS
from distprof.traces.tables.six_tables import TABLES

KINDS = ("streams", "sqlite", "kineto", "mixed", "modules", "operations", "tops", "baselines", "reduced")
TABLES_RATIO = 0.25
"""How often inputs with traces are passed to ``tables``."""


class Case(Struct, frozen=True, kw_only=True):
    """One input."""

    kind: str
    arguments: tuple[str, ...]
    """Arguments of ``distprof``, relative to the folder."""
    told: tuple[str, ...]
    """The changes made to a sound input."""


def make_case(number: int, seed: int, kinds: Sequence[str], folder: Path) -> Case:
    """Writes a case's input into ``folder``. Equal number, seed and kinds give equal input."""
    draws = random.Random(f"{seed}/{number}")
    kind = kinds[number % len(kinds)]
    if kind == "tops":
        whole, changes = make_top_case(folder, draws)
        return Case(kind=kind, arguments=tuple(whole), told=tuple(changes))
    if kind == "baselines":
        changes = make_baseline_case(folder, draws)
        more = draws.choice((["--details"], [], ["--html", "out.html", "--markdown", "out.md"]))
        return Case(kind=kind, arguments=("compare", "run", "--baseline", "main", *more), told=tuple(changes))
    if kind == "operations":
        name, changes = make_operations_case(folder, draws)
        more = draws.choice((["--details"], []))
        return Case(kind=kind, arguments=("report", name, "--out", "out", "--width", "80", *more), told=tuple(changes))
    make = {
        "streams": _make_streams, "sqlite": _make_sqlite, "kineto": _make_kineto, "mixed": _make_mixed,
        "modules": _make_modules, "reduced": make_reduced_case,
    }[kind]  # fmt: skip
    paths, told = make(folder, draws)
    traces = kind not in ("streams", "modules", "reduced")
    arguments = _ask_tables(draws) if traces and draws.random() < TABLES_RATIO else _ask_report(draws, traces)
    return Case(kind=kind, arguments=(arguments[0], *paths, *arguments[1:]), told=tuple(told))


def write_sound(folder: Path) -> list[str]:
    """Writes the inputs that all cases are made from: a run, an export and a trace."""
    Folder().write(folder / "run")
    (folder / "a.sqlite").write_bytes(make_sound_capture())
    (folder / "a.json").write_text(json.dumps(make_sound_trace()), encoding="utf-8")
    return ["run", "a.sqlite", "a.json"]


def _ask_report(draws: random.Random, traces: bool) -> list[str]:
    more = ["--out", "out", "--width", str(draws.choice((40, 110, 200)))]
    if traces and draws.random() < 0.2:
        more += ["--step", draws.choice(("*", "ProfilerStep*", "forward", "[", "step"))]
    if traces and draws.random() < 0.2:
        more += ["--phase", draws.choice(("forward=*", "backward=## *", "data=mine"))]
    return ["report", *more]


def _ask_tables(draws: random.Random) -> list[str]:
    more = ["--width", str(draws.choice((40, 160)))]
    for name in draws.sample((*TABLES, *PROJECTIONS), draws.randrange(4)):
        more += ["--table", name]
    more += draws.choice(([], ["--per-rank"], ["--rank", "0"], ["--csv", "out"], ["--per-rank", "--csv", "out"]))
    more += draws.choice(([], [], ["--drop-warmup"], ["--drop-warmup", "--step", "*"]))
    return ["tables", *more]


Made = tuple[list[str], list[str]]
"""Paths for the command line, and the changes made."""


def _make_streams(folder: Path, draws: random.Random) -> Made:
    return ["run"], make_stream_case(folder / "run", draws)


def _make_modules(folder: Path, draws: random.Random) -> Made:
    return ["run"], make_module_case(folder / "run", draws)


def _make_sqlite(folder: Path, draws: random.Random) -> Made:
    return ["a.sqlite"], make_capture_case(folder / "a.sqlite", draws)


def _make_kineto(folder: Path, draws: random.Random) -> Made:
    if draws.random() < 0.7:
        return ["a.json"], make_kineto_case(folder / "a.json", draws)
    (folder / "traces").mkdir()
    told = []
    for rank in range(2):
        told += make_kineto_case(folder / "traces" / f"{rank}.json", draws, rank)
    return ["traces"], told


def _make_mixed(folder: Path, draws: random.Random) -> Made:
    """Run folders with kernel windows, and sources of several kinds side by side."""
    told = make_stream_case(folder / "run", draws)
    (folder / "run" / "kernels").mkdir(exist_ok=True)
    paths = ["run"]
    if draws.random() < 0.7:
        for rank in range(draws.choice((1, 3))):
            told += make_kineto_case(folder / "run" / "kernels" / f"rank-{rank:05d}.json", draws, rank, 3)
    if draws.random() < 0.4:
        told += make_kineto_case(folder / "b.json", draws, draws.choice((0, 1, 9)), 3)
        paths.append("b.json")
    if draws.random() < 0.4:
        told += make_capture_case(folder / "c.sqlite", draws)
        paths.append("c.sqlite")
    return paths, told
