"""What the open step has done for micro-batches so far: stages that compute, sends and receives.

As with collectives, what is known at once is one tuple, and a ticket also identifies its step.
"""

from __future__ import annotations

from msgspec import Struct

MAX_OPERATIONS = 4096
"""Operations of one step; those of a step with more are not kept. 128 micro-batches on four stages of a rank make
3,072."""

OperationFacts = tuple[int, int, int, int, int, int, int]
"""Index into `OPERATION_KINDS`, micro-batch, stage, other rank, tag, bytes, and begin, host ns."""


class LoggedOperations(Struct, kw_only=True):
    """The operations since the step before, in the order in which they began."""

    facts: list[OperationFacts]
    times: list[tuple[int, int, int]]
    """(ticket, begin of the wait for it, end), host ns; if the ticket is not the operation's own, its end was not
    seen."""
    first_ticket: int
    lost: int
    """Operations past `MAX_OPERATIONS`."""
    on_device: bool
    """Whether some are exchanges on a device, where the host sees when they are launched, and not when they run."""


class OperationLog:
    """Used by one thread at a time."""

    def __init__(self) -> None:
        self._facts: list[OperationFacts] = []
        self._times = [(-1, 0, 0)] * MAX_OPERATIONS
        self._first_ticket = self._lost = 0
        self._on_device = False

    def begin(self, facts: OperationFacts, *, on_device: bool = False) -> int:
        """Records that an operation begins. Returns its ticket; -1: there is no room."""
        self._on_device = self._on_device or on_device
        position = len(self._facts)
        if position >= MAX_OPERATIONS:
            self._lost += 1
            return -1
        self._facts.append(facts)
        return self._first_ticket + position

    def end(self, ticket: int, waits_from_ns: int, now_ns: int) -> None:
        """Records that an operation is over, and since when it was waited for; ignores a ticket of another step."""
        if 0 <= ticket - self._first_ticket < MAX_OPERATIONS:
            self._times[ticket % MAX_OPERATIONS] = (ticket, waits_from_ns, now_ns)

    def take(self) -> LoggedOperations | None:
        """Hands over what was done and begins anew; older tickets become void. None: nothing was done."""
        if not self._facts:
            return None
        logged = LoggedOperations(
            facts=self._facts, times=self._times[: len(self._facts)], first_ticket=self._first_ticket, lost=self._lost,
            on_device=self._on_device,
        )  # fmt: skip
        self._first_ticket += MAX_OPERATIONS
        self._facts, self._lost, self._on_device = [], 0, False
        return logged
