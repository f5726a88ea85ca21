"""The command line of ``benchmarks modules``: without torch, which the other subjects do not need."""

from __future__ import annotations

import argparse
from typing import Any

from distprof.errors import EXIT_OK

DESCRIPTION = """\
Profiles small models with distprof, with DeepSpeed's flops profiler and with torchinfo, and prints a Markdown table of
where they differ from counts by hand. A profiler that is not installed is left out; both need no more than
`pip install --no-deps torchinfo deepspeed hjson py-cpuinfo einops msgpack ninja`.

--memory prints another table: activations of models of Transformers and of an LSTM as they are predicted without
memory, beside what torch's profiler saw the CPU allocate and not free in forward.
"""
EPILOG = """\
examples:
  python -m benchmarks modules
  python -m benchmarks modules --memory
Exit codes: 0 ok, 2 usage.
"""


def add_modules(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds ``benchmarks modules``."""
    modules = subjects.add_parser(
        "modules", help="counts inside models, beside DeepSpeed's profiler and torchinfo, and by hand",
        description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    modules.add_argument("--memory", action="store_true", help="activations, predicted and measured")


def run_modules(options: argparse.Namespace) -> int:
    """Prints the table."""
    if options.memory:
        from benchmarks.module_memory import print_table
    else:
        from benchmarks.module_profiles import print_table
    print_table()
    return EXIT_OK
