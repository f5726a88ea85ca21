"""The verbs of `distprof`: what is done with runs that exist. Needs no torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from distprof import __version__
from distprof.analyze import analyze
from distprof.bench.command import add_bench, run_bench
from distprof.errors import EXIT_OK, EXIT_PARTIAL, EXIT_USAGE, DistprofError
from distprof.folder import read_run
from distprof.render.files import write_files
from distprof.render.terminal import render_terminal


def run_verb(arguments: list[str]) -> int:
    """Runs one verb and returns the exit code."""
    options = _make_parser().parse_args(arguments)
    if options.verb == "version":
        print(__version__)
        return EXIT_OK
    try:
        if options.verb == "bench":
            return run_bench(options)
        return _report(options.run, write=not options.no_write, width=options.width)
    except DistprofError as error:
        print(f"distprof: {error}", file=sys.stderr)
        return error.exit_code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="distprof",
        description="Where each rank's time went, which rank held the others up, and what fixing it would buy.",
        epilog="Anything else is a training job: see distprof --help.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    report = verbs.add_parser(
        "report",
        help="show the report of a run folder and write its files again",
        description="Rebuilds the report of a run from its folder, also when ranks are missing or the job died.",
        epilog="Exit codes: 0 complete, 1 not readable, 2 usage, 3 a rank or step is missing (the report says which).",
    )
    report.add_argument("run", type=Path, help="a run folder: runs/<date>_<name>")
    report.add_argument("--no-write", action="store_true", help="only show it; leave report.* in the folder alone")
    report.add_argument("--width", type=int, help="columns of the terminal report (default: the terminal's)")
    add_bench(verbs)
    verbs.add_parser("version", help="print the version")
    return parser


def _report(folder: Path, *, write: bool, width: int | None) -> int:
    run = read_run(folder)
    report = analyze(run)
    if write:
        try:
            write_files(folder, run, report)
        except OSError as error:
            print(f"distprof: {folder}: the report files were not written ({error.strerror})", file=sys.stderr)
    render_terminal(report, Console(width=width))
    return EXIT_OK if report.coverage.complete else EXIT_PARTIAL
