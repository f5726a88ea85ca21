"""What attach takes of the training thread: steps that do next to nothing, as they are and under attach."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.attach_cost_loop import CASES, WARMUP_BLOCKS
from benchmarks.process_tree import ProcessOutcome, run_fresh
from distprof.cli.bench.comparison import bound_mean
from distprof.cli.bench.overhead import order_runs
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError, UsageError

PLAIN, ATTACHED, AGAIN = "plain", "attached", "plain again (A/A)"
CONDITIONS = (PLAIN, ATTACHED, AGAIN)
QUIET = ("profile.shadow_every=0", "profile.max_overhead_ratio=null")
"""Every step is recorded."""
LIMIT_US = 100.0
PLAIN_CASE, MODULES_CASE, MICRO_STEPS_CASE = CASES
CHANGES = 6
"""Changes of phase that a micro-step adds: into data, forward and backward, and out of each."""
DESCRIPTION = f"""\
Runs a loop whose steps do next to nothing, as it is and under attach, in fresh processes that take turns, and compares
the processor time of the training thread, which other programs disturb less than the time that passes. The fastest
blocks of steps are what the code takes; the interval is that of the differences by rounds. The background thread is
asleep. The loop as it is runs twice in each round (A/A): what that differs by cannot be told from zero here. Exit code
1: a step costs more than {LIMIT_US:.0f} us.
"""


def add_attach_cost(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the benchmark to the command line."""
    cost = subjects.add_parser("attach-cost", help="processor time per step of attach", description=DESCRIPTION)
    cost.add_argument("--rounds", type=int, default=8, help="rounds, of three processes each (default: 8)")
    cost.add_argument("--blocks", type=int, default=60, help="blocks of 20 steps of each case (default: 60)")


def run_attach_cost(options: argparse.Namespace) -> int:
    """Measures and prints; the exit code says whether a step is within the limit.

    Raises:
        UsageError: An option is wrong.
        DistprofError: A process failed.
    """
    if options.rounds < 2 or options.blocks <= WARMUP_BLOCKS:
        raise UsageError(f"--rounds must be 2 or more, and --blocks more than {WARMUP_BLOCKS}")
    loop = str(Path(__file__).with_name("attach_cost_loop.py"))
    taken: dict[str, list[dict[str, float]]] = {condition: [] for condition in CONDITIONS}
    with tempfile.TemporaryDirectory(prefix="distprof-bench-") as parent:
        for number, condition in enumerate(order_runs(CONDITIONS, options.rounds)):
            out, run = Path(parent) / f"{number}.json", Path(parent) / f"run-{number}"
            quiet = (*QUIET, "profile.window_s=3600")
            run_script([loop, str(out), str(options.blocks)], run if condition == ATTACHED else None, quiet)
            blocks_ns = json.loads(out.read_text())
            taken[condition].append({case: _find_fast(times_ns) for case, times_ns in blocks_ns.items()})
    return _show(taken)


def list_command(script: Sequence[str], run: Path | None, options: Sequence[str], ranks: int = 1) -> list[str]:
    """The command that runs a script.

    Args:
        script: It, and its arguments.
        run: The run folder. None: the script as it is, without attach.
        options: Of distprof.
        ranks: More than one: with torchrun.
    """
    attach = [] if run is None else ["-m", "distprof.attach", f"run_dir={run}", *options, "--"]
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    return [sys.executable, *launch, *attach, *script]


def run_script(script: Sequence[str], run: Path | None, options: Sequence[str], ranks: int = 1) -> ProcessOutcome:
    """Runs a script in a process of its own; returns what came of it. The arguments are those of `list_command`.

    Raises:
        DistprofError: It failed.
    """
    outcome = run_fresh(list_command(script, run, options, ranks))
    if outcome.exit_code:
        raise DistprofError(f"{script[0]}: exit code {outcome.exit_code}: {outcome.stderr[-2000:]}")
    return outcome


def _find_fast(times_ns: Sequence[float]) -> float:
    """The lowest decile."""
    return sorted(times_ns)[len(times_ns) // 10]


def _show(taken: Mapping[str, Sequence[Mapping[str, float]]]) -> int:
    table = Table("us per step", PLAIN, f"more under {ATTACHED}", "by rounds, 95 %", AGAIN)
    more_us = {case: _compare(taken, ATTACHED, case) for case in CASES}
    for case, more in more_us.items():
        plain_us = min(found[case] for found in taken[PLAIN]) / 1e3
        pairs = zip(taken[ATTACHED], taken[PLAIN], strict=True)
        mean_ns, half_ns = bound_mean([attached[case] - plain[case] for attached, plain in pairs])
        interval = " to ".join(f"{(mean_ns + sign * (half_ns or 0.0)) / 1e3:.1f}" for sign in (-1, 1))
        table.add_row(case, f"{plain_us:.1f}", f"{more:.1f}", interval, f"{_compare(taken, AGAIN, case):+.1f}")
    Console().print(table)
    step_us = more_us[PLAIN_CASE]
    modules, micro_steps = CASES[MODULES_CASE][0] - 1, CASES[MICRO_STEPS_CASE][1] - 1
    module_us = (more_us[MODULES_CASE] - step_us) / modules
    change_us = (more_us[MICRO_STEPS_CASE] - step_us) / micro_steps / CHANGES
    print(f"a further module: {module_us:.2f} us; a change of phase: {change_us:.1f} us")
    verdict = "above" if step_us > LIMIT_US else "within"
    print(f"a step: {step_us:.0f} us, {step_us / 1e5:.3%} of 100 ms: {verdict} the limit of {LIMIT_US:.0f} us")
    return EXIT_FAILED if step_us > LIMIT_US else EXIT_OK


def _compare(taken: Mapping[str, Sequence[Mapping[str, float]]], condition: str, case: str) -> float:
    """How much longer the fastest blocks take than plain ones, us."""
    fastest_ns, plain_ns = (min(found[case] for found in taken[name]) for name in (condition, PLAIN))
    return (fastest_ns - plain_ns) / 1e3
