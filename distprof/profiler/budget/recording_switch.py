"""Turns the recording of phases off and on while a job runs: for good, once it costs too much, or for a while."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from distprof.profiler.budget.overhead_budget import ShadowPlan, describe_stop
from distprof.record.step.recorder import Recorder

STOP_FILE = "record.stop"
"""While a file of this name is in the run folder, phases are not recorded."""


class RecordingSwitch:
    """One rank's switch; used by the gather thread. It takes effect at the next step that begins."""

    def __init__(self, plan: ShadowPlan, recorder: Recorder, note: Callable[[str], None]) -> None:
        """On, as far as the level and the plan of shadow steps say so.

        Args:
            plan: Decides of each step whether it is recorded.
            recorder: Measures the time between two steps, too.
            note: Adds a note for the coverage of this rank.
        """
        self._plan, self._recorder, self._note = plan, recorder, note
        self._between = recorder.between.on
        self._stopped = self._noted = False

    def stop(self, limit_ratio: float | None) -> None:
        """Off for good: recording costs more than this share of a step."""
        self._stopped = True
        self._set(off=True)
        self._note(f"recording cost {describe_stop(limit_ratio)}")

    def pause(self, off: bool) -> None:
        """Off, or on again unless it was stopped for good."""
        if not self._stopped:
            self._set(off=off)
        if off and not self._noted:
            self._noted = True
            self._note(f"recording was off while there was {STOP_FILE} in the run folder")

    def _set(self, *, off: bool) -> None:
        self._plan.always = off
        self._recorder.between.on = self._between and not off


def wants_pause(folder: Path) -> bool:
    """On rank 0: whether the user has asked for it."""
    return os.path.exists(folder / STOP_FILE)  # unlike a path's own method, it never raises
