"""Live metrics for TensorBoard, in ``tensorboard/`` of the run folder."""

from __future__ import annotations

from typing import Any

from distprof.facts.arrays import FloatArray
from distprof.profiler.loggers.logger_thread import LoggedJob


class TensorBoardLogger:
    """Writes each number of a point as a scalar over the step."""

    def __init__(self, job: LoggedJob) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._points = job.make_points()
        self._writer: Any = SummaryWriter(str(job.folder / "tensorboard"))

    def log(self, rows: FloatArray) -> None:
        for point in self._points.add(rows):
            step = int(point["step"])
            for name, value in point.items():
                if name != "step":
                    self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def make_logger(job: LoggedJob) -> TensorBoardLogger:
    """Opens a file of events."""
    return TensorBoardLogger(job)
