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
    """What `distprof.record.step.recorder.Recorder` writes into. Used by one thread at a time."""

    def __init__(self) -> None:
        self.facts: list[OperationFacts] = []
        self.times = [(-1, 0, 0)] * MAX_OPERATIONS
        """As of `LoggedOperations`; that of a ticket lies at its remainder by `MAX_OPERATIONS`."""
        self.first_ticket = self.lost = 0
        self.on_device = False

    def take(self) -> LoggedOperations | None:
        """Hands over what was done and begins anew; older tickets become void. None: nothing was done."""
        if not self.facts:
            return None
        logged = LoggedOperations(
            facts=self.facts, times=self.times[: len(self.facts)], first_ticket=self.first_ticket, lost=self.lost,
            on_device=self.on_device,
        )  # fmt: skip
        self.first_ticket += MAX_OPERATIONS
        self.facts, self.lost, self.on_device = [], 0, False
        return logged
