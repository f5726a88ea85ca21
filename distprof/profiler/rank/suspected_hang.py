"""What a rank does when a hang is suspected: it writes where it stands, and rank 0 says the report's sentence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.error_boundary import ErrorBoundary
from distprof.facts.stand import RankState
from distprof.record.gather.step_writer import StepWriter
from distprof.record.stalls.stall_watch import Peers
from distprof.record.stalls.suspicion import SharedFlag, Suspicion, SuspicionActions, read_step_position
from distprof.record.step.recorder import Recorder

if TYPE_CHECKING:
    from distprof.facts.run import Run

LOOKS_AGAIN, AGAIN_S = 4, 0.5
"""On a busy host a rank may come to write where it stands only after rank 0 has read: it reads so often, so far apart.
A rank that can write nothing, such as one that holds Python's lock, does not keep it longer."""


def open_suspicion(
    recorder: Recorder,
    step_writer: StepWriter,
    peers: Peers,
    *,
    folder: Path,
    look_s: float,
    longest_s: float,
    print_line: Callable[[str], None] | None,
) -> Suspicion:
    """Makes a rank's suspicion; ``print_line`` says a line to the user on rank 0, and is None on the others.

    ``look_s`` and ``longest_s`` are those of `Suspicion`; nothing is looked at yet.
    """

    def save(stand: RankState) -> None:
        step_writer.save_state(stand.stalled_s, stopped=peers.list_stopped(), stand=stand)

    rank_zero = None if print_line is None else _HangAnnouncer(folder, print_line, step_writer)
    actions = SuspicionActions(
        read=step_writer.read_stand, save=save, take_back=step_writer.void_state,
        tell=(lambda: None) if rank_zero is None else rank_zero.tell,
        end=(lambda seconds: None) if rank_zero is None else rank_zero.end,
    )  # fmt: skip
    return Suspicion(
        position=partial(read_step_position, recorder), look_s=look_s, longest_s=longest_s, flag=SharedFlag(folder),
        actions=actions,
    )  # fmt: skip


class _HangAnnouncer:
    """Says on rank 0 what the report says. It is read on a thread of its own: the one that looks must go on."""

    def __init__(
        self, folder: Path, print_line: Callable[[str], None], step_writer: StepWriter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._folder, self._print_line, self._step_writer, self._sleep = folder, print_line, step_writer, sleep
        self._lock, self._round, self._said = threading.Lock(), 0, False

    def tell(self) -> threading.Thread:
        """Says the sentence as soon as it is known, unless the suspicion has ended by then; returns what does that."""
        boundary, number = ErrorBoundary("distprof: a suspected hang is not described", self._print_line), self._round
        thread = threading.Thread(target=lambda: boundary.run(self._tell, number), name="distprof-hang", daemon=True)
        thread.start()
        return thread

    def _tell(self, number: int) -> None:
        from distprof.analyze import analyze  # what a job without a hang needs at its end only
        from distprof.render.sections.hangs import describe_hang

        run = self._read()
        for _ in range(LOOKS_AGAIN):
            if number != self._round or _all_say(run):
                break
            self._sleep(AGAIN_S)
            run = self._read()
        sentence = describe_hang(analyze(run))
        with self._lock:
            if sentence and number == self._round:
                self._said = True
                self._print_line(f"distprof: {sentence} (distprof report {self._folder})")

    def _read(self) -> Run:
        from distprof.storage.run_folder import read_run

        try:
            return read_run(self._folder)
        finally:
            self._step_writer.hold()

    def end(self, seconds: float) -> None:
        """The suspicion has ended after so long, s."""
        self._step_writer.count_passed(seconds)
        with self._lock:
            said, self._said = self._said, False
            self._round += 1
        if said:
            self._print_line(
                f"distprof: the suspected hang has ended, {seconds:,.0f} s after it was suspected: steps go on"
            )


def _all_say(run: Run) -> bool:
    """Whether every rank that has not ended has written where it stands, with what torch knows of its collectives:
    each writes first what needs nothing from torch."""
    return all(info.ended or (info.stand is not None and info.stand.source == "ring") for info in run.ranks)
