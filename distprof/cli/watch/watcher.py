"""Looks at a run folder again and again: how far the job is at every look, and now and then the report so far.

All of it happens in the process that watches, from what the ranks have written anyway: the job does not notice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from distprof.analyze import analyze
from distprof.analyze.live.progress import ProgressMeter, RankLook
from distprof.error_boundary import ErrorBoundary
from distprof.errors import DataError
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, ROW_WIDTH, Run
from distprof.report.progress import Progress
from distprof.report.report import Report
from distprof.storage.run_tail import RankTail, RunTail

EVERY_STEPS, EVERY_S = 20, 30.0
"""The report is made again after so many steps, or so long."""
PAUSE_FACTOR, LEAST_PAUSE_S = 4.0, 2.0
"""How long it is not made after that, whatever comes: so many times as long as it took, and at least so long."""
MAX_ROWS, LEAST_STEPS, MOST_STEPS = 60_000, 50, 2_000
"""What is kept of the latest steps, and judged: rows of all ranks together, and steps."""
SHOWN_ROWS, LEAST_SHOWN, MOST_SHOWN = 20_000, 20, 200
"""What is looked at each time: the same, of the latest of these."""
Start = Callable[[Callable[[], None]], None]


def start_thread(work: Callable[[], None]) -> None:
    """Does it on a thread that nobody waits for."""
    threading.Thread(target=work, name="distprof-watch-report", daemon=True).start()


class Watcher:
    """One job that is watched."""

    def __init__(self, folder: Path, *, now_s: Callable[[], float], start: Start = start_thread) -> None:
        """Begins without a look.

        Args:
            folder: The run folder.
            now_s: A monotonic clock.
            start: Starts what makes the report.

        Raises:
            DataError: It is not a run folder.
        """
        self._tail = RunTail(folder, max_rows=MAX_ROWS, least_steps=LEAST_STEPS, most_steps=MOST_STEPS)
        self._now_s, self._start, self._meter = now_s, start, ProgressMeter()
        self._seen: dict[str, tuple[int, float]] = {}  # the last step of each stream, and when it came
        self._judged_steps, self._judged_s, self._rest_until_s = -1, -np.inf, -np.inf
        self._busy = threading.Event()
        self._report: Report | None = None
        self._problem = ""

    def look(self) -> Progress:
        """Reads what is new, and has the report made again if it is time.

        Raises:
            DataError: The run folder is gone.
        """
        self._tail.look()
        looks = [look for look in map(self._look_at, self._tail.tails.items()) if look is not None]
        progress = self._meter.measure(self._tail.meta, sorted(looks, key=lambda look: look.info.rank))
        now_s = self._now_s()
        due = progress.steps_done - self._judged_steps >= EVERY_STEPS or now_s - self._judged_s >= EVERY_S
        if not progress.over and due and now_s >= self._rest_until_s and not self._busy.is_set():
            self._judged_steps, self._judged_s = progress.steps_done, now_s
            run = self._make_run()
            if run is not None:
                self._busy.set()
                self._start(lambda: self._judge(run))
        return progress

    @property
    def report(self) -> tuple[Report | None, float, str]:
        """The last report, how many seconds ago its facts were read, and what keeps a new one from being made."""
        return self._report, self._now_s() - self._judged_s, self._problem

    def finish(self) -> None:
        """Makes the report of a job that is over, of all that is kept."""
        run = self._make_run()
        if run is not None:
            self._judge(run)

    def _make_run(self) -> Run | None:
        try:
            return self._tail.make_run()
        except DataError as error:
            self._problem = f"no report: {error}"
            return None

    def _judge(self, run: Run) -> None:
        problems: list[str] = []
        began_s = self._now_s()
        report = ErrorBoundary("no report", problems.append).run(analyze, run)
        self._problem = "".join(problems)
        self._report = self._report if report is None else report
        self._rest_until_s = self._now_s() + max(LEAST_PAUSE_S, PAUSE_FACTOR * (self._now_s() - began_s))
        self._busy.clear()

    def _look_at(self, named: tuple[str, RankTail]) -> RankLook | None:
        """One rank; None: nothing readable is known of it, or it is of another job."""
        name, tail = named
        most = min(MOST_SHOWN, max(LEAST_SHOWN, SHOWN_ROWS // self._tail.meta.world_size))
        try:
            info = tail.read_info()
        except DataError:
            return None
        rows = _stack(tail.take_latest(most))
        last = int(rows[-1, COLUMN["step"]]) if len(rows) else -1
        if self._seen.get(name, (None, 0.0))[0] != last:
            ago_s = 0.0 if name in self._seen or info.last_write is None else info.last_write.ago_s
            self._seen[name] = last, self._now_s() - ago_s
        fresh_s = self._now_s() - self._seen[name][1]
        return RankLook(info=info, rows=rows, fresh_s=fresh_s, place=tail.place)


def _stack(rows: list[FloatArray]) -> FloatArray:
    """In ascending order of steps, ``[num_steps, ROW_WIDTH]``; of a step that was written twice, the later row."""
    if not rows:
        return np.empty((0, ROW_WIDTH))
    table = np.stack(rows[::-1])
    latest: FloatArray = table[np.unique(table[:, COLUMN["step"]], return_index=True)[1]]
    return latest
