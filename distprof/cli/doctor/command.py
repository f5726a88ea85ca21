"""The verb ``doctor``: all checks, and how their results are shown."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import structs
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distprof import __version__
from distprof.cli.doctor import machine, software
from distprof.cli.doctor.all_ranks import compare_hosts
from distprof.cli.doctor.check_result import Check, MachineResult, State
from distprof.cli.doctor.probe import Facts, gather_facts
from distprof.cli.doctor.suspects import MOST_SECONDS, probe
from distprof.cli.options import add_number, add_width, put_json, require_folder
from distprof.config.redact import mask, secret_values
from distprof.errors import EXIT_FAILED, EXIT_OK
from distprof.facts.plain import make_plain
from distprof.render.units import clean_text

DESCRIPTION = """\
Checks the installed software, the devices, environment variables that slow a job down or distort what is measured, and
the limits of this machine. It changes nothing. Run it on every host, in the environment that the job will have.

With --suspects, under torchrun and where no training runs, it measures these ranks and two healthy ones, one after the
other: matrix products, copies, and exchanges between them. It says whether it is the device, the host or the link, or
that nothing differs beyond the spread of the repeated measurements.

With --all-ranks, under torchrun with one process per host, it compares the hosts: versions, drivers, variables of NCCL
and the like, processors, limits, GPUs with their PCIe width, clocks and power limits, wall clocks, and links. One table
has what differs, and which hosts are the odd ones out.
"""
EPILOG = """\
examples:
  distprof doctor
  distprof doctor --runs-dir /scratch/runs       checks that folder's disk
  distprof doctor --json > doctor.json
  torchrun --nproc-per-node 4 -m distprof doctor --suspects 1 --seconds 5
  torchrun ... -m distprof doctor --suspects 5,7 --json probes.json
  torchrun ... -m distprof doctor --suspects 1 --into runs/RUN
  torchrun --nnodes 2 --nproc-per-node 1 ... -m distprof doctor --all-ranks

Exit codes: 0 no problem (there may be warnings), 1 a problem, 2 usage. With
--suspects: 0 measured, whatever it says; 1 a rank has ended, does not answer in
time or could not measure; 2 usage. torchrun ends with 1 for both.
"""
SCHEMA = "distprof.doctor/1.0"
WIDE_COLUMNS = 140
"""From this width on, the meaning of every result is shown beside it; below, only where something is to be done."""
LONGEST_TEXT = 400
STYLES = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "bold red", State.ABSENT: "dim"}
Results = Mapping[str, Sequence[MachineResult]]

CHECKS: dict[str, tuple[Check, ...]] = {
    "software": (
        software.check_python, software.check_torch, software.check_distributed, software.check_nccl,
        software.check_nsys, software.check_nvtx, software.check_wandb, software.check_accelerate,
    ),
    "devices": (software.check_cuda, software.check_driver, machine.check_gpus, machine.check_peak),
    "settings": (
        software.check_threads, software.check_max_connections, software.check_launch_blocking,
        software.check_debug_output, software.check_collective_timing, software.check_transports,
    ),
    "machine": (
        machine.check_clock, machine.check_time_of_day, machine.check_governor, machine.check_shared_memory,
        machine.check_open_files, machine.check_locked_memory, machine.check_core_files, machine.check_perf_events,
        machine.check_disk, machine.check_hostname,
    ),
}  # fmt: skip
"""The checks by subject, in the order in which they are shown."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options."""
    parser.add_argument(
        "--json", type=Path, nargs="?", const=True, metavar="FILE",
        help="print the results as JSON, or write them to this file",
    )  # fmt: skip
    parser.add_argument(
        "--runs-dir", default="runs", metavar="FOLDER", help="where runs will be written (default: runs)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--all-ranks", action="store_true", help="compare the hosts of all ranks")
    how.add_argument("--suspects", metavar="RANK,RANK", help="measure these ranks against two healthy ones")
    parser.add_argument(
        "--references", metavar="RANK,RANK",
        help="the two healthy ranks (default: one on the first suspect's host and one on another, if there are such)",
    )  # fmt: skip
    parser.add_argument(
        "--into", type=Path, metavar="FOLDER", help="write what --suspects finds into this run folder, for its report"
    )
    add_number(
        parser, "--seconds", least=1, most=MOST_SECONDS, default=5, metavar="N",
        help="about how long --suspects measures (default: 5)",
    )  # fmt: skip
    add_width(parser)


def run(options: argparse.Namespace) -> int:
    """Checks this machine and shows the results, or compares hosts, or probes suspects; returns the exit code.

    Raises:
        DistprofError: See `probe`; or an option is wrong.
    """
    if options.suspects is not None:
        return probe(options)
    if options.all_ranks:
        return compare_hosts(options, lambda facts: _clean(run_checks(facts), secret_values()))
    require_folder(options.json)
    results = _clean(run_checks(gather_facts(options.runs_dir)), secret_values())
    if not put_json(options.json, describe(results)):
        show(results, Console(width=options.width, highlight=False))
    return EXIT_FAILED if count_states(results)[State.PROBLEM] else EXIT_OK


def run_checks(facts: Facts) -> dict[str, list[MachineResult]]:
    """The results of all checks, by subject."""
    return {subject: [check(facts) for check in checks] for subject, checks in CHECKS.items()}


def describe(results: Results) -> dict[str, object]:
    """The results as plain data, for a file."""
    return {
        "schema": SCHEMA, "distprof_version": __version__,
        "counts": {str(state): count for state, count in count_states(results).items()},
        "findings": [
            {"group": subject, **make_plain(each)} for subject, found in results.items() for each in found
        ],
    }  # fmt: skip


def count_states(results: Results) -> dict[State, int]:
    """The number of results in each state."""
    states = [each.state for found in results.values() for each in found]
    return {state: states.count(state) for state in State}


def show(results: Results, console: Console) -> None:
    """Prints one table on a wide console; on a narrow one, a meaning stands below what needs action, and only there."""
    wide = console.width >= WIDE_COLUMNS
    table = Table(box=box.HORIZONTALS if wide else None, header_style="dim", show_header=wide, padding=(0, 1, 0, 0))
    table.add_column("check", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for title in ("found", "what it means, and what to do") if wide else ("found",):
        table.add_column(title, overflow="fold", ratio=1)
    for index, (subject, found) in enumerate(results.items()):
        if index and not wide:
            table.add_row()
        table.add_row(Text(subject, style="bold"))
        for each in found:
            table.add_row(*_make_row(each, wide=wide))
        if wide:
            table.add_section()
    console.print(table)
    console.print(_sum_up(results, wide=wide))


def _make_row(result: MachineResult, *, wide: bool) -> Iterable[Text]:
    yield Text(f"  {result.name}")
    yield Text(result.state, style=STYLES[result.state])
    meaning = Text(result.meaning, style="dim")
    if result.fix:
        meaning.append_text(Text.assemble("\n", ("do: ", "bold"), result.fix))
    if wide:
        yield from (Text(result.found), meaning)
    elif result.state in (State.WARNING, State.PROBLEM):
        yield Text.assemble(result.found, "\n", meaning)
    else:
        yield Text(result.found)


def _sum_up(results: Results, *, wide: bool) -> Text:
    counts = count_states(results)
    problems, warnings = counts[State.PROBLEM], counts[State.WARNING]
    text = Text.assemble(
        (f"{problems} problem{'s' * (problems != 1)}", STYLES[State.PROBLEM] if problems else ""), ", ",
        (f"{warnings} warning{'s' * (warnings != 1)}", STYLES[State.WARNING] if warnings else ""),
        f", {counts[State.OK]} ok, {counts[State.ABSENT]} not here",
    )  # fmt: skip
    return text if wide else text.append("; --json or --width 160 explain every line", style="dim")


def _clean(results: Results, secrets: Sequence[str]) -> dict[str, list[MachineResult]]:
    """Removes secrets and control characters from all texts: torch's messages, host names, variables' values."""

    def clean(text: str) -> str:
        return clean_text(mask(text, secrets), LONGEST_TEXT)

    return {
        subject: [
            structs.replace(each, found=clean(each.found), meaning=clean(each.meaning), fix=clean(each.fix))
            for each in found
        ]
        for subject, found in results.items()
    }
