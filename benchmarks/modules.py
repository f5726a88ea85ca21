"""The command line of ``benchmarks modules``: without torch, which the other subjects do not need."""

from __future__ import annotations

import argparse
from typing import Any

from distprof.errors import EXIT_OK

DESCRIPTION = """\
Profiles small models with distprof, with DeepSpeed's flops profiler and with torchinfo, and prints a Markdown table of
where they differ from counts by hand. A profiler that is not installed is left out; both need no more than
`pip install --no-deps torchinfo deepspeed hjson py-cpuinfo einops msgpack ninja`.
"""
EPILOG = """\
examples:
  python -m benchmarks modules
Exit codes: 0 ok, 2 usage.
"""


def add_modules(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds ``benchmarks modules``."""
    subjects.add_parser(
        "modules", help="counts inside models, beside DeepSpeed's profiler and torchinfo, and by hand",
        description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def run_modules(options: argparse.Namespace) -> int:
    """Prints the table."""
    from benchmarks.module_profiles import print_table

    print_table()
    return EXIT_OK
