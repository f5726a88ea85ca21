"""Weights & Biases on its own thread, so that neither training nor the ranks' files ever wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from distprof.config.schema import WandbConfig
from distprof.facts.arrays import FloatArray
from distprof.facts.run import RankInfo, Run, RunMeta
from distprof.record.gather import background_consumer as consumer
from distprof.record.gather.background_consumer import BackgroundConsumer
from distprof.render.wandb.wandb_log import WandbLogger, choose_mode, end_service, wants_online
from distprof.report.report import Report

FINISH_TIMEOUT_S = 30.0
"""How long the end of a job waits for an upload; a service that does not answer is given up earlier."""
INIT_GRACE_S = 15.0
"""Extra time for opening a run: wandb gives up going online ten seconds late, and then opens an offline run."""


class WandbThread:
    """Opens a W&B run, logs to it and closes it while training goes on."""

    def __init__(
        self,
        *,
        meta: RunMeta,
        config: WandbConfig,
        folder: Path,
        print_line: Callable[[str], None],
        ranks: Sequence[RankInfo] = (),
    ) -> None:
        """Takes the arguments of `WandbLogger.start`; `start` starts the thread."""
        self._folder, self._print_line, self._wanted = folder, print_line, choose_mode(config) != "disabled"
        self._logger: WandbLogger | None = None
        self._queued_steps = 0

        def begin() -> Callable[[FloatArray], None] | None:
            self._logger = WandbLogger.start(
                meta=meta, config=config, folder=folder, print_line=print_line, ranks=ranks
            )
            return self._logger.log_rows if self._logger is not None else None

        online = wants_online(config)
        self._close_limit_s = FINISH_TIMEOUT_S if online else consumer.CALL_LIMIT_S  # offline nothing is uploaded
        limit_s = INIT_GRACE_S + (config.init_timeout_s if online else 0.0)
        self._consumer = BackgroundConsumer(begin, what="wandb", failed=print_line, begin_limit_s=limit_s)

    def start(self) -> None:
        """Starts the thread."""
        self._consumer.start()

    def enqueue(self, rows: FloatArray) -> None:
        """Queues whole steps for logging, ``[num_ranks, num_new_steps, ROW_WIDTH]``. Never waits."""
        self._queued_steps += rows.shape[1]
        self._consumer.enqueue(rows)

    def finish(self, report: Report, run: Run) -> str | None:
        """Logs what belongs to the end, as `WandbLogger.conclude` does, and closes the run, within a limited time.

        Returns:
            What W&B did not get, which the user has been told. None: nothing is missing.
        """
        limits_s = {"limit_s": FINISH_TIMEOUT_S, "last_limit_s": self._close_limit_s}
        ended = self._consumer.finish(lambda: self._conclude(report, run), self._close, **limits_s)
        logger = self._logger
        if not self._wanted or (ended and logger is not None and logger.concluded and logger.closed):
            return None
        steps = self._queued_steps - (logger.got_steps if logger is not None else 0)
        parts = [f"{steps} of {self._queued_steps} steps"] if steps else []
        if logger is None or not logger.concluded:
            parts.append("the tables and the summary")
        elif not parts:
            late = f"the upload is not done after {self._close_limit_s:.0f} s"
            self._print_line(f"wandb: {late}; later: wandb sync {logger.folder}")
            return None
        if not ended:
            end_service(only_stopped=False)
        missed = f"W&B did not get {' and '.join(parts)}{'' if ended else ': it gave no answer in time'}"
        self._print_line(f"wandb: {missed}; {self._folder} holds everything")
        return missed

    def _conclude(self, report: Report, run: Run) -> None:
        if self._logger is not None:
            self._logger.conclude(report, run)

    def _close(self) -> None:
        if self._logger is not None:
            self._logger.close()
