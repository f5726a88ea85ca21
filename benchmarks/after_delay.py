"""What happens beside a delay: ranks that compute and all-reduce, with a delay that burns or sleeps in some steps."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.live.live_truth import trim_mean
from distprof.analyze.stats.statistics import midmean
from distprof.errors import EXIT_OK, UsageError
from distprof.facts.arrays import FloatArray

MANNERS = ("none", "burns", "sleeps")
CHECK_EVERY = 50
"""Steps after which the ranks ask whether the time is up."""
MS = 1e6
DESCRIPTION = """\
Ranks on this machine compute and all-reduce (gloo). In every step, drawn by chance, the last rank is not delayed,
computes for longer, or sleeps. Prints what the delay really costs a step (by trimmed means), by how much that rank's
own time exceeds the others' (the midmean, which the replay takes away), and by how much the transfer, which no delay
lengthens in the replay, differs from that of steps without.
"""


def add_after_delay(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the benchmark to the command line."""
    after = subjects.add_parser("after-delay", help="what happens beside a delay", description=DESCRIPTION)
    after.add_argument("--ranks", type=int, default=2, help="(default: 2)")
    after.add_argument("--cores", choices=("own", "one", "any"), default="own", help="of each rank (default: own)")
    after.add_argument("--megabytes", type=float, default=0.001, help="of the all-reduce (default: 0.001)")
    after.add_argument("--delay-ms", type=float, default=8.0, help="(default: 8)")
    after.add_argument("--seconds", type=float, default=25.0, help="(default: 25)")


def run_after_delay(options: argparse.Namespace) -> int:
    """Measures and prints.

    Raises:
        UsageError: An option is wrong.
    """
    if options.ranks < 2 or min(options.delay_ms, options.seconds, options.megabytes) <= 0:
        raise UsageError("--ranks: must be 2 or more; the others: above 0")
    context = multiprocessing.get_context("spawn")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    told: Any = context.Queue()
    ranks = [context.Process(target=_run_rank, args=(rank, port, vars(options), told)) for rank in range(options.ranks)]
    for process in ranks:
        process.start()
    found = dict(told.get(timeout=options.seconds + 60) for _ in ranks)
    for process in ranks:
        process.join()
    print(tabulate_delays(np.array([found[rank] for rank in range(options.ranks)])))
    return EXIT_OK


def _run_rank(rank: int, port: int, options: dict[str, Any], told: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if options["cores"] != "any":
        os.sched_setaffinity(0, {rank % (os.cpu_count() or 1) if options["cores"] == "own" else 0})
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=options["ranks"])
    work, moved = torch.randn(192, 192), torch.ones(max(1, int(options["megabytes"] * 1e6 / 4)))
    manners = np.random.default_rng(7).integers(len(MANNERS), size=1_000_000)
    rows: list[tuple[int, int, int]] = []
    over, end_s = torch.zeros(1), time.monotonic() + options["seconds"]
    while not over.item():
        for _ in range(CHECK_EVERY):
            manner = MANNERS[manners[len(rows)]]
            begin_ns = time.perf_counter_ns()
            for _ in range(24):
                work @ work
            _delay(manner if rank == options["ranks"] - 1 else "none", options["delay_ms"])
            there_ns = time.perf_counter_ns()
            dist.all_reduce(moved)
            rows.append((MANNERS.index(manner), there_ns - begin_ns, time.perf_counter_ns() - there_ns))
        over[0] = float(time.monotonic() > end_s)
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
    told.put((rank, rows))
    dist.destroy_process_group()


def _delay(manner: str, delay_ms: float) -> None:
    if manner == "sleeps":
        time.sleep(delay_ms / 1e3)
    end_ns = time.perf_counter_ns() + delay_ms * MS
    while manner == "burns" and time.perf_counter_ns() < end_ns:
        pass


def tabulate_delays(rows: FloatArray) -> str:
    """The table, in Markdown.

    Args:
        rows: Index into `MANNERS`, own time and time in the all-reduce, ns, ``[num_ranks, num_steps, 3]``.
    """
    manner, own_ns, transfer_ns = rows[0, :, 0], rows[:, :, 1], rows[:, :, 2].min(axis=0)
    lines = ["| the last rank | steps | costs | its excess | transfers differ by |", "| --- |" + " ---: |" * 4]
    for index, name in enumerate(MANNERS[1:], start=1):
        with_delay, without = manner == index, manner == 0
        late_ns = own_ns[-1] - np.median(own_ns[:-1], axis=0)
        cycle_ns = (rows[:, :, 1] + rows[:, :, 2]).mean(axis=0)
        cells = [
            _subtract(cycle_ns, with_delay, without),
            float(midmean(late_ns[with_delay]) - midmean(late_ns[without])),
            _subtract(transfer_ns, with_delay, without),
        ]
        lines.append(f"| {name} | {int(with_delay.sum()):,} | {_join(cells)} |")
    return "\n".join(lines)


def _subtract(values_ns: FloatArray, with_delay: FloatArray, without: FloatArray) -> float:
    return trim_mean(values_ns[with_delay]) - trim_mean(values_ns[without])


def _join(cells_ns: Sequence[float]) -> str:
    return " | ".join(f"{value / MS:+.2f} ms" for value in cells_ns)
