"""The verbs of `distprof`, each a row of `VERBS`, and how the one that is asked for is run. Needs no torch."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, Protocol, cast

from distprof import __version__
from distprof.config.redact import mask, secret_values
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, DistprofError, UsageError
from distprof.render.units import clean_text

EXIT_INTERRUPTED = 130
"""The exit code that shells use for a command ended by Ctrl-C."""
LONGEST_MESSAGE = 2000
"""Length of an error's one line, since a file name in it may be anything."""


class Verb(NamedTuple):
    """A command of distprof beside training."""

    module: str
    """A `VerbModule`. Only that of the verb that is asked for is imported: all of them take half a second."""
    help: str
    """What it does, in one line."""


class VerbModule(Protocol):
    """What the module of a verb has."""

    DESCRIPTION: str
    EPILOG: str
    """Examples, and the exit codes."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options to the verb's parser."""

    def run(self, options: argparse.Namespace) -> int:
        """Does the work; returns the exit code."""


VERBS = {
    "report": Verb("distprof.cli.report", "report on run folders, sweeps, profiler traces and nsys captures"),
    "compare": Verb("distprof.cli.compare", "compare runs, traces or sweeps; fail where steps became longer"),
    "gather": Verb("distprof.cli.gather", "bring a run together that hosts without a shared disk have written"),
    "watch": Verb("distprof.cli.watch.command", "show a job while it runs: verdict so far, ranks, step times"),
    "reduce": Verb("distprof.cli.reduce", "keep what a report needs of traces, to merge it later"),
    "tables": Verb("distprof.cli.tables", "show the tables of nsys stats, by rank or merged"),
    "model": Verb("distprof.cli.model", "show the work and memory of a model's modules, without a job"),
    "window": Verb("distprof.cli.window", "record kernels of a running job, on all ranks at once"),
    "doctor": Verb("distprof.cli.doctor.command", "check whether this machine is fit to train and measure"),
    "bench": Verb("distprof.cli.bench.command", "measure what recording costs on this machine"),
    "wandb-dashboard": Verb("distprof.cli.wandb_dashboard", "save a Weights & Biases workspace for logged jobs"),
}
"""The verbs, in the order of `distprof --help`."""
VERSION_HELP = "print the version"
ELSEWHERE = {
    "attach": "runs a script as Python does: python -m distprof.attach SCRIPT",
    **{
        f"bench {subject}": f"moved; from a checkout of distprof: python -m benchmarks {subject}"
        for subject in ("verdicts", "live", "device", "cost", "report")
    },
}
"""What is no verb, or no longer one, and the command to type instead."""


def run_verb(arguments: list[str]) -> int:
    """Runs one verb and returns the exit code."""

    def run() -> int:
        for words, instead in ELSEWHERE.items():
            if " ".join(arguments[:2] if " " in words else arguments[:1]) == words:
                raise UsageError(f"{words}: {instead}")
        if (asked := VERBS.get(arguments[0])) is None:
            _make_parser().parse_args(arguments)
            print(__version__)
            return EXIT_OK
        module = cast(VerbModule, importlib.import_module(asked.module))
        parser = Parser(
            prog=f"distprof {arguments[0]}", description=module.DESCRIPTION, epilog=module.EPILOG,
            formatter_class=ParagraphFormatter,
        )  # fmt: skip
        module.add_options(parser)
        return module.run(parser.parse_args(arguments[1:]))

    return run_safely(run, arguments[0], arguments)


def run_safely(run: Callable[[], int], verb: str, arguments: Sequence[str]) -> int:
    """The exit code of a verb. Our errors and the system's go to standard error as one line without secrets."""
    try:
        return run()
    except DistprofError as error:
        _print_error(f"distprof: {error}", arguments)
        return error.exit_code
    except OSError as error:
        _print_error(f"distprof: {error.filename or verb}: {error.strerror or error}", arguments)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def list_verbs() -> str:
    """A line for each verb, for `distprof --help`."""
    lines = {**{name: verb.help for name, verb in VERBS.items()}, "version": VERSION_HELP}
    return "".join(f"  distprof {name:<16} {text}\n" for name, text in lines.items())


def _print_error(text: str, arguments: Sequence[str], *, more: str = "") -> None:
    print(clean_text(mask(text, secret_values(arguments)), LONGEST_MESSAGE) + more, file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """A parser that prints errors as one line without secrets."""

    def error(self, message: str) -> NoReturn:
        _print_error(f"{self.prog}: {message}", sys.argv[1:], more=f"; see {self.prog} --help")
        self.exit(EXIT_USAGE)


class ParagraphFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps the paragraphs of a description, and leaves those alone in which a line is indented, such as examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        import textwrap  # only for those who read the help

        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(
            each if re.search("^ ", each, re.M) else textwrap.fill(each, width, break_on_hyphens=False)
            for each in paragraphs
        )


def _make_parser() -> argparse.ArgumentParser:
    """A parser that knows all verbs by name, and what to say of any other."""
    parser = Parser(
        prog="distprof", epilog="Anything else is a training job: see distprof --help.",
        description="Where each rank's time went, which rank held the others up, and what fixing it would buy.",
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, row in VERBS.items():
        verbs.add_parser(name, help=row.help)
    verbs.add_parser("version", help=VERSION_HELP)
    return parser
