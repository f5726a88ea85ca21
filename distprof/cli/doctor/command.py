"""The verb ``doctor``: its options, and what it shows."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distprof import __version__
from distprof.cli.doctor.examine import examine
from distprof.cli.doctor.finding import MachineFinding, State
from distprof.cli.doctor.gather import gather_facts
from distprof.cli.standard_streams import require_width
from distprof.config.redact import mask, secret_values
from distprof.errors import EXIT_FAILED, EXIT_OK
from distprof.render.units import clean_text

SCHEMA = "distprof.doctor/1.0"
WIDE_COLUMNS = 140
"""From this width on, every finding's meaning is shown beside it; below, only for findings that need action."""
TEXT_LIMIT = 400
STYLES = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "bold red", State.ABSENT: "dim"}
Findings = Mapping[str, Sequence[MachineFinding]]


def add_doctor(verbs: argparse._SubParsersAction[Any]) -> None:
    """Adds the verb ``doctor`` to the command line."""
    doctor = verbs.add_parser(
        "doctor",
        help="check whether this machine is fit to train and to measure on",
        description="Checks what is installed, the devices, settings that cost time, and the machine's limits; changes "
        "nothing. Run it on every host, in the environment that the job will have.",
        epilog="Exit codes: 0 no problem (there may be warnings), 1 a problem, 2 usage.",
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.add_argument("--runs-dir", default="runs", help="where runs will be written (default: runs)")
    doctor.add_argument("--width", type=int, help="width in columns (default: the terminal's)")


def run_doctor(options: argparse.Namespace) -> int:
    """Examines this machine and shows the findings; returns the exit code."""
    require_width(options.width)
    findings = _clean(examine(gather_facts(options.runs_dir)), secret_values())
    if options.json:
        print(to_json(findings))
    else:
        show(findings, Console(width=options.width, highlight=False))
    return EXIT_FAILED if count_states(findings)[State.PROBLEM] else EXIT_OK


def to_json(findings: Findings) -> str:
    """The findings as strict JSON."""
    document = {
        "schema": SCHEMA, "distprof_version": __version__,
        "counts": {str(state): count for state, count in count_states(findings).items()},
        "findings": [
            {"group": group, **dataclasses.asdict(finding)} for group, found in findings.items() for finding in found
        ],
    }  # fmt: skip
    return json.dumps(document, indent=1, allow_nan=False)


def count_states(findings: Findings) -> dict[State, int]:
    """The number of findings in each state."""
    states = [finding.state for found in findings.values() for finding in found]
    return {state: states.count(state) for state in State}


def show(findings: Findings, console: Console) -> None:
    """Prints the findings: on a wide console one table, on a narrow one the meaning below what needs action."""
    wide = console.width >= WIDE_COLUMNS
    table = Table(box=box.HORIZONTALS if wide else None, header_style="dim", show_header=wide, padding=(0, 1, 0, 0))
    table.add_column("check", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for title in ("found", "what it means, and what to do") if wide else ("found",):
        table.add_column(title, overflow="fold", ratio=1)
    for index, (group, found) in enumerate(findings.items()):
        if index and not wide:
            table.add_row()
        table.add_row(Text(group, style="bold"))
        for finding in found:
            table.add_row(*_make_row(finding, wide=wide))
        if wide:
            table.add_section()
    console.print(table)
    console.print(_sum_up(findings, wide=wide))


def _make_row(finding: MachineFinding, *, wide: bool) -> Iterable[Text]:
    yield Text(f"  {finding.name}")
    yield Text(finding.state, style=STYLES[finding.state])
    meaning = Text(finding.meaning, style="dim")
    if finding.fix:
        meaning.append_text(Text.assemble("\n", ("do: ", "bold"), finding.fix))
    if wide:
        yield from (Text(finding.found), meaning)
    elif finding.state in (State.WARNING, State.PROBLEM):
        yield Text.assemble(finding.found, "\n", meaning)
    else:
        yield Text(finding.found)


def _sum_up(findings: Findings, *, wide: bool) -> Text:
    counts = count_states(findings)
    problems, warnings = counts[State.PROBLEM], counts[State.WARNING]
    text = Text.assemble(
        (f"{problems} problem{'s' * (problems != 1)}", STYLES[State.PROBLEM] if problems else ""), ", ",
        (f"{warnings} warning{'s' * (warnings != 1)}", STYLES[State.WARNING] if warnings else ""),
        f", {counts[State.OK]} ok, {counts[State.ABSENT]} not here",
    )  # fmt: skip
    return text if wide else text.append("; what each line means: --json, or --width 160", style="dim")


def _clean(findings: Findings, secrets: Sequence[str]) -> dict[str, list[MachineFinding]]:
    """Removes secrets and control characters from all texts: torch's messages, host names, variables' values."""

    def clean(text: str) -> str:
        return clean_text(mask(text, secrets), TEXT_LIMIT)

    return {
        group: [
            dataclasses.replace(
                each, found=clean(each.found), meaning=clean(each.meaning), fix=clean(each.fix)
            )
            for each in found
        ]
        for group, found in findings.items()
    }  # fmt: skip
