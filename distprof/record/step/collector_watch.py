"""How long Python's garbage collector holds the training thread up, by what that was doing.

A collection stops the thread that it runs on. Only those on the training thread count: what another thread collects
costs training nothing while that computes outside of Python. A collection takes the processor time that the thread
spent on it: a thread that others kept off its core would have lost that time anyway.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from threading import get_ident

from distprof.record.step.recorder import Recorder


class CollectorWatch:
    """Notes each collection of the training thread in its recorder."""

    def __init__(self, recorder: Recorder, now_ns: Callable[[], int] = time.thread_time_ns) -> None:
        """Nothing is noted yet.

        Args:
            recorder: Of the training thread.
            now_ns: The thread's processor time, ns.
        """
        self._recorder, self._now = recorder, now_ns
        self._begun_ns: int | None = None

    def open(self) -> None:
        """Begins."""
        gc.callbacks.append(self._note)

    def close(self) -> None:
        """Ends; Python's list of callbacks is as it was."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, when: str, _: object) -> None:
        if get_ident() != self._recorder.timeline.thread:
            return
        begun_ns, self._begun_ns = self._begun_ns, self._now() if when == "start" else None
        if when == "stop" and begun_ns is not None:
            self._recorder.add_collection(self._now() - begun_ns)
