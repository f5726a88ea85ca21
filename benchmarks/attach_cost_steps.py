"""What attach adds to steps of training: fixed work, processes that take turns, and an A/A control."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import select
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.attach_cost import AGAIN, ATTACHED, CONDITIONS, PLAIN, QUIET, run_script
from benchmarks.attach_cost_program import WARMUP_STEPS
from distprof.cli.bench.comparison import Comparison, compare_runs
from distprof.errors import EXIT_FAILED, EXIT_OK, UsageError
from distprof.facts.arrays import FloatArray

LIMIT_US = 1000.0
"""1 % of a step of 100 ms."""
PROGRAMS = {"ddp": 2, "accumulation": 1}
"""Ranks of each program of `benchmarks.attach_cost_program`."""
TRIAL_UNITS, TRIAL_STEPS = (1, 10), 20
TURN_STEPS, LEFT_OUT = WARMUP_STEPS, 5
"""Steps a run takes before the next one has its turn, and how many of them are not counted: the warm-up is one turn."""
CUT_RATIO = 0.1
"""Of the fastest steps, and of the slowest: they do not count."""
BOTH = "plain, both"
DESCRIPTION = f"""\
Trains two programs with a fixed amount of work per step, chosen so that a step takes so long here: one under DDP on two
ranks, and one process that accumulates gradients, both with 37 modules. Each round runs a program as it is, under
attach, and as it is again (A/A) in fresh processes that take turns of {TURN_STEPS} steps in random order, so that what
the machine does to one it does to its neighbours too: a step is compared with those of all three around it, and a run
has the mean of the middle {1 - 2 * CUT_RATIO:.0%}. Attach is compared with both of the others. The first {LEFT_OUT}
steps of a turn are left out: they find the caches full of what the others did, which a job that has its cores to itself
never does. Every rank keeps to a core of its own, with all its threads. What attach adds to a step does not depend on
how long it takes, and stands out from the machine's noise sooner the shorter it is: so it is measured in short steps,
long enough to drive distprof out of the caches, and compared with steps of 100 ms. What distprof's background threads
do falls on the steps of all three alike; the processor time that all threads but the training's take for a step is
printed for itself, and belongs to what is added where no core is idle. Exit code 1: the upper end of the 95 % interval
of what attach adds, over rounds, is above {LIMIT_US:.0f} us, 1 % of 100 ms.
"""


def add_attach_steps(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the benchmark to the command line."""
    steps = subjects.add_parser("attach-steps", help="what attach adds to a step", description=DESCRIPTION)
    steps.add_argument("--rounds", type=int, default=12, help="rounds, of three runs each (default: 12)")
    steps.add_argument("--steps", type=int, default=600, help="measured steps of a run (default: 600)")
    steps.add_argument(
        "--step-ms", type=float, default=8.0, help="length of a step, if the program can be as short (default: 8)"
    )
    steps.add_argument("--only", choices=PROGRAMS, help="one of the two programs (default: both)")


def run_attach_steps(options: argparse.Namespace) -> int:
    """Measures and prints; the exit code says whether both programs are within the limit.

    Raises:
        UsageError: An option is wrong.
        DistprofError: A run failed.
    """
    if options.rounds < 2 or options.steps <= LEFT_OUT or options.step_ms <= 0:
        raise UsageError(f"--rounds must be 2 or more, --steps more than {LEFT_OUT}, and --step-ms more than 0")
    fine = True
    with tempfile.TemporaryDirectory(prefix="distprof-bench-") as parent:
        for kind in PROGRAMS if options.only is None else (options.only,):
            found, others_ns = _measure(kind, Path(parent), options)
            fine = _show(kind, found, others_ns) and fine
    return EXIT_OK if fine else EXIT_FAILED


def _measure(kind: str, parent: Path, options: argparse.Namespace) -> tuple[list[Comparison], dict[str, float]]:
    """The comparison, and what threads other than the training's take for a step, ns, median over rounds."""
    ranks, steps = PROGRAMS[kind], options.steps
    units = _find_units(kind, parent, options.step_ms)
    step_ns: dict[str, list[float]] = {condition: [] for condition in CONDITIONS}
    others_ns: dict[str, list[float]] = {condition: [] for condition in CONDITIONS}
    for number in range(options.rounds):
        outs = {condition: parent / f"{kind}-{number}-{place}.json" for place, condition in enumerate(CONDITIONS)}
        pipes = {condition: make_pipes(out, ranks) for condition, out in outs.items()}
        with ThreadPoolExecutor(len(outs)) as pool:
            runs = [
                pool.submit(_run, kind, ranks, out, out.with_suffix("") if name == ATTACHED else None, units, steps)
                for name, out in outs.items()
            ]
            take_turns(pipes, steps + WARMUP_STEPS, runs)
        told = {name: json.loads(out.read_text()) for name, out in outs.items()}
        for condition, ns in summarise({name: each["step_ns"] for name, each in told.items()}).items():
            step_ns[condition].append(ns)
            others_ns[condition].append(told[condition]["others_ns"])
        more = ", ".join(f"{name} {step_ns[name][-1] / step_ns[PLAIN][-1] - 1:+.1%}" for name in CONDITIONS[1:])
        print(f"{kind}, round {number + 1} of {options.rounds}: {more}", file=sys.stderr, flush=True)
    medians = {condition: statistics.median(taken) for condition, taken in others_ns.items()}
    attached = step_ns.pop(ATTACHED)
    both = [math.sqrt(one * other) for one, other in zip(*step_ns.values(), strict=True)]
    found = compare_runs(step_ns, bare=PLAIN) + compare_runs({BOTH: both, ATTACHED: attached}, bare=BOTH)[1:]
    return found, medians


def _find_units(kind: str, parent: Path, step_ms: float) -> int:
    """How much work makes a step as long, or nearly: it has a part that does not depend on it."""
    step_ns: list[float] = []
    for units in TRIAL_UNITS:
        out = parent / f"{kind}-trial-{units}.json"
        _run(kind, PROGRAMS[kind], out, None, units, TRIAL_STEPS)
        step_ns.append(statistics.median(json.loads(out.read_text())["step_ns"]))
    unit_ns = (step_ns[1] - step_ns[0]) / (TRIAL_UNITS[1] - TRIAL_UNITS[0])
    return max(1, round(TRIAL_UNITS[0] + (step_ms * 1e6 - step_ns[0]) / max(unit_ns, 1.0)))


def _run(kind: str, ranks: int, out: Path, run: Path | None, units: int, steps: int) -> None:
    script = [str(Path(__file__).with_name("attach_cost_program.py")), kind, str(out), str(units), str(steps)]
    run_script(script, run, QUIET, ranks)


def make_pipes(out: Path, ranks: int) -> list[tuple[int, int]]:
    """Makes the named pipes by which every rank of a run is given its turn; returns both ends that are used here."""
    pipes = []
    for rank in range(ranks):
        names = [f"{out}.{rank}.{end}" for end in ("go", "done")]
        for name in names:
            os.mkfifo(name)
        go, done = (os.open(name, os.O_RDWR) for name in names)
        pipes.append((go, done))
    return pipes


def take_turns(pipes: Mapping[str, Sequence[tuple[int, int]]], steps: int, runs: Sequence[Future[None]]) -> None:
    """Lets the runs take `TURN_STEPS` each, in another order every time, and end when all have; waits for them.

    Args:
        pipes: Of each run, by rank; they are closed in the end.
        steps: Of each run.
        runs: Under way.

    Raises:
        DistprofError: One has failed.
    """
    order, draw = list(pipes), random.Random(0)
    try:
        for begin in range(0, steps, TURN_STEPS):
            draw.shuffle(order)
            for name in order:
                for _ in range(min(TURN_STEPS, steps - begin)):
                    for go, _ in pipes[name]:
                        os.write(go, b"x")
                    for _, done in pipes[name]:
                        _wait(done, runs)
    finally:
        for go, _ in itertools.chain.from_iterable(pipes.values()):
            os.write(go, b"x" * (steps + 1))  # to the end, also after a failure
        wait(runs)
        for end in itertools.chain.from_iterable(itertools.chain.from_iterable(pipes.values())):
            os.close(end)
    for run in runs:
        run.result()


def _wait(done: int, runs: Sequence[Future[None]]) -> None:
    while not select.select([done], [], [], 1.0)[0]:
        for run in runs:
            if run.done():
                run.result()
    os.read(done, 1)


def summarise(times_ns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean step of each run, if the machine had been as fast all the time as it was in the median turn.

    ``times_ns``: Of each run, by step; the first of each turn are left out.
    """
    turns = [
        {name: np.array(times[begin + LEFT_OUT : begin + TURN_STEPS]) for name, times in times_ns.items()}
        for begin in range(0, len(times_ns[PLAIN]) - LEFT_OUT, TURN_STEPS)
    ]
    usual_ns = [float(np.median(np.concatenate([*turn.values()]))) for turn in turns]
    whole_ns = statistics.median(usual_ns)
    return {
        name: whole_ns * _find_mean(np.concatenate([turn[name] / ns for turn, ns in zip(turns, usual_ns, strict=True)]))
        for name in times_ns
    }


def _find_mean(values: FloatArray) -> float:
    """Without the extremes."""
    cut = int(len(values) * CUT_RATIO)
    return float(np.sort(values)[cut : len(values) - cut].mean())


def _show(kind: str, found: list[Comparison], others_ns: Mapping[str, float]) -> bool:
    """Prints the table; returns whether attach is within the limit."""
    head = f"{kind}, ranks: {PROGRAMS[kind]}", "step", "against plain, us", "95 % interval", "other threads"
    table = Table(*head)
    plain, attached, control = (next(item for item in found if item.condition == name) for name in CONDITIONS)
    more_us = {
        item.condition: [
            (ratio or 0.0) * plain.median_step_ns / 1e3 for ratio in (item.ratio, item.low_ratio, item.high_ratio)
        ]
        for item in (attached, control)
    }
    for item in found:
        us = more_us.get(item.condition)
        told = ["", ""] if us is None else [f"{us[0]:+.0f}", _describe_interval(us)]
        others = f"{others_ns[item.condition] / 1e3:.0f} us"
        table.add_row(item.condition, f"{item.median_step_ns / 1e6:.1f} ms", *told, others)
    Console().print(table)
    added_us, low_us, high_us = more_us[ATTACHED]
    others_us = (others_ns[ATTACHED] - others_ns[PLAIN]) / 1e3
    beyond = "above" if low_us > LIMIT_US else "too noisy to tell from"
    verdict = "within" if high_us <= LIMIT_US else beyond
    print(
        f"{kind}: attach adds {added_us:+.0f} us to a step ({_describe_interval(more_us[ATTACHED])}; A/A "
        f"{_describe_interval(more_us[AGAIN])}), {added_us / 1e5:.2%} of 100 ms ({low_us / 1e5:.2%} to "
        f"{high_us / 1e5:.2%}): {verdict} the limit of 1%; and {others_us:+.0f} us of processor time in other threads"
    )
    return high_us <= LIMIT_US


def _describe_interval(us: Sequence[float]) -> str:
    return f"{us[1]:+.0f} to {us[2]:+.0f}"
