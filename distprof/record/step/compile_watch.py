"""How long torch.compile holds the training thread up, by what that was doing, and which function is compiled.

PyTorch calls back when it begins to compile, and when it is done. The time is that of the host clock: the thread waits
for compilers in other processes too. What other threads compile does not count.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from os.path import basename, dirname, sep
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import torch

import distprof
from distprof.record.step.recorder import Recorder

CALLBACKS = "torch._dynamo.callback"
MAX_NAMES = 8
"""Functions that are noted by name."""
NAME_LIMIT = 120
SEARCHED_FRAMES = 12
"""The compiler has the code that it compiles in one of so many frames around the callback."""
_TORCH = dirname(torch.__file__) + sep
_BETWEEN = (_TORCH, dirname(distprof.__file__) + sep, contextlib.__file__)
"""Files whose frames stand between a program and what PyTorch compiles of itself."""


class CompileWatch:
    """Notes each compilation of the training thread in its recorder, once a program has imported the compiler."""

    def __init__(
        self, recorder: Recorder, note: Callable[[str], None], now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Nothing is noted yet.

        Args:
            recorder: Of the training thread.
            note: Gets one line on each of the first functions that are compiled after warm-up.
            now_ns: The host clock, monotonic, ns.
        """
        self._recorder, self._note, self._now = recorder, note, now_ns
        self._begins, self._ends = self._begin, self._end
        self._starts: list[Any] = []  # PyTorch's list, once it is known
        self._name = ""
        self._noted: set[str] = set()

    def open(self) -> None:
        """Begins with the next step."""
        self._recorder.pauses.look = self._look

    def close(self) -> None:
        """Ends; the compiler's callbacks are as they were."""
        self._recorder.pauses.look = None
        for callbacks, own in self._list_callbacks():
            if own in callbacks:
                callbacks.remove(own)

    def _look(self) -> None:
        if CALLBACKS not in sys.modules or self._begins in self._starts:
            return
        for callbacks, own in self._list_callbacks():
            if own not in callbacks:  # torch._dynamo.reset() takes all of them away
                callbacks.append(own)
            self._starts = callbacks if own is self._begins else self._starts

    def _list_callbacks(self) -> list[tuple[list[Any], Callable[..., None]]]:
        """PyTorch's two lists, and what belongs into each. Empty: the compiler is not there, or is another one."""
        handler = getattr(sys.modules.get(CALLBACKS), "callback_handler", None)
        starts, ends = getattr(handler, "start_callbacks", None), getattr(handler, "end_callbacks", None)
        if not isinstance(starts, list) or not isinstance(ends, list):
            return []
        return [(starts, self._begins), (ends, self._ends)]

    def _begin(self, *_: object) -> None:
        recorder = self._recorder
        if recorder.recording and get_ident() == recorder.timeline.thread:
            self._name = _name_compiled()
            recorder.pauses.compiling_since_ns = self._now()

    def _end(self, *_: object) -> None:
        recorder = self._recorder
        since_ns = recorder.pauses.compiling_since_ns
        if since_ns is None or get_ident() != recorder.timeline.thread:
            return
        recorder.pauses.compiling_since_ns = None
        if recorder.recording:
            lasted_ns = self._now() - since_ns
            recorder.pauses.add_compilation(recorder.running_code, lasted_ns)
            if not recorder.pauses.warmup:
                self._note_once(self._name, lasted_ns)

    def _note_once(self, name: str, lasted_ns: int) -> None:
        if name not in self._noted and len(self._noted) < MAX_NAMES:
            self._noted.add(name)
            self._note(f"compiled {name} in step {self._recorder.step}, {lasted_ns / 1e9:,.3g} s")


def _name_compiled() -> str:
    """What is compiled: file, line and function, or the line that calls it if it is PyTorch's own."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(SEARCHED_FRAMES):
        code = None if frame is None else frame.f_locals.get("code")
        if isinstance(code, CodeType) and not code.co_filename.startswith(_TORCH):
            return f"{basename(code.co_filename)}:{code.co_firstlineno} {code.co_name}"[:NAME_LIMIT]
        frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    where = "the program" if frame is None else f"{basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    return f"what {where[:NAME_LIMIT]} calls"
