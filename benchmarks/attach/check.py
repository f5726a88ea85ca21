"""Compares what came out of a program with what came out without distprof, and with what was counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import Struct

from benchmarks.attach.job import RANKS, ProgramOutcome
from benchmarks.attach.program import ForeignProgram
from benchmarks.report_file import read_report_file
from distprof.errors import DistprofError
from distprof.facts.run import PHASES, Run, Stretch
from distprof.traces.load_run import load_run


class Cell(Struct, frozen=True, kw_only=True):
    """One comparison of one program."""

    right: bool | None
    """None: it does not apply."""
    text: str = ""
    """What was found, if it is not right, or is worth saying."""

    def __str__(self) -> str:
        mark = "-" if self.right is None else "yes" if self.right else "NO"
        return f"{mark} {self.text}".rstrip()


NOT_APPLICABLE = Cell(right=None)


def compare(plain: ProgramOutcome, watched: ProgramOutcome, program: ForeignProgram) -> dict[str, Cell]:
    """Losses, state, standard output and exit codes."""
    numbers = [result.get("num_losses") for result in plain.results]
    cells = {}
    for name, key in (("losses", "losses"), ("parameters", "state"), ("random state", "random")):
        pairs = [(a.get(key), b.get(key)) for a, b in zip(plain.results, watched.results, strict=True)]
        same = all(a == b and a is not None for a, b in pairs)
        cells[name] = Cell(right=same, text=str(numbers[0]) if key == "losses" else "")
    if not program.trains:
        cells["losses"] = NOT_APPLICABLE
    cells["stdout"] = Cell(right=plain.stdout == watched.stdout and (any(plain.stdout)), text="")
    same = plain.codes == watched.codes
    cells["exit"] = Cell(right=same, text="" if same and set(plain.codes) == {0} else f"{plain.codes} {watched.codes}")
    return cells


def find_runs(outcome: ProgramOutcome, program: ForeignProgram) -> list[Path]:
    """The run folders that there are to be."""
    return [outcome.run] if program.jobs == 1 else [Path(f"{outcome.run}-rank{rank}") for rank in range(RANKS)]


def check_recognition(outcome: ProgramOutcome, program: ForeignProgram) -> dict[str, Cell]:
    """Steps and phases."""
    try:
        runs = [load_run(folder) for folder in find_runs(outcome, program)]
    except DistprofError as error:
        return {"steps": Cell(right=False, text=str(error)[:80]), "phases": Cell(right=False)}
    wanted = (RANKS // program.jobs, program.steps)
    shapes = [run.column("step").shape for run in runs]
    found = [_find_phases(run) for run in runs]
    expected = set(program.phases.split())
    wrong = [f"+{name}" for name in sorted(set().union(*found) - expected)]
    wrong += [f"-{name}" for name in sorted(expected) if any(name not in each for each in found)]
    return {
        "steps": Cell(right=set(shapes) == {wanted}, text=", ".join(f"{steps}" for _, steps in sorted(set(shapes)))),
        "phases": Cell(right=not wrong, text=" ".join(wrong)),
    }


def _find_phases(run: Run) -> set[str]:
    measured = run.column("warmup") == 0
    names = [str(name) for name in (*PHASES, Stretch.EVALUATION, Stretch.CHECKPOINT)]
    found = {name for name in names if np.nansum(run.column(f"{name}_host_ns")[measured]) > 0}
    return found - {"other"}


def read_verdict(outcome: ProgramOutcome) -> dict[str, object]:
    """As ``report.json`` has it; empty if there is none."""
    path = outcome.run / "report.json"
    return (read_report_file(path).get("verdict") or {}) if path.exists() else {}


def check_culprit(outcome: ProgramOutcome, phase: str, module: str | None = None) -> Cell:
    """Whether rank 1 is named, with the phase, and the module if one was slowed down."""
    verdict = read_verdict(outcome)
    named = verdict.get("module")
    found = (verdict.get("kind"), verdict.get("rank"), verdict.get("phase"))
    name = named.get("name") if isinstance(named, dict) else None
    right = found == ("slow_rank", 1, phase) and (module is None or name == module)
    text = f"{found[2]}" + (f" {name}" if module is not None else "")
    return Cell(right=right, text=text if right else f"{found[0]} {found[1]} {text}")


def check_nobody(outcomes: list[ProgramOutcome]) -> Cell:
    """Whether no rank is named where nobody was delayed."""
    named = []
    for outcome in outcomes:
        verdict = read_verdict(outcome)
        if verdict.get("kind") == "slow_rank":
            ratio = verdict.get("lost_ratio")
            cost = f"{ratio.get('value'):.1%}" if isinstance(ratio, dict) else "unknown"
            mark = "critical " if verdict.get("critical") else ""
            named.append(f"{mark}rank {verdict.get('rank')} {verdict.get('phase')} {cost}")
    return Cell(right=not named, text="; ".join(named))
