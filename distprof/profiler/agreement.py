"""The ranks agree to record before any of them waits in a collective of ours that another one may never enter.

A script may start distprof on rank 0 only, as it does with loggers. A collective would then wait until the group's
time-out and end the job, so the ranks meet in the process group's key-value store first, where waiting ends.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import torch.distributed as dist

from distprof.record.stall_watch import read_timeout_s

LIMIT_S = 120.0
"""How long a rank waits for the others to reach their first step."""
_GO, _STAY = "go", "stay"
LONGEST_NAP_S = 0.5
_numbers = itertools.count()


def agree_to_start(*, rank: int, num_ranks: int, limit_s: float = LIMIT_S) -> list[int]:
    """Waits for all ranks of the default process group to call this; every rank gets the same answer.

    No longer than half of the group's time-out: a rank that hangs is then found where the script itself waits for it.

    Returns:
        The ranks that have not called it in time: then nobody may go on. Empty: every rank goes on.
    """
    try:
        store = dist.distributed_c10d._get_default_store()
    except (AttributeError, ValueError):
        return []
    if store is None or num_ranks == 1:
        return []
    limit_s = min(limit_s, 0.5 * (read_timeout_s() or math.inf))
    prefix = f"distprof/start/{next(_numbers)}"
    answer = f"{prefix}/answer"
    store.set(f"{prefix}/{rank}", "here")
    if store.add(f"{prefix}/count", 1) == num_ranks:
        said = store.compare_set(answer, "", _GO)
    else:
        try:
            _wait(lambda: store.check([answer]), limit_s)
        except Exception:
            if store.compare_set(answer, "", _STAY) != _GO.encode():  # then the others do not go on without this rank
                raise
        said = store.compare_set(answer, "", _STAY)  # unless there is an answer
    if said == _GO.encode():
        return []
    return [other for other in range(num_ranks) if not store.check([f"{prefix}/{other}"])] or [rank]


def _wait(holds: Callable[[], bool], limit_s: float) -> None:
    """Looks again and again, so that an interrupt is heard: torch's own wait hears none."""
    nap_s, deadline_s = 0.001, time.monotonic() + limit_s
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(nap_s)
        nap_s = min(1.5 * nap_s, LONGEST_NAP_S)
