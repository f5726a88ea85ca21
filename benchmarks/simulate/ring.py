"""One collective of one group, as a ring: every member sends to the next."""

from __future__ import annotations

AHEAD_RATIO = 0.25
"""Share of its work that an edge can do before all members have arrived: it has nothing else to send until then."""


class Ring:
    """A collective under way. Edge i leads from member i to the next."""

    def __init__(self, *, members: list[int], step: int, issue: int, work_ns: list[float], around: int) -> None:
        """Nobody is there.

        Args:
            members: Ranks.
            step: Of the job.
            issue: Index of the collective.
            work_ns: Of each edge, at full rate.
            around: How many edges before its own a member waits for: all in a reduction, of which every member needs
                everybody's data; half of them else, because what comes from further away has long been on its way.
        """
        self.members, self.step, self.issue = members, step, issue
        self.num_joined = 0
        self._places = {rank: place for place, rank in enumerate(members)}
        self._work_ns, self._around = work_ns, around
        self._joined = [False] * len(members)
        self._held: list[int] = []  # edges that have done what they can before all members are there
        self._ahead: set[int] = set()  # edges that are doing that
        self._pending = [min(around + 1, len(members))] * len(members)  # edges that each member still waits for

    def find_ends(self, edge: int) -> tuple[int, int]:
        """The ranks that send and receive."""
        return self.members[edge], self.members[(edge + 1) % len(self.members)]

    def join(self, rank: int) -> list[tuple[int, float]]:
        """A member is ready.

        Returns:
            The edges that begin to transfer, each with its work.
        """
        size, place = len(self.members), self._places[rank]
        self._joined[place] = True
        self.num_joined += 1
        full = self.num_joined == size
        begun = []
        for edge in dict.fromkeys((place, (place - 1) % size)):
            if self._joined[edge] and self._joined[(edge + 1) % size]:
                begun.append((edge, self._work_ns[edge] * (1.0 if full else AHEAD_RATIO)))
                if not full:
                    self._ahead.add(edge)
        if full:
            begun += [(edge, self._find_rest(edge)) for edge in self._held]
        return begun

    def end(self, edge: int) -> tuple[float | None, list[int]]:
        """An edge has done what it was given.

        Returns:
            The work that it can go on with, if any; and the ranks that have all they need.
        """
        size = len(self.members)
        if edge in self._ahead:
            self._ahead.discard(edge)
            if self.num_joined == size:
                return self._find_rest(edge), []
            self._held.append(edge)
            return None, []
        done = []
        for distance in range(min(self._around + 1, size)):
            place = (edge + distance) % size
            self._pending[place] -= 1
            if not self._pending[place]:
                done.append(self.members[place])
        return None, done

    def _find_rest(self, edge: int) -> float:
        return self._work_ns[edge] * (1 - AHEAD_RATIO)
