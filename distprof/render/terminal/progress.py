"""Progress that rank 0 shows while the job runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from distprof.analyze.live.live_metric_means import ElapsedSteps
from distprof.facts.run import COLUMN, Clock, FloatArray
from distprof.render.units import format_time

LINE_EVERY_S = 10.0


class StepProgress:
    """A progress bar on a terminal; elsewhere an occasional line."""

    def __init__(self, console: Console, total: int, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Shows progress towards ``total`` steps, warm-up included."""
        self._console, self._total, self._now_s = console, total, now_s
        self._done, self._said_s = 0, now_s()
        self._elapsed = ElapsedSteps()
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}")
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
            self._task = self._bar.add_task("training", total=total, facts="")
            self._bar.start()

    def show(self, rows: FloatArray) -> None:
        """Adds completed steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""
        self._done += rows.shape[1]
        step_ns = float(np.mean(self._elapsed.add(rows)[Clock.HOST]))
        tokens_per_s = float(np.sum(rows[:, :, COLUMN["tokens"]])) / rows.shape[1] / step_ns * 1e9
        facts = f"{format_time(step_ns)}/step  {tokens_per_s:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, facts=facts)
        elif self._now_s() - self._said_s >= LINE_EVERY_S:
            self._said_s = self._now_s()
            self._console.print(f"step {self._done}/{self._total}  {facts}", highlight=False)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
