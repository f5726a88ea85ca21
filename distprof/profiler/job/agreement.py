"""How the ranks of a job find each other: over the key-value store of the script's process group.

Nothing here needs a rank's training thread: a rank whose first step another one has to make possible, as in a pipeline,
would otherwise wait for ever. All of it may run on a thread of distprof's, and none of it waits inside torch for a rank
that has not said that it is there.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.errors import DistprofError, read_first_line
from distprof.record.gather.gather import choose_devices, make_own_group
from distprof.record.stalls.stall_watch import read_timeout_s

LIMIT_S = 120.0
"""How long a rank waits for the others to reach their first step."""
STAND_BY_S = 60.0
"""After the first rank has begun, a process that has had no first step yet takes part without one."""
ABSENT_S = 5.0
"""How long a rank that ends waits for others that have not been heard of."""
LONGEST_NAP_S = 0.5
CONNECT_S = 20.0
"""How long ranks try to connect to each other."""
COLLECTIVE_S = 1800.0
"""How long collectives of our own wait for a rank; training's are not longer by default."""
_numbers = itertools.count()


class NotAllHere(DistprofError):
    """Some ranks did not come."""

    def __init__(self, missing: list[int]) -> None:
        listed = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        super().__init__(f"rank(s) {listed} had no first step")


class Rendezvous:
    """One rank's side. The ranks of a job make as many of them as each other, and in the same order."""

    def __init__(self, *, limit_s: float = LIMIT_S) -> None:
        self._prefix = f"distprof/{_name_start()}/{next(_numbers)}"
        self._limit_s = limit_s
        self._store: Any = None
        self.outlives_groups = False
        """Whether the store stays when the script leaves its process groups."""
        self._seen_s = math.inf
        self._rank = self._size = -1
        self.ending: Callable[[], bool] = lambda: False
        """Whether this rank's job is about to end."""
        self.given_up: Callable[[], bool] = lambda: False
        """Whether nobody waits for the outcome any more."""

    def open(self, *, rank: int, size: int) -> bool:
        """Uses the store of the default process group from now on, over a connection of its own where torch can.

        Returns:
            Whether there is one.
        """
        if self._store is None and size > 1 and dist.is_initialized():
            self._rank, self._size = rank, size
            store = clone_store()
            self.outlives_groups = _is_launchers(store)
            self._store = distributed_c10d.PrefixStore(self._prefix, store)
            self._store.set(f"present/{rank}", "")
        return self._store is not None

    def close(self) -> None:
        """Lets go of the store: the process group goes, and its store must go with it, unless it is the launcher's."""
        if not self.outlives_groups:
            self._store = None

    def has_begun(self) -> bool:
        """Whether some rank has had its first step."""
        with contextlib.suppress(AttributeError, RuntimeError):  # the store may be gone
            return bool(self._store.add("here", 0) > 0)
        return False

    def is_waited_for(self, now_s: float) -> bool:
        """Whether other ranks have begun so long ago, or are about to end, that this one takes part without a step."""
        if not self.has_begun():
            return False
        self._seen_s = min(self._seen_s, now_s)
        return now_s - self._seen_s >= min(STAND_BY_S, 0.5 * self._limit()) or bool(self._store.check(["ending"]))

    def meet(self) -> None:
        """Returns when all ranks have called this.

        No later than after half of the group's time-out: a rank that hangs is found where the script waits for it.

        Raises:
            NotAllHere: Some have not in time; on every rank that has.
            RuntimeError: The store is gone.
        """
        store = self._store
        until_s = time.monotonic() + self._limit()
        store.set(f"at/{self._rank}", "")
        if store.add("here", 1) == self._size:
            store.compare_set("answer", "", "go")
        absent_s = math.inf
        for now_s in _look():
            if store.check(["answer"]):
                break
            if self.ending() and absent_s == math.inf:
                store.set("ending", "")
                absent_s = now_s + ABSENT_S
            if self.given_up() or now_s >= until_s or (now_s >= absent_s and self._find("present") <= self._find("at")):
                store.compare_set("answer", "", "stay")
        if store.get("answer") != b"go":
            raise NotAllHere(sorted(set(range(self._size)) - self._find("at")) or [self._rank])

    def _limit(self) -> float:
        return min(self._limit_s, 0.5 * (read_timeout_s() or math.inf))

    def _find(self, what: str) -> set[int]:
        return {rank for rank in range(self._size) if self._store.check([f"{what}/{rank}"])}

    def connect(self, *names: str) -> list[dist.ProcessGroup]:
        """Groups of all ranks over gloo, for distprof alone. Collective, after `meet`.

        Raises:
            DistprofError: Some rank cannot make one, or cannot be reached; on every rank.
        """
        groups: list[dist.ProcessGroup] = []
        with self._said_by_all("connections"):
            devices = choose_devices()
        for name in names:
            with self._said_by_all(name):
                store = distributed_c10d.PrefixStore(f"group/{name}", self._store)
                group = make_own_group(store, rank=self._rank, size=self._size, devices=devices, timeout_s=CONNECT_S)
                group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=COLLECTIVE_S))
            groups.append(group)
        return groups

    @contextlib.contextmanager
    def _said_by_all(self, what: str) -> Iterator[None]:
        """Whether the block went well on all ranks; a failure is raised on all of them."""
        try:
            yield
        except Exception as error:  # it goes on to all ranks
            said = f"rank {self._rank}: {read_first_line(error)}"
            self._store.compare_set(f"{what}/failed", "", said)  # the first says why; others have waited for it
        self._store.add(f"{what}/done", 1)
        until_s = time.monotonic() + 2 * CONNECT_S
        for now_s in _look():
            if self._store.check([f"{what}/failed"]):
                said = self._store.get(f"{what}/failed").decode(errors="replace")
                raise DistprofError(f"the ranks could not connect to each other ({said})")
            if self._store.add(f"{what}/done", 0) >= self._size:
                return
            if self.given_up() or now_s >= until_s:
                raise DistprofError(f"the ranks did not connect to each other within {2 * CONNECT_S:g} s")


def _name_start() -> str:
    """What tells the job's start from those before it, whose keys are still in a store that the launcher serves.

    Launchers of several nodes count restarts each for itself, and may differ. Where every start has a store of its own,
    as torchrun says, the number is not needed, and would keep the ranks of such nodes apart.
    """
    own_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "False"
    return "0" if own_store else os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def clone_store() -> Any:
    """The store of the default process group, over a connection of its own where torch can make one: training may be
    waiting on its own, which ends with the group."""
    store = distributed_c10d._get_default_store()
    return store.clone() if hasattr(store, "clone") else store


def _is_launchers(store: Any) -> bool:
    """Whether a store is served by the process that launched this one."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    served = str(getattr(store, "port", None)) == os.environ.get("MASTER_PORT")
    return served and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _look() -> Iterator[float]:
    """The time, s, again and again; an interrupt is heard, unlike in torch's own wait."""
    nap_s = 0.001
    while True:
        yield time.monotonic()
        time.sleep(nap_s)
        nap_s = min(1.5 * nap_s, LONGEST_NAP_S)
