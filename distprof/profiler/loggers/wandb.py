"""Live metrics in a W&B run of distprof's own, beside those that the script may have open."""

from __future__ import annotations

import os

from distprof.config.choice import read_choice
from distprof.config.schema import WandbConfig, decode
from distprof.facts.arrays import FloatArray
from distprof.profiler.job.exit_guard import close_sessions_first
from distprof.profiler.loggers.logger_thread import LoggedJob
from distprof.render.wandb.wandb_log import WandbLogger


class BesideWandbLogger:
    """Logs scalars while the job runs. All settings but ``WANDB_PROJECT`` are those of ``conf/logger/wandb.yaml``."""

    def __init__(self, job: LoggedJob) -> None:
        """Opens a run, online when logged in.

        Raises:
            RuntimeError: There is none; the user has been told why.
        """

        def print_line(line: str) -> None:
            close_sessions_first()  # W&B's service ends with the process, too, and what is left is to be logged before
            job.print_line(line)

        config = decode(WandbConfig, read_choice("logger", "wandb") | _read_project())
        logger = WandbLogger.start(
            meta=job.meta, config=config, folder=job.folder, print_line=print_line, ranks=job.ranks, beside=True
        )
        if logger is None:
            raise RuntimeError("wandb opened no run")
        self._logger = logger

    def log(self, rows: FloatArray) -> None:
        self._logger.log_rows(rows)

    def close(self) -> None:
        self._logger.close()


def make_logger(job: LoggedJob) -> BesideWandbLogger:
    """Opens a run beside the script's own."""
    return BesideWandbLogger(job)


def _read_project() -> dict[str, str]:
    project = os.environ.get("WANDB_PROJECT")
    return {"project": project} if project else {}
