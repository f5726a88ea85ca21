"""Loads a folder of traces and finds overlap and stragglers, compared with HolisticTraceAnalysis."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.process_tree import ProcessOutcome, run_fresh
from benchmarks.synthetic_traces import TraceGeneration
from benchmarks.trace_job import make_job
from distprof import __version__
from distprof.cli.options import require_folder, write_figures
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError, UsageError
from distprof.facts.plain import make_plain

OURS, RIVAL = "distprof", "HolisticTraceAnalysis"
MAX_DIFFERENCE_RATIO = 0.01
"""The largest difference in the overlap of a rank at which the two programs agree."""
DESCRIPTION = f"""\
Generates the traces of a job in which one rank comes late, and times loading them, finding the overlap of communication
with compute on every rank, and finding the straggler: with distprof, which computes everything for a whole report, and
with {RIVAL}. Both read the same files in alternating fresh processes, and imports are timed too.
Memory is measured in one more run of each, which is not timed: the proportional set size of all its processes together,
sampled every 20 ms. The overlaps that the two find must agree within 1 %.
"""
EPILOG = f"""\
examples:
  python -m benchmarks traces --hta-python hta/bin/python     8 ranks x 150,000 events, about three minutes
  python -m benchmarks traces --ranks 512 --events 20000 --against none --repeats 1
{RIVAL} 0.5.0 needs pandas before 3: python -m venv hta; hta/bin/pip install HolisticTraceAnalysis 'pandas<3'.
Its straggler search knows only kernel names up to 2022, which --names old (the default) uses.
Exit codes: 0 measured, 1 a run failed or the two disagree, 2 usage.
"""


class ProgramTiming(Struct, frozen=True, kw_only=True):
    """The results of one program over all its runs."""

    program: str
    wall_s: float
    """Median, from the start of the process to its end."""
    work_s: float
    """Median, without starting Python and importing."""
    walls_s: tuple[float, ...]
    peak_bytes: int
    overlap: Mapping[int, float | None]
    """By rank, the share of communication that ran concurrently with compute."""
    stragglers: tuple[int, ...]
    failed: str | None
    """What it could not do."""


Run = Callable[[Sequence[str], bool], ProcessOutcome]
"""Runs a command; the second argument says whether to measure its memory instead of its time."""


def add_traces(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds ``benchmarks traces``."""
    traces = subjects.add_parser(
        "traces", help="time and memory of many traces, beside HolisticTraceAnalysis",
        description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    traces.add_argument("--ranks", type=int, default=8, help="files (8)")
    traces.add_argument("--events", type=int, default=150_000, help="events per file (150000)")
    traces.add_argument("--repeats", type=int, default=3, help="timed runs of each program (3)")
    traces.add_argument("--against", choices=("hta", "none"), default="hta", help="the tool to compare with (hta)")
    traces.add_argument("--hta-python", metavar="PYTHON", help=f"an interpreter that has {RIVAL} (this one, if it has)")
    traces.add_argument(
        "--names", choices=[item.value for item in TraceGeneration], default="old", help="whose kernel names (old)"
    )
    traces.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")


def run_traces(options: argparse.Namespace) -> int:
    """Generates the files, runs the programs, and shows the results.

    Raises:
        DistprofError: A run failed.
        UsageError: An option is wrong.
    """
    _check(options)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="distprof-bench-") as folder:
        generation = TraceGeneration(options.names)
        late = make_job(Path(folder), ranks=options.ranks, events=options.events, generation=generation)
        files = sorted(Path(folder).iterdir())
        size_mb = sum(file.stat().st_size for file in files) / 1e6
        text = f"{options.ranks:,} files, {size_mb:,.0f} MB of gzip, {options.events:,} events each"
        console.print(f"{text}; rank {late} is late", highlight=False)
        found = measure_programs(list_programs(options, Path(folder)), options.repeats, console.print)
    console.print(_tabulate(found))
    agree = _compare(found, console)
    if options.against == "hta" and len(found) == 1:
        console.print(f"{RIVAL} is not installed: name an interpreter that has it with --hta-python", highlight=False)
    if options.json is not None:
        _write(options, found)
    return EXIT_OK if agree else EXIT_FAILED


def _check(options: argparse.Namespace) -> None:
    for name in ("ranks", "events", "repeats"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} {getattr(options, name)}: must be 1 or more")
    require_folder(options.json)
    if options.hta_python is not None and not os.access(options.hta_python, os.X_OK):
        raise UsageError(f"--hta-python {options.hta_python}: not an executable interpreter")


def list_programs(options: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """The commands to compare, by program: ours, and the rival's if it is installed."""
    programs = {OURS: [sys.executable, "-m", "benchmarks.trace_ours", str(folder)]}
    python = options.hta_python
    if python is None and importlib.util.find_spec("hta") is not None:
        python = sys.executable
    if options.against == "hta" and python is not None:
        code = Path(__file__).with_name("trace_rival.py").read_text(encoding="utf-8")
        programs[RIVAL] = [python, "-c", code, str(folder)]
    return programs


def _run(command: Sequence[str], watch: bool) -> ProcessOutcome:
    return run_fresh(command, watch=watch)


def measure_programs(
    programs: Mapping[str, Sequence[str]], repeats: int, print_line: Callable[[str], object], run: Run = _run
) -> list[ProgramTiming]:
    """Runs each once for its memory, then alternately for its time, reversing every second round.

    Raises:
        DistprofError: A run failed.
    """
    watched = {name: _ask(name, run(command, True)) for name, command in programs.items()}
    timed: dict[str, list[tuple[ProcessOutcome, dict[str, Any]]]] = {name: [] for name in programs}
    for turn in range(repeats):
        for name in list(programs)[:: 1 if turn % 2 == 0 else -1]:
            timed[name].append(_ask(name, run(programs[name], False)))
            print_line(f"  run {turn + 1}/{repeats}  {name}: {timed[name][-1][0].wall_s:.2f} s")
    return [_sum_up(name, watched[name], runs) for name, runs in timed.items()]


def _ask(name: str, outcome: ProcessOutcome) -> tuple[ProcessOutcome, dict[str, Any]]:
    said = outcome.stdout.strip().splitlines()
    if outcome.exit_code != 0 or not said:
        lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()] or ["it printed nothing"]
        raise DistprofError(f"{name}: the run failed: {lines[-1]}")
    return outcome, json.loads(said[-1])


def _sum_up(
    name: str, watched: tuple[ProcessOutcome, dict[str, Any]], runs: Sequence[tuple[ProcessOutcome, dict[str, Any]]]
) -> ProgramTiming:
    outcome, found = watched
    walls_s = tuple(run.wall_s for run, _ in runs)
    return ProgramTiming(
        program=name, wall_s=statistics.median(walls_s), walls_s=walls_s,
        work_s=statistics.median(said["work_s"] for _, said in runs), peak_bytes=outcome.peak_bytes or 0,
        overlap={int(rank): ratio for rank, ratio in found["overlap"].items()},
        stragglers=tuple(found.get("stragglers", ())), failed=found.get("failed"),
    )  # fmt: skip


def _tabulate(found: Sequence[ProgramTiming]) -> Table:
    table = Table(box=box.HORIZONTALS, header_style="dim")
    table.add_column("program")
    for head in ("median", "its range", "no imports", "memory", "straggler"):
        table.add_column(head, justify="right", no_wrap=True)
    for item in found:
        named = "failed" if item.failed else ", ".join(f"rank {rank}" for rank in item.stragglers) or "none"
        table.add_row(
            item.program, f"{item.wall_s:.2f} s", f"{min(item.walls_s):.2f}-{max(item.walls_s):.2f}",
            f"{item.work_s:.2f} s", f"{item.peak_bytes / 1e9:.3f} GB", named,
        )  # fmt: skip
    return table


def _compare(found: Sequence[ProgramTiming], console: Console) -> bool:
    """Prints the ratios; returns whether both found the same overlap."""
    for item in found:
        if item.failed is not None:
            console.print(f"{item.program}: {item.failed}", highlight=False)
    if len(found) < 2:
        return True
    ours, theirs = found
    faster, faster_at_work = theirs.wall_s / ours.wall_s, theirs.work_s / ours.work_s
    text = f"distprof is {faster:.1f} times as fast ({faster_at_work:.1f} times without imports)"
    console.print(f"{text}, with {ours.peak_bytes / theirs.peak_bytes:.2f} of the memory", highlight=False)
    difference_ratio = find_difference(ours.overlap, theirs.overlap)
    agree = difference_ratio is not None and difference_ratio <= MAX_DIFFERENCE_RATIO
    apart = "not of the same ranks" if difference_ratio is None else f"at most {difference_ratio:.3%} apart"
    verdict = "the same" if agree else "DIFFERENT ANSWERS: the times mean nothing"
    console.print(f"overlap of {len(ours.overlap)} ranks: {apart}: {verdict}", highlight=False)
    return agree


def find_difference(ours: Mapping[int, float | None], theirs: Mapping[int, float | None]) -> float | None:
    """The largest difference in a rank's overlap, relative to the larger one. None: the ranks differ."""
    sides = [{rank: ratio for rank, ratio in side.items() if ratio is not None} for side in (ours, theirs)]
    if not ours or not set(ours) == set(theirs) == set(sides[0]) == set(sides[1]):
        return None
    pairs = [(sides[0][rank], sides[1][rank]) for rank in ours]
    found = [abs(one - other) / max(one, other) if one != other else 0.0 for one, other in pairs]
    return None if any(map(math.isnan, found)) else max(found)


def _write(options: argparse.Namespace, found: Sequence[ProgramTiming]) -> None:
    document = {
        "distprof_version": __version__, "python": platform.python_version(), "cores": os.cpu_count(),
        "ranks": options.ranks, "events": options.events, "names": options.names,
        "programs": [make_plain(item) for item in found],
    }  # fmt: skip
    write_figures(options.json, document)
