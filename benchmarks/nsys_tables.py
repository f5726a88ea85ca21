"""Compares the tables of a capture with those of `nsys stats`, in time and cell by cell."""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console

from benchmarks.process_tree import ProcessOutcome, run_fresh
from benchmarks.table_capture import make_capture
from distprof import __version__
from distprof.cli.options import require_folder, write_figures
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError, UsageError
from distprof.render.units import clean_text
from distprof.storage.safe_open import SQLITE_MAGIC, begins_with
from distprof.traces.nsys.nsys_tool import Nsys, find_nsys
from distprof.traces.tables.six_tables import TABLES

OURS, RIVAL = "distprof", "nsys stats"
ROWS = 4_000_000
SHOWN, CELL_LETTERS = 10, 80
PROJECTED = ("nvtx_gpu_proj_sum", "nvtx_kern_sum")
"""nsys' tables that combine ranges and the device."""
DESCRIPTION = """\
Makes the six tables of a capture with `distprof tables --csv` and with `nsys stats --format csv`, in alternating fresh
processes, and compares every cell. Without a file, a synthetic capture of two processes is used. Memory
is measured in one more run of each, which is not timed: the proportional set size of all its processes together.
"""
EPILOG = """\
examples:
  python -m benchmarks tables node0.sqlite --projections   do the tables of this capture match nsys?
  python -m benchmarks tables --rows 1000000 --repeats 5   how much faster is distprof?
Uses the nsys on PATH, or the one that the variable NSYS names.
Exit codes: 0 every cell is the same, 1 a cell differs or a run failed, 2 usage.
"""

Cells = dict[str, list[list[str]]]
"""Rows of each table, including heads. A missing table has none."""


class TableTiming(Struct, frozen=True, kw_only=True):
    """The results of one program over all its runs."""

    program: str
    wall_s: float
    """Median, from the start of the process to its end."""
    walls_s: tuple[float, ...]
    peak_bytes: int


def add_nsys_tables(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds ``benchmarks tables``."""
    tables = subjects.add_parser(
        "tables", help="the six tables of a capture, beside nsys stats: time, and every cell",
        description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    tables.add_argument("file", type=Path, nargs="?", metavar="FILE.sqlite", help="an export (a synthetic one)")
    tables.add_argument("--rows", type=int, default=ROWS, help=f"events of the synthetic export ({ROWS})")
    tables.add_argument(
        "--projections", action="store_true", help=f"also {' and '.join(PROJECTED)}: ranges and the device together"
    )
    tables.add_argument("--repeats", type=int, default=3, help="timed runs of each program (3)")
    tables.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")


def run_nsys_tables(options: argparse.Namespace) -> int:
    """Runs both programs on one file, and compares them.

    Raises:
        DistprofError: A run failed.
        UsageError: An option is wrong, or there is no nsys.
    """
    nsys = _check(options)
    console = Console()
    tables = (*TABLES, *PROJECTED) if options.projections else tuple(TABLES)
    with tempfile.TemporaryDirectory(prefix="distprof-bench-") as folder:
        file = options.file
        if file is None:
            file = Path(folder) / "synthetic.sqlite"
            rows = make_capture(file, rows=options.rows)
            console.print(f"{rows:,} synthetic rows, {file.stat().st_size / 1e6:,.0f} MB", highlight=False)
        commands = write_commands(nsys, file, Path(folder), tables)
        timings = _measure(commands, options.repeats, console)
        differences, total = compare_tables(*(read_tables(Path(folder) / name) for name in ("ours", "theirs")))
    for item in timings:
        span = f"{min(item.walls_s):.2f} to {max(item.walls_s):.2f} s"
        text = f"{item.program}: {item.wall_s:.2f} s ({span}), {item.peak_bytes / 1e9:.3f} GB"
        console.print(text, highlight=False)
    ours, theirs = timings
    text = f"distprof is {theirs.wall_s / ours.wall_s:.1f} times as fast as nsys {nsys.version or ''}"
    console.print(text, highlight=False)
    console.print(f"{len(differences):,} of {total:,} cells differ", highlight=False)
    for text in differences[:SHOWN]:
        console.print(f"  {text}", highlight=False, markup=False)
    if options.json is not None:
        _write(options, timings, nsys, len(differences), total)
    return EXIT_FAILED if differences else EXIT_OK


def _check(options: argparse.Namespace) -> Nsys:
    for name in ("rows", "repeats"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} {getattr(options, name)}: must be 1 or more")
    require_folder(options.json)
    if options.file is not None and not begins_with(options.file, SQLITE_MAGIC):
        raise UsageError(f"{options.file}: not an SQLite file: make one with nsys export --type sqlite")
    nsys = find_nsys()
    if nsys is None:
        raise UsageError("no nsys on PATH or in the variable NSYS: there is nothing to compare with")
    return nsys


def write_commands(nsys: Nsys, file: Path, folder: Path, tables: Sequence[str]) -> dict[str, list[str]]:
    """The command line of each program; CSV files go to the folders ``ours`` and ``theirs``."""
    for name in ("ours", "theirs"):
        (folder / name).mkdir()
    chosen = [word for name in tables for word in ("--table", name)]
    stats = [nsys.path, "stats", "--report", ",".join(tables), "--format", "csv", "--force-export=false"]
    return {
        OURS: [sys.executable, "-m", "distprof", "tables", str(file), *chosen, "--csv", str(folder / "ours")],
        RIVAL: [*stats, "--force-overwrite=true", "--output", str(folder / "theirs" / "of"), str(file)],
    }  # fmt: skip


def _measure(commands: Mapping[str, Sequence[str]], repeats: int, console: Console) -> list[TableTiming]:
    """Runs each once for its memory, then alternately for its time, reversing every second round."""
    peaks = {name: _run(name, command, watch=True).peak_bytes or 0 for name, command in commands.items()}
    walls_s: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(repeats):
        for name in list(commands)[:: 1 if turn % 2 == 0 else -1]:
            walls_s[name].append(_run(name, commands[name], watch=False).wall_s)
            text = f"  run {turn + 1}/{repeats}  {name}: {walls_s[name][-1]:.2f} s"
            console.print(text, highlight=False, style="dim")
    return [
        TableTiming(program=name, wall_s=statistics.median(own), walls_s=tuple(own), peak_bytes=peaks[name])
        for name, own in walls_s.items()
    ]


def _run(name: str, command: Sequence[str], *, watch: bool) -> ProcessOutcome:
    outcome = run_fresh(command, watch=watch)
    if outcome.exit_code != 0:
        said = [line.strip() for line in (outcome.stderr + outcome.stdout).splitlines() if line.strip()]
        why = said[-1].removeprefix("distprof: ") if said else f"exit code {outcome.exit_code}"
        raise DistprofError(f"{name}: the run failed: {clean_text(why, 500)}")
    return outcome


def read_tables(folder: Path) -> Cells:
    """The CSV files in a folder, by the table name that their names end with."""
    csv.field_size_limit(1 << 27)
    found: Cells = {}
    for name in (*TABLES, *PROJECTED):
        for path in folder.glob(f"*{name}.csv"):
            if path.stem in (name, f"of_{name}"):
                with path.open(encoding="utf-8", errors="backslashreplace", newline="") as file:
                    found[name] = [row for row in csv.reader(file) if row]
    return found


def compare_tables(ours: Cells, theirs: Cells) -> tuple[list[str], int]:
    """Describes the differences, and counts the cells compared. A table that nsys omits must be empty.

    The ``'`` that our CSV puts before what a spreadsheet would run is not a difference.
    """
    differences, total = [], 0
    for name in (*TABLES, *PROJECTED):
        one, other = ours.get(name, []), theirs.get(name, [])
        if len(one) <= 1 and not other:
            continue
        for index in range(max(len(one), len(other))):
            for column, left, right in _pair(one, other, index):
                total += 1
                if left != right and left != f"'{right}":
                    shown = " against ".join(clean_text(cell, CELL_LETTERS) for cell in (left, right))
                    differences.append(f"{name} row {index}, column {column + 1}: {shown}")
    return differences, total


def _pair(one: list[list[str]], other: list[list[str]], index: int) -> Iterator[tuple[int, str, str]]:
    """Pairs the cells of one row; empty if a table has no such row."""
    left, right = (rows[index] if index < len(rows) else [] for rows in (one, other))
    for column in range(max(len(left), len(right))):
        cells = [row[column] if column < len(row) else "(nothing)" for row in (left, right)]
        yield column, cells[0], cells[1]


def _write(
    options: argparse.Namespace, timings: Sequence[TableTiming], nsys: Nsys, differences: int, total: int
) -> None:
    document = {
        "distprof_version": __version__, "python": platform.python_version(), "cores": os.cpu_count(),
        "nsys": nsys.version, "rows": None if options.file is not None else options.rows, "cells": total,
        "cells_that_differ": differences,
        "programs": [{"program": one.program, "walls_s": one.walls_s, "peak_bytes": one.peak_bytes} for one in timings],
    }  # fmt: skip
    write_figures(options.json, document)
