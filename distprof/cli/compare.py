"""The verb ``compare``: two sides of runs, traces or sweeps, with intervals and an exit code."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs
from rich.console import Console

from distprof.analyze.compare.compare_sides import DEFAULT_LIMIT_RATIO, compare_sides
from distprof.analyze.compare.measure_figures import measure_figures
from distprof.analyze.compare.measure_sweep import Settings, measure_sweep
from distprof.cli.options import LONGEST_PATH, add_width, require_folder, write_figures, write_file
from distprof.cli.reading import add_executor
from distprof.cli.trace_names import add_names, read_names
from distprof.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    EXIT_PARTIAL,
    EXIT_WORSE,
    DataError,
    UsageError,
)
from distprof.facts.plain import make_plain
from distprof.facts.sweep import Sweep
from distprof.render.terminal.comparison_screen import render_comparison
from distprof.render.units import clean_text
from distprof.report.comparison_report import ComparisonReport, RunFigures
from distprof.storage.baseline_file import FOLDER, locate_baseline, read_baseline, write_baseline
from distprof.storage.remote import Place, Url, read_place
from distprof.storage.run_folder import read_run
from distprof.storage.sweep_folder import is_sweep, read_sweep, require_inside
from distprof.traces.operations.read_operations import is_operations
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.phase_names import NameMap

DESCRIPTION = """\
Compares runs with a base: step time, phases, ranks, collectives, modules and kernels, each with the interval of its
change; says what changed in configuration, versions, hosts and devices, and where the difference went. A PATH is a run
folder, a trace, a capture, a folder of traces of one job, or a sweep. Of two paths the first is the base; --against
names the runs of the base, --baseline a saved one. Several runs on a side show how much runs of the same thing vary.
"""
EPILOG = """\
examples:
  distprof compare runs/before runs/after
  distprof compare runs/new* --against runs/old*      several runs on each side
  distprof compare runs/main --save-baseline main     into distprof-baselines/
  distprof compare runs/new --baseline main --fail-over 3% --markdown summary.md

worse, better: the interval of the change excludes 0. no difference: all of it lies within the limit. inconclusive:
it reaches beyond; more steps or more runs narrow it.

Exit codes: 0 compared, and not longer by more than --fail-over; 1 nothing readable, or no measured step; 2 usage; 3
compared, but ranks, jobs or files are missing; 4 longer by more than --fail-over: the whole interval is above it; 5
with --fail-on-inconclusive: the interval reaches to both sides of it.
"""
SAME = "both sides are the same: nothing can differ"
_PERCENT = re.compile(r"(\d{1,4}(?:\.\d{1,6})?) ?%")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options."""
    parser.add_argument("paths", type=read_place, nargs="+", metavar="PATH", help="run folder, trace, capture or sweep")
    parser.add_argument("--against", type=read_place, nargs="+", metavar="PATH", help="the runs of the base")
    parser.add_argument("--baseline", metavar="NAME", help="a saved baseline is the base")
    parser.add_argument("--save-baseline", metavar="NAME", help="save the runs PATH as a baseline")
    parser.add_argument(
        "--baselines", type=Path, default=FOLDER, metavar="FOLDER", help=f"where baselines are (default: {FOLDER})"
    )
    parser.add_argument(
        "--fail-over", type=read_percent, metavar="PERCENT",
        help=f"exit with {EXIT_WORSE} if a step takes longer by more than this, such as 3%%",
    )  # fmt: skip
    parser.add_argument(
        "--fail-on-inconclusive", action="store_true",
        help=f"exit with {EXIT_INCONCLUSIVE} if that cannot be told",
    )  # fmt: skip
    parser.add_argument("--details", action="store_true", help="show every time, not only what differs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a page")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write it as Markdown, for a pull request")
    add_executor(parser)
    add_width(parser)
    add_names(parser)


def read_percent(text: str) -> float:
    """The ratio of a percentage such as ``3%``.

    Raises:
        UsageError: It is none.
    """
    matched = _PERCENT.fullmatch(text.strip())
    if matched is None or float(matched[1]) == 0:
        raise UsageError(f"--fail-over {text}: expected a percentage above 0, such as 3%")
    return float(matched[1]) / 100


def run(options: argparse.Namespace) -> int:
    """Reads, compares, writes and shows.

    Raises:
        DistprofError: A run or baseline is unreadable or has no measured step, or an option is wrong.
    """
    base_paths, new_paths = _choose_sides(options)
    names = read_names(options)
    _refuse_twice(base_paths, new_paths)
    base, new = _read_sides(base_paths, new_paths, names, options.executor)
    if _list_same(base_paths) == _list_same(new_paths):
        new = [structs.replace(figures, notes=(*figures.notes, SAME)) for figures in new]
    if options.baseline is not None:
        base = read_baseline(locate_baseline(options.baselines, options.baseline))
    if options.save_baseline is not None:
        path = locate_baseline(options.baselines, options.save_baseline)
        write_baseline(path, new)
        print(f"saved {clean_text(path, LONGEST_PATH)}: {len(new)} run{'s' if len(new) > 1 else ''}")
    if not base:
        return EXIT_OK
    try:
        report = compare_sides(base, new, limit_ratio=options.fail_over or DEFAULT_LIMIT_RATIO)
    except ValueError as error:
        raise DataError(f"{clean_text(new_paths[0], LONGEST_PATH)}: {error}") from None
    _write(options, report)
    render_comparison(report, Console(width=options.width, emoji=False), details=options.details)
    return _choose_exit(options, report)


def _choose_sides(options: argparse.Namespace) -> tuple[list[Place], list[Place]]:
    """The paths of the base, which may have none, and those that are compared with it.

    Raises:
        UsageError: It is not clear what is compared with what.
    """
    for option, path in (("--json", options.json), ("--html", options.html), ("--markdown", options.markdown)):
        require_folder(path, option)
    for name in (options.baseline, options.save_baseline):
        if name is not None:
            locate_baseline(options.baselines, name)
    if options.fail_on_inconclusive and options.fail_over is None:
        raise UsageError("--fail-on-inconclusive: needs a limit: add --fail-over 3%")
    if options.against is not None and options.baseline is not None:
        raise UsageError("--against and --baseline: each names the base: leave one out")
    saving = options.save_baseline is not None
    if options.against is not None or options.baseline is not None or saving:
        if saving and options.against is None and options.baseline is None and options.fail_over is not None:
            raise UsageError("--fail-over: nothing to compare with: add --against or --baseline")
        return options.against or [], options.paths
    if len(options.paths) != 2:
        raise UsageError("two paths are compared: name the base of one or of several with --against or --baseline")
    return options.paths[:1], options.paths[1:]


def _refuse_twice(base: Sequence[Place], new: Sequence[Place]) -> None:
    """A run counts once: twice, it would show that runs vary less than they do.

    Raises:
        UsageError: A path is there twice, other than as all of both sides.
    """
    here, there = _list_same(base), _list_same(new)
    for paths, same in ((base, here), (new, there)):
        if twice := [path for at, path in enumerate(paths) if same[at] in same[:at]]:
            raise UsageError(f"{clean_text(twice[0], LONGEST_PATH)}: is given twice: a run counts once")
    both = [path for path, each in zip(new, there, strict=True) if each in here]
    if both and here != there:
        raise UsageError(f"{clean_text(both[0], LONGEST_PATH)}: is on both sides: a run is compared with others")


def _list_same(paths: Sequence[Place]) -> list[str]:
    """The paths, as they are the same for the same place."""
    return [path.text if isinstance(path, Url) else str(path.resolve()) for path in paths]


def _read_sides(
    base: Sequence[Place], new: Sequence[Place], names: NameMap, executor: str | None
) -> tuple[Sequence[RunFigures], Sequence[RunFigures]]:
    """What is compared of each run.

    Raises:
        DataError: One is unreadable, or has no measured step.
        UsageError: Some are sweeps, and some are not.
    """
    kinds = {is_sweep(path) for path in (*base, *new)}
    if len(kinds) > 1:
        raise UsageError("a sweep and a run: compare sweeps with sweeps, and runs with runs")
    if kinds == {True}:
        return _read_sweeps([path for path in base if is_sweep(path)], [path for path in new if is_sweep(path)])
    return [_read_run(path, names, executor) for path in base], [_read_run(path, names, executor) for path in new]


def _read_run(path: Place, names: NameMap, executor: str | None) -> RunFigures:
    if is_operations(path):
        raise UsageError(f"{clean_text(path, LONGEST_PATH)}: is a table of operations: compare runs, traces or sweeps")
    recorded = read_paths([path], names, executor=executor)
    figures = measure_figures(recorded)
    if figures is None:
        raise DataError(f"{clean_text(path, LONGEST_PATH)}: has no measured step: nothing to compare")
    notes = [f"left out: {reason}" for reason in recorded.unread]
    return structs.replace(figures, name=path.name or figures.name, notes=tuple(notes))


def _read_sweeps(
    base: Sequence[Path], new: Sequence[Path]
) -> tuple[Sequence[RunFigures], Sequence[RunFigures]]:  # fmt: skip
    """Sweeps by the jobs that all of them have."""
    found = [(path, sweep, _read_jobs(path, sweep)) for path in (*base, *new) for sweep in (read_sweep(path),)]
    common = [settings for settings in found[0][2] if all(settings in jobs for _, _, jobs in found)]
    if not common:
        raise DataError(f"{clean_text(found[0][0], LONGEST_PATH)}: has no job that completed in all sweeps given")
    clocks = {jobs[settings].step.clock for _, _, jobs in found for settings in common}
    if len(clocks) > 1:
        raise DataError(f"{clean_text(found[0][0], LONGEST_PATH)}: jobs were timed on different clocks")
    measured = [
        measure_sweep(
            path.name, sweep.started_utc, {settings: jobs[settings] for settings in common},
            complete=len(common) == len(sweep.jobs),
        )
        for path, sweep, jobs in found
    ]  # fmt: skip
    return measured[: len(base)], measured[len(base) :]


def _read_jobs(folder: Path, sweep: Sweep) -> dict[Settings, RunFigures]:
    """The jobs that completed, by their settings; those that cannot be read are missing."""
    jobs: dict[Settings, RunFigures] = {}
    for job in sweep.jobs:
        if job.folder is None or job.status != "completed":
            continue
        try:
            figures = measure_figures(read_run(require_inside(folder, job.folder)))
        except (DataError, OSError):
            continue
        if figures is not None:
            jobs[tuple(job.settings.items())] = figures
    return jobs


def _write(options: argparse.Namespace, report: ComparisonReport) -> None:
    if options.json is not None:
        write_figures(options.json, make_plain(report))
    if options.html is None and options.markdown is None:
        return
    from distprof.render.files.comparison_files import render_comparison_html, render_markdown

    if options.html is not None:
        write_file(options.html, render_comparison_html(report), "--html")
    if options.markdown is not None:
        write_file(options.markdown, render_markdown(report), "--markdown")


def _choose_exit(options: argparse.Namespace, report: ComparisonReport) -> int:
    """The worst of what is asked for."""
    if options.fail_over is not None and report.limit == "over":
        return EXIT_WORSE
    if options.fail_on_inconclusive and report.limit == "inconclusive":
        return EXIT_INCONCLUSIVE
    return EXIT_OK if report.complete else EXIT_PARTIAL
