"""Bandwidth that concurrent transfers share equally (processor sharing)."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Token = TypeVar("Token")


class Pipe(Generic[Token]):
    """A link or a host's bus. A transfer's work is how long it would take at a rate of 1.

    With n transfers on the way each gets ``min(fastest, capacity / n)``. All get the same, so they end in the order of
    what each had left, and it is enough to count what every transfer since the start would have got.
    """

    def __init__(self, capacity: float, fastest: float) -> None:
        self._capacity, self._fastest = capacity, fastest
        self._served = self._at_ns = 0.0
        self._waiting: list[tuple[float, int, Token]] = []
        self._count = 0

    def add(self, now_ns: float, work_ns: float, token: Token) -> None:
        """A transfer begins."""
        self._advance(now_ns)
        self._count += 1
        heapq.heappush(self._waiting, (self._served + work_ns, self._count, token))

    def find_end(self) -> float | None:
        """When the next transfer ends if nothing else begins; None: there is none."""
        if not self._waiting:
            return None
        return self._at_ns + max(self._waiting[0][0] - self._served, 0.0) / self._find_rate()

    def take_ended(self, now_ns: float) -> list[Token]:
        """Removes the transfers that end now, which is when `find_end` said."""
        self._served, self._at_ns = max(self._waiting[0][0], self._served), now_ns
        ended = []
        while self._waiting and self._waiting[0][0] <= self._served:
            ended.append(heapq.heappop(self._waiting)[2])
        return ended

    def _advance(self, now_ns: float) -> None:
        if self._waiting:
            self._served += (now_ns - self._at_ns) * self._find_rate()
        self._at_ns = now_ns

    def _find_rate(self) -> float:
        return min(self._fastest, self._capacity / len(self._waiting))
