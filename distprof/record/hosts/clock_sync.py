"""Clock offsets between the hosts of a job, measured before and after its steps.

Everything here is collective over a gloo group of all ranks that nothing else uses at that moment. Hosts are visited
one after the other, so that measurements do not disturb each other. Ranks that share a clock share the result; with one
clock there is nothing to measure.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from distprof.facts.run import ClockReading
from distprof.world import collect_texts, share_text

T = TypeVar("T")

NUM_ROUNDS = 64
NUM_KEPT = NUM_ROUNDS // 10
"""The shortest tenth of the round trips."""
MAX_DRIFT_RATIO = 1e-4
"""Two crystals, each accurate to 50 parts per million."""


def identify_clock() -> str:
    """An identifier of this process's monotonic clock: equal for two processes that read the same clock.

    Each boot of a kernel has one such clock, and each of its time namespaces another. If a process cannot see which
    one it uses, its identifier is unique.
    """
    parts = [_read_boot_id(), _read_namespace("time"), _read_namespace("time_for_children")]
    known = [part for part in parts if part is not None]
    return "/".join(known if len(known) == len(parts) else (socket.gethostname(), uuid.uuid4().hex))


def identify_host() -> str:
    """An identifier of this machine as the network sees it: each network namespace counts as one."""
    return "/".join((_read_boot_id() or "", _read_namespace("net") or "", socket.gethostname()))


def name_host(name: str, *, group: dist.ProcessGroup | None, host: str | None = None) -> str:
    """What to call this rank's host: its name or, where other hosts of the job have the same, its name and a number.

    Containers and virtual machines of one image often all have the same name. Collective.

    Args:
        name: What the host calls itself.
        group: All ranks, over gloo. None: there is one rank.
        host: Identifies this rank's host. None: see `identify_host`.
    """
    host = identify_host() if host is None else host
    told = [json.loads(text) for text in collect_texts(json.dumps([name, host]), group=group)]
    alike = [*dict.fromkeys(other for called, other in told if called == name)]
    return name if len(alike) == 1 else f"{name} ({1 + alike.index(host)})"


def read_clocks(
    group: dist.ProcessGroup, *, clock: str | None = None, now_ns: Callable[[], int] = time.monotonic_ns
) -> tuple[ClockReading, ...]:
    """Every rank's monotonic clock against rank 0's, in rank order, on every rank. Collective; some ms per other clock.

    The other clock is read between rank 0's two readings around a round trip, so the offset is the reading less the
    midpoint, give or take half the round trip, however asymmetric the two ways are. The median over the shortest tenth
    of the round trips is off by at most half the longest of these, plus the drift of the clocks in the meantime.

    Args:
        group: All ranks, over gloo; nothing else uses it meanwhile.
        clock: Identifies this rank's clock. None: see `identify_clock`.
        now_ns: The clock, monotonic, ns.

    Raises:
        RuntimeError: A rank has gone, or does not answer within the group's time-out.
    """
    clocks = collect_texts(identify_clock() if clock is None else clock, group=group)
    found = visit(group, clocks, lambda rank: _ask(group, rank, now_ns), lambda: _answer(group, now_ns))
    shared = {"at_ns": int(share_text(str(now_ns()), group=group)), "offset_ns": 0, "bound_ns": 0}
    lowest = _map_to_lowest(clocks)
    return tuple(ClockReading(rank=rank, **found.get(lowest[label], shared)) for rank, label in enumerate(clocks))


def visit(
    group: dist.ProcessGroup, labels: Sequence[str], ask: Callable[[int], T], answer: Callable[[], None]
) -> dict[int, T]:
    """Rank 0 asks the lowest rank of each other label, one after the other; every rank gets the answers, by rank.

    A failure is shared with every rank before any raises, so that none waits for a rank that has left.
    """
    own, found, failure = group.rank(), dict[int, T](), ""
    for rank in sorted(_map_to_lowest(labels).values())[1:]:
        try:
            if own == 0:
                found[rank] = ask(rank)
            elif own == rank:
                answer()
        except RuntimeError as error:
            failure = f"rank {rank}: {error}"
    items, failure = json.loads(share_text(json.dumps([[*found.items()], failure]), group=group))
    if failure:
        raise RuntimeError(failure)
    return dict(items)


def _map_to_lowest(labels: Sequence[str]) -> dict[str, int]:
    """The lowest rank of each label."""
    return {label: rank for rank, label in reversed([*enumerate(labels)])}


def _ask(group: dist.ProcessGroup, rank: int, now_ns: Callable[[], int]) -> dict[str, int]:
    """Rank 0's side: one reading of another rank's clock."""
    ping, stamp = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    rounds = []
    for _ in range(NUM_ROUNDS):
        before = now_ns()
        group.send([ping], rank, 0).wait()
        group.recv([stamp], rank, 0).wait()
        rounds.append((now_ns() - before, before, int(stamp)))
    return combine_rounds(rounds)


def _answer(group: dist.ProcessGroup, now_ns: Callable[[], int]) -> None:
    ping, stamp = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    for _ in range(NUM_ROUNDS):
        group.recv([ping], 0, 0).wait()
        stamp[0] = now_ns()
        group.send([stamp], 0, 0).wait()


def combine_rounds(rounds: Sequence[tuple[int, int, int]]) -> dict[str, int]:
    """One reading from (round trip ns, begin on the asking clock, stamp of the answering clock) of each round."""
    kept = sorted(rounds)[:NUM_KEPT]
    offsets = [stamp - (begin + trip // 2) for trip, begin, stamp in kept]
    first, last = min(begin for _, begin, _ in kept), max(begin + trip for trip, begin, _ in kept)
    drift = round(MAX_DRIFT_RATIO * (last - first))
    return {
        "at_ns": (first + last) // 2,
        "offset_ns": round(statistics.median(offsets)),
        "bound_ns": kept[-1][0] // 2 + drift + 1,  # 1 ns for rounding to integers
    }


def _read_boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _read_namespace(kind: str) -> str | None:
    """The namespace's inode. "": this kernel has no such namespaces; None: /proc cannot be read."""
    if not os.path.isdir("/proc/self/ns"):
        return None
    try:
        return str(os.stat(f"/proc/self/ns/{kind}").st_ino)
    except FileNotFoundError:
        return ""
    except OSError:
        return None
