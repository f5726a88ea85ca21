"""A logger on a thread of its own: it may be slow, stuck or broken, and neither training nor the rows wait for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from distprof.analyze.live.live_metrics import LiveMetrics
from distprof.error_boundary import ErrorBoundary
from distprof.errors import DistprofError
from distprof.facts.arrays import FloatArray
from distprof.facts.run import RankInfo, RunMeta
from distprof.record.gather.background_consumer import BackgroundConsumer

BEGIN_LIMIT_S, END_LIMIT_S = 6.0, 7.0
"""How long the end of a job waits for a logger that is being opened, from when that began, and for one that writes the
rest: the process is to end within ten seconds."""
HURRY_S = 2.0
"""How long a logger may take to write the rest after training has failed."""


class LoggedJob(Struct, frozen=True, kw_only=True):
    """The job whose metrics a logger gets."""

    meta: RunMeta
    ranks: tuple[RankInfo, ...]
    """Every rank, in order."""
    folder: Path
    """The run folder."""
    print_line: Callable[[str], None]
    """Says a line to the user."""

    def make_points(self) -> LiveMetrics:
        """What turns steps into named numbers."""
        return LiveMetrics(self.meta, self.ranks)


class MetricLogger(Protocol):
    """A logger on rank 0. It is opened and called on a thread of its own, and may raise: it is then used no more."""

    def log(self, rows: FloatArray) -> None:
        """Takes whole steps in ascending order, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""

    def close(self) -> None:
        """Called once, after the last step."""


class LoggerThread:
    """One logger. The first error ends it, with a note."""

    def __init__(self, name: str, make: Callable[[], MetricLogger], note: Callable[[str], None]) -> None:
        """Starts the thread, which makes the logger.

        Args:
            name: As in ``profile.loggers``.
            make: Opens it.
            note: Receives what went wrong, once.
        """
        self._make, self._ended = make, False
        self._logger: MetricLogger | None = None
        self._boundary = ErrorBoundary(f"profile.loggers={name} stopped", note)
        self._consumer = BackgroundConsumer(
            self._begin, what=f"logger {name}", failed=note, begin_limit_s=BEGIN_LIMIT_S
        )  # fmt: skip
        self._consumer.start()

    def enqueue(self, rows: FloatArray) -> None:
        """Queues whole steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``. Never waits."""
        self._consumer.enqueue(rows)

    def end(self, limit_s: float = END_LIMIT_S) -> None:
        """Waits until it has written everything, not longer than it may take. A second call does nothing."""
        if self._ended:
            return
        self._ended = True
        self._consumer.finish(self._close, limit_s=limit_s)
        if missed := self._consumer.missed_steps:
            self._boundary.fail(DistprofError(f"too slow for {missed:,} step(s)"))

    def end_soon(self) -> None:
        """As `end`, within `HURRY_S`: training may have failed."""
        self.end(HURRY_S)

    def _begin(self) -> Callable[[FloatArray], None] | None:
        self._logger = self._boundary.run(self._make)
        return None if self._logger is None else self._log

    def _log(self, rows: FloatArray) -> None:
        if self._logger is not None:
            self._boundary.run(self._logger.log, rows)
            if not self._boundary.on:
                self._close()

    def _close(self) -> None:
        logger, self._logger = self._logger, None
        if logger is not None:
            with self._boundary:  # also after it has failed
                logger.close()


def open_logger(name: str, job: LoggedJob, note: Callable[[str], None]) -> LoggerThread:
    """Opens the logger of this name in ``profile.loggers``: `make_logger` of the file of the same name beside this one.

    That file, and what it needs, is imported on the logger's thread.
    """

    def make() -> MetricLogger:
        logger: MetricLogger = importlib.import_module(f"distprof.profiler.loggers.{name}").make_logger(job)
        return logger

    return LoggerThread(name, make, note)
