"""``distprof bench cost``: its options, and what it shows."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from distprof.cli.bench.figures import require_folder, write_figures
from distprof.cli.bench.recording_cost import (
    BUCKETS,
    LIMIT_RATIO,
    PHASES,
    ROUNDS,
    SHARDS,
    STEP_NS,
    RecordingCost,
    find_mean_ns,
    find_stride,
    measure_recording_cost,
)
from distprof.errors import EXIT_FAILED, EXIT_OK, UsageError

STEP_MS = STEP_NS // 1_000_000
DESCRIPTION = f"""\
Measures the host's time in the recorder's calls, as a training step on GPUs makes them, on a device whose events cost
nothing: recording a real one takes about 1 us more, so add that for every event. Not included either: reading events
over the driver, what DDP takes to call a hook, and what is around FSDP2's methods, whose cost has a row of its own.
Runs without a GPU, in seconds.

The fastest of all rounds is what the code takes on this machine. Single collectives are timed in every k-th step; k is
what the recorder would choose for steps of {STEP_MS} ms, and the average over all steps is compared with the limit.
"""


def add_cost(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds ``bench cost``."""
    cost = subjects.add_parser(
        "cost", help="host time of recording a phase and a collective on a GPU; needs no GPU", description=DESCRIPTION,
        epilog="Exit codes: 0 within the limit, 1 above it, 2 usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    cost.add_argument("--rounds", type=int, default=ROUNDS, help=f"(default: {ROUNDS})")
    cost.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")


def run_cost(options: argparse.Namespace) -> int:
    """Measures and prints; the exit code says whether it is within the limit.

    Raises:
        UsageError: An option is wrong.
    """
    if options.rounds < 1:
        raise UsageError(f"--rounds {options.rounds}: must be 1 or more")
    require_folder(options.json)
    cost = measure_recording_cost(options.rounds)
    console = Console()
    console.print(_tabulate(cost))
    above = False
    for name, plain, timed, number in (
        (f"DDP, {BUCKETS} buckets", cost.ddp, cost.ddp_timed, BUCKETS),
        (f"FSDP2, {SHARDS} gathers and scatters", cost.fsdp, cost.fsdp_timed, SHARDS),
    ):
        every = find_stride(plain, timed, number)
        ratio = find_mean_ns(plain, timed, every) / STEP_NS
        above = above or ratio > LIMIT_RATIO
        verdict = "above" if ratio > LIMIT_RATIO else "within"
        how_often = "every step" if every == 1 else f"every {every} steps"
        console.print(
            f"gpt2_small, {name}, timed in {how_often}: {_format_ratio(ratio)} of {STEP_MS} ms, {verdict} the limit of "
            f"{_format_ratio(LIMIT_RATIO)}", highlight=False, soft_wrap=True,
        )  # fmt: skip
    console.print(
        f"background thread, per step under FSDP2: {_format_us(cost.background_ns)} us", highlight=False, soft_wrap=True
    )
    if options.json is not None:
        write_figures(options.json, dataclasses.asdict(cost))
    return EXIT_FAILED if above else EXIT_OK


def _tabulate(cost: RecordingCost) -> Table:
    title = "host time of recording on the training thread, events' own not included"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.HORIZONTALS, header_style="dim")
    table.add_column("what", no_wrap=True)
    for head in ("us", "median", f"of {STEP_MS} ms", "events"):
        table.add_column(head, justify="right", no_wrap=True)
    for what, each_ns in (
        ("a phase", cost.phase_ns), ("a bucket of DDP, timed", cost.bucket_ns),
        ("a gather or scatter of FSDP2, timed", cost.shard_ns), ("what is around its methods", cost.wrapper_ns),
    ):  # fmt: skip
        table.add_row(what, _format_us(each_ns))
    table.add_section()
    for what, step in (
        ("a step", cost.step), (f"with {len(PHASES)} phases", cost.phases), ("with DDP", cost.ddp),
        ("with DDP, timed", cost.ddp_timed), ("with FSDP2", cost.fsdp), ("with FSDP2, timed", cost.fsdp_timed),
        ("the same, with the wrappers", cost.fsdp_wrapped),
    ):  # fmt: skip
        share = _format_ratio(step.fastest_ns / STEP_NS)
        table.add_row(what, _format_us(step.fastest_ns), _format_us(step.median_ns), share, str(step.events))
    return table


def _format_us(value_ns: float) -> str:
    return f"{value_ns / 1e3:,.1f}"


def _format_ratio(value_ratio: float) -> str:
    return f"{100 * value_ratio:.2f} %"
