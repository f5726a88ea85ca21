"""The verb ``bench``: its options, and what it shows."""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from distprof import __version__
from distprof.cli.bench.comparison import Comparison
from distprof.cli.bench.overhead import (
    BARE,
    RIVALS,
    PhaseCost,
    Workload,
    list_conditions,
    measure_phase_cost,
    measure_workload,
)
from distprof.cli.options import add_number, require_folder, write_figures
from distprof.config.choice import locate_conf
from distprof.config.redact import redact, secret_values
from distprof.errors import EXIT_OK, UsageError
from distprof.facts.plain import make_plain
from distprof.render.units import NOT_MEASURED, format_ratio, format_time

TINY_STEPS, STEPS = 60, 5
DESCRIPTION = "Measures what recording costs on this machine. See: distprof bench overhead --help"
EPILOG = """\
examples:
  distprof bench overhead

In a checkout, python -m benchmarks measures distprof itself: how often its verdict is right (verdicts, live, device),
what recording costs the host (cost), and what other tools say (traces, tables).

Exit codes: 0 measured, 1 a run failed, 2 usage.
"""
OVERHEAD = """\
Measures what recording costs on this machine: the same training without instruments (bare), with distprof's phases, and
under other profilers. Every run is a fresh process with the same number of steps; the conditions take turns, in reverse
order in every second round. Bare runs twice in each round (A/A), which shows how far apart two measurements of the same
thing are here. A cost inside the A/A row's interval cannot be distinguished from zero: add --repeats, then --steps.
On GPUs the device's steps are compared, which bare runs time as well: a host that runs ahead of its GPU only launches.
"""
OVERHEAD_EPILOG = f"""\
examples:
  distprof bench overhead                    gpt2_tiny, two ranks, two minutes
  distprof bench overhead --train gpt2_small --ranks 1 --steps 5 --repeats 2
  distprof bench overhead --repeats 10 --json overhead.json train.seq_len=128

Other profilers are compared if they are installed: {", ".join(RIVALS)} (pip install 'distprof[bench]').

Exit codes: 0 measured, 1 a run failed, 2 usage.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the one subject, and its options."""
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="overhead")
    overhead = subjects.add_parser(
        "overhead", help="step times with and without recording", description=OVERHEAD, epilog=OVERHEAD_EPILOG,
        formatter_class=parser.formatter_class,
    )  # fmt: skip
    overhead.add_argument(
        "--train", default="gpt2_tiny", help="models, comma-separated: files of conf/train (default: gpt2_tiny)"
    )
    add_number(overhead, "--ranks", least=1, default=2, metavar="N", help="processes on this machine (default: 2)")
    add_number(
        overhead, "--steps", least=1, metavar="N",
        help=f"measured steps of every run, after the warm-up ({TINY_STEPS} of gpt2_tiny, else {STEPS})",
    )  # fmt: skip
    add_number(
        overhead, "--repeats", least=1, default=3, metavar="N",
        help="rounds; in each, every condition runs once (default: 3)",
    )  # fmt: skip
    overhead.add_argument("--strategy", help="a file of conf/strategy (default: ddp; with one rank single)")
    overhead.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    overhead.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="further configuration of the training")


def run(options: argparse.Namespace) -> int:
    """Measures, printing each run as it ends, and then one table per model.

    Raises:
        DistprofError: A run failed.
        UsageError: An option is wrong.
    """
    workloads = _read_workloads(options)
    console, conditions = Console(), list_conditions()
    cost = measure_phase_cost()
    console.print(f"host cost of a phase: {_describe_cost(cost)}", highlight=False)
    results: dict[str, list[Comparison]] = {}
    for workload in workloads:
        progress = _Progress(console, workload, len(conditions) * options.repeats)
        results[workload.train] = measure_workload(
            workload, conditions, repeats=options.repeats, progress=progress.show
        )  # fmt: skip
        console.print(_tabulate(workload, options.repeats, results[workload.train]))
    if options.json is not None:
        write_figures(options.json, _make_document(options, results, cost))
    return EXIT_OK


def _read_workloads(options: argparse.Namespace) -> list[Workload]:
    require_folder(options.json)
    if slips := [text for text in options.overrides if "=" not in text]:
        raise UsageError(f"{slips[0]}: expected KEY=VALUE, as for a training job")
    strategy = options.strategy or ("single" if options.ranks == 1 else "ddp")
    trains = [train.strip() for train in options.train.split(",")]
    for group, name in (("strategy", strategy), *(("train", train) for train in trains)):
        known = sorted(path.stem for path in (locate_conf() / group).glob("*.yaml") if path.stem != "base")
        if name not in known:
            raise UsageError(f"--{group} {name}: no such choice; there are {', '.join(known)}")
    return [
        Workload(
            train=train, ranks=options.ranks, strategy=strategy, overrides=tuple(options.overrides),
            steps=options.steps or (TINY_STEPS if train.endswith("tiny") else STEPS),
        )
        for train in trains
    ]  # fmt: skip


class _Progress:
    """Prints a line after every run, with the estimated time left."""

    def __init__(self, console: Console, workload: Workload, total: int) -> None:
        self._console, self._total = console, total
        self._done, self._begin_s = 0, time.monotonic()
        ranks = f"{workload.ranks} rank" + ("s" if workload.ranks > 1 else "")
        text = f"{workload.train}, {workload.strategy}, {ranks}: {total} runs of {workload.steps} steps"
        console.print(text, highlight=False)

    def show(self, condition: str, step_ns: float) -> None:
        self._done += 1
        passed_s = time.monotonic() - self._begin_s
        left_s = passed_s / self._done * (self._total - self._done)
        text = f"  run {self._done}/{self._total}  {condition}: {format_time(step_ns)} per step"
        self._console.print(f"{text}  (about {left_s:.0f} s left)", highlight=False, style="dim")


def _tabulate(workload: Workload, repeats: int, found: list[Comparison]) -> Table:
    title = f"{workload.train}: median step of {repeats} x {workload.steps} steps (on GPUs: device clock)"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.HORIZONTALS, header_style="dim")
    table.add_column("condition")
    for head in ("median step", "against bare", "95 % interval"):
        table.add_column(head, justify="right", no_wrap=True)
    for item in found:
        ratio = interval = ""
        if item.condition != BARE.name:
            ratio, interval = format_ratio(item.ratio), _describe_interval(item)
        table.add_row(item.condition, format_time(item.median_step_ns), ratio, interval)
    return table


def _describe_interval(item: Comparison) -> str:
    if item.low_ratio is None or item.high_ratio is None:
        return f"{NOT_MEASURED} (one round)"
    return f"{format_ratio(item.low_ratio)} to {format_ratio(item.high_ratio)}"


def _describe_cost(cost: PhaseCost) -> str:
    phase, step = (f"{fastest:,.0f} ns (median {median:,.0f})" for fastest, median in (
        (cost.phase_ns, cost.phase_median_ns), (cost.step_ns, cost.step_median_ns),
    ))  # fmt: skip
    return f"{phase}; of a step without phases: {step}"


def _make_document(
    options: argparse.Namespace, results: dict[str, list[Comparison]], cost: PhaseCost
) -> dict[str, object]:
    return {
        "distprof_version": __version__, "python": platform.python_version(), "machine": platform.machine(),
        "ranks": options.ranks, "steps": options.steps, "repeats": options.repeats,
        "overrides": redact(options.overrides, secret_values(options.overrides)),
        "phase_cost": make_plain(cost),
        "overhead": {train: [make_plain(item) for item in found] for train, found in results.items()},
    }  # fmt: skip
