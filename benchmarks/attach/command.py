"""Runs programs with and without distprof, and compares."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.attach.check import (
    NOT_APPLICABLE,
    Cell,
    check_culprit,
    check_nobody,
    check_recognition,
    compare,
)
from benchmarks.attach.job import run_job
from benchmarks.attach.program import ForeignProgram
from benchmarks.attach.programs import PROGRAMS
from distprof.errors import EXIT_FAILED, EXIT_OK, UsageError

ENDS = {"raise": 1, "exit": 7, "SIGTERM": -15, "SIGKILL": -9}
END_AT = 12
"""The backward in which rank 1 ends."""
MODULE_OPTIONS = ["profile.level=modules", "profile.module_from=25", "profile.module_steps=12"]
COLUMNS = (
    "steps", "phases", "losses", "parameters", "random state", "stdout", "exit", "other ends", "nobody", "data",
    "module",
)  # fmt: skip
DESCRIPTION = """\
Runs programs that know nothing of distprof on two ranks, each without it and under python -m distprof.attach, and
compares what they print, how they end, their losses, parameters and random state bit by bit, and the steps and phases
that are found with those counted by hand. Then delays rank 1 in its dataset, and in one module of its model: rank,
phase and module must be named; without a delay nobody may be. It fails if a cell says NO. Programs whose packages are
not installed are left out.
"""


def add_attach(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the benchmark to the command line."""
    told = "programs of others, with and without distprof"
    attach = subjects.add_parser("attach", help=told, description=DESCRIPTION)
    attach.add_argument("folder", type=Path, help="where everything goes that the programs write; must not exist")
    attach.add_argument("programs", nargs="*", metavar="PROGRAM", help="only these")
    attach.add_argument("--without", default="", metavar="RUNS", help="leave out: delays,ends,again")


def run_attach(options: argparse.Namespace) -> int:
    """Runs the programs and shows the table.

    Raises:
        UsageError: The folder exists, or there is no such program.
    """
    folder: Path = options.folder
    known = {program.name: program for program in PROGRAMS}
    if unknown := [name for name in options.programs if name not in known]:
        raise UsageError(f"{unknown[0]}: no such program; there are {', '.join(known)}")
    if folder.exists():
        raise UsageError(f"{folder}: exists already")
    rows: dict[str, dict[str, Cell]] = {}
    chosen = [known[name] for name in options.programs or known]
    for program in chosen:
        if program.missing:
            print(f"{program.name}: left out: not installed: {', '.join(program.missing)}", flush=True)
            continue
        begin_s = time.monotonic()
        cells = check_program(program, (folder / program.name).absolute(), without=set(options.without.split(",")))
        rows[program.name] = cells
        shown = "; ".join(f"{name} {cells[name]}" for name in COLUMNS)
        print(f"{program.name} ({time.monotonic() - begin_s:.0f} s): {shown}", flush=True)
    table = Table("program", "loop", *COLUMNS)
    for name, cells in rows.items():
        table.add_row(name, known[name].loop, *(str(cells[column]) for column in COLUMNS))
    Console(width=220).print(table)
    wrong = any(cell.right is False for cells in rows.values() for cell in cells.values())
    return EXIT_FAILED if wrong else EXIT_OK


def check_program(program: ForeignProgram, folder: Path, *, without: set[str]) -> dict[str, Cell]:
    """Every run of one program: a cell for each of `COLUMNS`."""
    cells = dict.fromkeys(COLUMNS, NOT_APPLICABLE)
    plain = run_job(program, folder / "plain")
    watched = [run_job(program, folder / "watched", options=[])]
    if "again" not in without:
        watched.append(run_job(program, folder / "again", options=[]))
    for number, outcome in enumerate(watched):
        for name, cell in (compare(plain, outcome, program) | check_recognition(outcome, program)).items():
            if number == 0 or cell.right is False:
                cells[name] = cell
    if program.jobs == 1:
        cells["nobody"] = check_nobody(watched)
    if "ends" not in without:
        cells["other ends"] = _check_ends(program, folder)
    if "delays" not in without and program.jobs == 1:
        if program.has_loader:
            delayed = run_job(program, folder / "data", options=[], data_ms=program.delay_ms)
            cells["data"] = check_culprit(delayed, "data")
        if program.module is not None:
            plan = (program.module, program.delay_ms)
            delayed = run_job(program, folder / "module", options=MODULE_OPTIONS, module=plan)
            cells["module"] = check_culprit(delayed, "forward", program.named)
    return cells


def _check_ends(program: ForeignProgram, folder: Path) -> Cell:
    """Rank 1 ends in the middle: exit codes of both ranks, and standard output."""
    if not program.trains:
        return NOT_APPLICABLE
    wrong = []
    for how, code in ENDS.items():
        plain = run_job(program, folder / f"plain-{how}", end=how, end_at=END_AT)
        watched = run_job(program, folder / f"watched-{how}", options=[], end=how, end_at=END_AT)
        if plain.codes != watched.codes or plain.codes[1] != code:
            wrong.append(f"{how} {plain.codes} {watched.codes}")
        elif plain.stdout != watched.stdout:
            wrong.append(f"{how} stdout")
    return Cell(right=not wrong, text="; ".join(wrong))
