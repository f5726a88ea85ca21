"""Graphs of a made-up device, by CUDA's rules for capturing them.

What a capturing stream is given is not run, but kept for `Graph.replay`. Another stream that waits for it joins the
capture, and must be led back to the first one. An event in a graph can be waited for, and neither asked nor read.
Nobody may ask the device for anything before the capture is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.simulate.device_work import DeviceWork


class CaptureError(RuntimeError):
    """What CUDA does not permit, as it says it."""


class CapturedWork(DeviceWork):
    """Work in a graph: it is never over."""

    __slots__ = ("duration_ns", "earlier")

    def __init__(self, duration_ns: int, earlier: Sequence[CapturedWork]) -> None:
        """Runs after some other work of the same graph."""
        super().__init__(0, duration_ns)
        self.duration_ns, self.earlier = duration_ns, earlier


class Graph:
    """A graph that was captured."""

    def __init__(self, current_stream: Callable[[], Any], works: Sequence[CapturedWork]) -> None:
        """Takes its work, in the order in which it was given."""
        self._current_stream, self.works = current_stream, works

    def replay(self) -> None:
        """Runs all of it, one after the other, as one launch on the current stream."""
        self._current_stream().launch(sum(work.duration_ns for work in self.works))


class OpenGraph:
    """A graph that is captured."""

    def __init__(self, origin: Any) -> None:
        """Nothing is captured yet.

        Args:
            origin: The stream that captures.
        """
        self.valid = True
        self.before: Any = None
        """The stream that was current."""
        self._origin = origin
        self._works: list[CapturedWork] = []
        self._tails: dict[Any, list[CapturedWork]] = {origin: []}  # by stream: what its next work comes after

    def holds(self, stream: Any) -> bool:
        """Whether a stream captures, or has joined the one that does."""
        return stream in self._tails

    def find_tail(self, stream: Any) -> Sequence[CapturedWork] | None:
        """The newest work of a stream that captures. None: it does not."""
        return self._tails.get(stream)

    def add(self, stream: Any, duration_ns: int, after: Sequence[DeviceWork]) -> CapturedWork | None:
        """Adds work to the graph. None: it does not belong there.

        Raises:
            CaptureError: It would wait for work outside of the graph.
        """
        captured = [work for work in after if isinstance(work, CapturedWork) and work in self._works]
        if stream not in self._tails and not captured:
            return None
        if len(captured) < len(after):
            self.valid = False
            raise CaptureError("dependency created on uncaptured work in another stream")
        work = CapturedWork(duration_ns, [*self._tails.get(stream, ()), *captured])
        self._works.append(work)
        self._tails[stream] = [work]
        return work

    def end(self) -> list[CapturedWork]:
        """The work of the graph.

        Raises:
            CaptureError: It has failed, or some stream was not led back to the first.
        """
        if not self.valid:
            raise CaptureError("operation failed due to a previous error during capture")
        joined, ahead = set[int](), list(self._tails[self._origin])
        while ahead:
            work = ahead.pop()
            if id(work) not in joined:
                joined.add(id(work))
                ahead += work.earlier
        if any(id(work) not in joined for tail in self._tails.values() for work in tail):
            raise CaptureError("capturing stream has unjoined work")
        return self._works
