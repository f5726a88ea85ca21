"""``python -m benchmarks cost``: its options, and what it shows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.recording import wrapper_cost
from benchmarks.recording.paired import AddedTime
from benchmarks.recording.recording_cost import (
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
from benchmarks.recording.wrapper_cost import TURNS, WrapperCost, measure_wrappers
from distprof.cli.options import require_folder, write_figures
from distprof.errors import EXIT_FAILED, EXIT_OK, UsageError
from distprof.facts.plain import make_plain

STEP_MS = STEP_NS // 1_000_000
_WRAPPED = {
    "ddp": (f"DDP, {wrapper_cost.BUCKETS} buckets", 100_000), "fsdp": (f"FSDP2, {wrapper_cost.UNITS} units", 250_000),
}  # fmt: skip
"""What is measured, and what recording may add to a step, ns."""
LIMITS_TEXT = ", ".join(f"{what}: {limit_ns // 1_000} us" for what, limit_ns in _WRAPPED.values())
DESCRIPTION = f"""\
Measures, without a GPU and in a minute, what recording costs the host, in two ways:

- what real steps of DDP and FSDP2 cost more with it than without: processor time of one process, through everything
  that distprof puts around torch, and with collectives that move nothing. Short blocks with and without it take turns;
  the mean of their differences, without the largest and smallest fifth, has a 95 % interval, which is compared with the
  limits ({LIMITS_TEXT}). If a limit lies inside it, that is undecided: more --turns decide it;
- the recorder's own calls, as a training step on GPUs makes them, on a device whose events cost nothing: recording a
  real one takes about 1 us more, so add that for every event. Single collectives are timed in every k-th step; k is
  what the recorder would choose for steps of {STEP_MS} ms, and the average over all steps is compared with
  {100 * LIMIT_RATIO:.1f} % of that.

Other processes make both dearer, as they take caches and the processor away; run it on an idle machine.
"""


def add_cost(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the bench ``cost``."""
    cost = subjects.add_parser(
        "cost", help="host time of recording a phase and a collective on a GPU; needs no GPU", description=DESCRIPTION,
        epilog="Exit codes: 0 within the limits or undecided, 1 above one, 2 usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    cost.add_argument("--rounds", type=int, default=ROUNDS, help=f"of the recorder's calls (default: {ROUNDS})")
    cost.add_argument("--turns", type=int, default=TURNS, help=f"pairs of blocks of real steps (default: {TURNS})")
    cost.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")


def run_cost(options: argparse.Namespace) -> int:
    """Measures and prints; the exit code says whether it is within the limit.

    Raises:
        UsageError: An option is wrong.
    """
    for name in ("rounds", "turns"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} {getattr(options, name)}: must be 1 or more")
    require_folder(options.json)
    cost = measure_recording_cost(options.rounds)
    console = Console()
    console.print(_tabulate(cost))
    wrappers = measure_wrappers(options.turns)
    above = [_show_wrappers(console, name, found) for name, found in wrappers.items()].count(True) > 0
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
        found = {name: make_plain(each) for name, each in wrappers.items()}
        write_figures(options.json, make_plain(cost) | {"wrappers": found})
    return EXIT_FAILED if above else EXIT_OK


def _show_wrappers(console: Console, name: str, cost: WrapperCost) -> bool:
    """Shows what recording costs in real steps; returns whether that is above the limit."""
    what, limit_ns = _WRAPPED[name]
    verdict = cost.mean.judge(limit_ns)
    said = "undecided by" if verdict == "undecided" else verdict
    how_often = "all are recorded" if cost.stride == 1 else f"one burst of steps in {cost.stride} is recorded"
    console.print(
        f"{what}, with everything around torch, us of processor time a step: recorded {_format_added(cost.added)}, of "
        f"that on the training thread {_format_added(cost.training)}; not recorded {_format_added(cost.skipped)}. "
        f"The step itself: {_format_us(cost.step_ns)}; of such steps {how_often}, which takes "
        f"{_format_added(cost.mean)} on average, {said} the limit of {_format_us(limit_ns)}. "
        f"Background thread: {_format_us(cost.background_ns)}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    return verdict == "above"


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


def _format_added(added: AddedTime) -> str:
    return f"{_format_us(added.middle_ns)} ({_format_us(added.low_ns)} to {_format_us(added.high_ns)})"


def _format_us(value_ns: float) -> str:
    return f"{value_ns / 1e3:,.1f}"


def _format_ratio(value_ratio: float) -> str:
    return f"{100 * value_ratio:.2f} %"
