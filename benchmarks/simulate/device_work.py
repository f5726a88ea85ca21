"""What a made-up device does: work that begins after other work, and collectives that several ranks do together.

The end of some work is known as soon as everything before it is. A part of a collective ends when the last rank has
begun its own part and the transfer is over, so that the end is not known while some rank has not launched its part.
"""

from __future__ import annotations


class DeviceWork:
    """One kernel, copy, event or part of a collective. True times, ns."""

    __slots__ = ("_duration_ns", "_followers", "_meeting", "_missing", "_ready_ns", "end_ns", "start_ns")

    def __init__(self, launched_ns: int, duration_ns: int = 0, meeting: Meeting | None = None) -> None:
        """Launched, and before nothing yet. Call `follow` for all that it waits for, then `settle`.

        Args:
            launched_ns: When the host launched it.
            duration_ns: How long it takes.
            meeting: The collective that it is a part of.
        """
        self.start_ns: int | None = None
        """When it begins. None: not known yet."""
        self.end_ns: int | None = None
        """When it ends. None: not known yet."""
        self._ready_ns, self._duration_ns, self._meeting = launched_ns, duration_ns, meeting
        self._missing = 0
        self._followers: list[DeviceWork] | None = None  # most work is known at once, and has none

    def follow(self, earlier: DeviceWork) -> None:
        """Does not begin before some other work has ended."""
        if earlier.end_ns is None:
            if earlier._followers is None:
                earlier._followers = []
            earlier._followers.append(self)
            self._missing += 1
        elif earlier.end_ns > self._ready_ns:
            self._ready_ns = earlier.end_ns

    def settle(self) -> None:
        """Works out the times, as far as what it follows is known, and those of all that follows it."""
        if not self._missing and self._meeting is None and self._followers is None:
            self.start_ns = self._ready_ns
            self.end_ns = self._ready_ns + self._duration_ns
            return
        ready = [self]
        while ready:
            work = ready.pop()
            if work._missing or work.start_ns is not None:
                continue
            work.start_ns = work._ready_ns
            alone = [(work, work.start_ns + work._duration_ns)]
            for item, end_ns in alone if work._meeting is None else work._meeting.join(work):
                item.end_ns = end_ns
                for follower in item._followers or ():
                    follower._missing -= 1
                    follower._ready_ns = max(follower._ready_ns, end_ns)
                    ready.append(follower)
                item._followers = None

    def is_done(self, now_ns: int) -> bool:
        """Whether it has ended. Work whose end is not known has not."""
        return self.end_ns is not None and self.end_ns <= now_ns

    def find_end(self) -> int:
        """When it ends.

        Raises:
            ValueError: That depends on a rank that has not launched its part of a collective.
        """
        if self.end_ns is None:
            raise ValueError("the host waits for a collective that another rank has not launched yet")
        return self.end_ns


class Meeting:
    """A collective. As NCCL's kernels do, every part waits for the last one to begin, and all end together."""

    def __init__(self, num_ranks: int, transfer_ns: int) -> None:
        """Nobody has come.

        Args:
            num_ranks: Parts that it takes.
            transfer_ns: How long it takes once everybody is there.
        """
        self._num_ranks, self._transfer_ns = num_ranks, transfer_ns
        self.parts: list[DeviceWork] = []
        """Those that have begun."""

    def join(self, work: DeviceWork) -> list[tuple[DeviceWork, int]]:
        """Takes a part that begins; returns every part with its end if this was the last, else nothing."""
        self.parts.append(work)
        if len(self.parts) < self._num_ranks:
            return []
        end_ns = max(part.start_ns or 0 for part in self.parts) + self._transfer_ns
        return [(part, end_ns) for part in self.parts]
