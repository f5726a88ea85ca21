"""Options for traces whose ranges have names of their own: ``--phase`` and ``--step``."""

from __future__ import annotations

import argparse

from distprof.errors import UsageError
from distprof.facts.run import Phase
from distprof.traces.reduce.phase_names import NameMap


def add_names(parser: argparse.ArgumentParser) -> None:
    """Adds both options."""
    parser.add_argument(
        "--phase", action="append", default=[], metavar="PHASE=PATTERN",
        help=f"ranges that are a phase, one of: {', '.join(phase for phase in Phase if phase is not Phase.OTHER)}",
    )  # fmt: skip
    parser.add_argument(
        "--step", metavar="PATTERN", help="ranges that are steps; the last number in a name is the step"
    )


def read_names(options: argparse.Namespace) -> NameMap:
    """What names in a trace represent, according to ``--phase`` and ``--step``.

    Raises:
        UsageError: A value is no pattern of a phase.
    """
    phases = []
    for text in options.phase:
        phase, _, pattern = text.partition("=")
        if phase not in set(Phase) or not pattern:
            raise UsageError(f"--phase {text}: expected PHASE=PATTERN, where PHASE is one of {', '.join(Phase)}")
        phases.append((Phase(phase), pattern))
    return NameMap(phases=tuple(phases), step=options.step)
