"""The verbs of `distprof`: what is done with runs that exist. Needs no torch."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from distprof import __version__
from distprof.bench.command import add_bench, run_bench
from distprof.doctor.command import add_doctor, run_doctor
from distprof.errors import EXIT_OK, EXIT_USAGE, DistprofError
from distprof.render.units import clean_text
from distprof.report_command import add_report, run_report
from distprof.tables_command import add_tables, run_tables

LONGEST_MESSAGE = 2000
"""Letters of an error's one line: the name of a file in it may be anything."""


def run_verb(arguments: list[str]) -> int:
    """Runs one verb and returns the exit code."""
    options = _make_parser().parse_args(arguments)
    if options.verb == "version":
        print(__version__)
        return EXIT_OK
    try:
        if options.verb == "bench":
            return run_bench(options)
        if options.verb == "doctor":
            return run_doctor(options)
        if options.verb == "tables":
            return run_tables(options)
        return run_report(options)
    except DistprofError as error:
        print(f"distprof: {clean_text(error, LONGEST_MESSAGE)}", file=sys.stderr)
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
    add_report(verbs)
    add_tables(verbs)
    add_doctor(verbs)
    add_bench(verbs)
    verbs.add_parser("version", help="print the version")
    return parser
