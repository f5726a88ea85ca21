"""The verbs of `distprof` that work on existing runs. Needs no torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from distprof import __version__
from distprof.config.redact import mask, secret_values
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, DistprofError
from distprof.render.units import clean_text

VERBS = ("report", "tables", "model", "window", "doctor", "bench", "wandb-dashboard")
EXIT_INTERRUPTED = 130
"""The exit code that shells use for a command ended by Ctrl-C."""
LONGEST_MESSAGE = 2000
"""Length of an error's one line, since a file name in it may be anything."""


def run_verb(arguments: list[str]) -> int:
    """Runs one verb and returns the exit code."""
    if arguments[:1] == ["attach"]:
        _say("distprof: attach runs a script as Python does: python -m distprof.attach SCRIPT", arguments)
        return EXIT_USAGE
    asked = [verb for verb in VERBS if arguments[:1] == [verb]]
    parser, runners = _make_parser(VERBS if not asked and arguments[:1] != ["version"] else asked)
    options = parser.parse_args(arguments)
    if options.verb == "version":
        print(__version__)
        return EXIT_OK
    return run_safely(lambda: runners[options.verb](options), options.verb, arguments)


def run_safely(run: Callable[[], int], verb: str, arguments: Sequence[str]) -> int:
    """The exit code of a verb. Our errors and the system's go to standard error as one line without secrets."""
    try:
        return run()
    except DistprofError as error:
        _say(f"distprof: {error}", arguments)
        return error.exit_code
    except OSError as error:
        _say(f"distprof: {error.filename or verb}: {error.strerror or error}", arguments)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _say(text: str, arguments: Sequence[str], *, more: str = "") -> None:
    print(clean_text(mask(text, secret_values(arguments)), LONGEST_MESSAGE) + more, file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """A parser that prints errors as one line without secrets."""

    def error(self, message: str) -> NoReturn:
        _say(f"{self.prog}: {message}", sys.argv[1:], more=f"; see {self.prog} --help")
        self.exit(EXIT_USAGE)


Runner = Callable[[argparse.Namespace], int]


def _make_parser(asked: Sequence[str]) -> tuple[argparse.ArgumentParser, dict[str, Runner]]:
    """The parser of these verbs, and the function that runs each."""
    parser = Parser(
        prog="distprof",
        description="Where each rank's time went, which rank held the others up, and what fixing it would buy.",
        epilog="Anything else is a training job: see distprof --help.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    runners = {verb: _add(verb, verbs) for verb in asked}
    verbs.add_parser("version", help="print the version")
    return parser, runners


def _add(verb: str, verbs: argparse._SubParsersAction[Any]) -> Runner:
    """Adds a verb. Its module is imported only here, because importing all verbs takes half a second."""
    if verb == "report":
        from distprof.cli.report import add_report, run_report

        add_report(verbs)
        return run_report
    if verb == "tables":
        from distprof.cli.tables import add_tables, run_tables

        add_tables(verbs)
        return run_tables
    if verb == "model":
        from distprof.cli.model import add_model, run_model

        add_model(verbs)
        return run_model
    if verb == "window":
        from distprof.cli.window import add_window, run_window

        add_window(verbs)
        return run_window
    if verb == "doctor":
        from distprof.cli.doctor.command import add_doctor, run_doctor

        add_doctor(verbs)
        return run_doctor
    if verb == "wandb-dashboard":
        from distprof.cli.wandb_dashboard import add_wandb_dashboard, run_wandb_dashboard

        add_wandb_dashboard(verbs)
        return run_wandb_dashboard
    from distprof.cli.bench.command import add_bench, run_bench

    add_bench(verbs)
    return run_bench
