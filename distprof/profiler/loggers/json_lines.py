"""Live metrics as JSON lines in the run folder, at most two files of bounded size."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from distprof.facts.run import FloatArray
from distprof.profiler.loggers.metric_logger import LoggedJob

NAME, EARLIER = "metrics.jsonl", "metrics.earlier.jsonl"
MAX_BYTES = 16 << 20
"""Of a file; a full one takes the place of the one before."""


class JsonLinesLogger:
    """Appends a line for each point: the step, when it was written, and what was measured."""

    def __init__(
        self, job: LoggedJob, *, max_bytes: int = MAX_BYTES, now_s: Callable[[], float] = time.time
    ) -> None:  # fmt: skip
        """Opens the file.

        Args:
            job: Whose metrics they are.
            max_bytes: Size at which a new file begins.
            now_s: Seconds since 1970.
        """
        self._points, self._path, self._earlier = job.make_points(), job.folder / NAME, job.folder / EARLIER
        self._max_bytes, self._now_s = max_bytes, now_s
        self._file = self._path.open("a", encoding="utf-8")

    def log(self, rows: FloatArray) -> None:
        """As `MetricLogger.log`."""
        at_s = round(self._now_s(), 3)
        self._file.writelines(json.dumps({"time_s": at_s, **point}) + "\n" for point in self._points.add(rows))
        self._file.flush()
        if self._file.tell() >= self._max_bytes:
            self._file.close()
            os.replace(self._path, self._earlier)
            self._file = self._path.open("a", encoding="utf-8")

    def close(self) -> None:
        """As `MetricLogger.close`."""
        self._file.close()
