"""What rank 0 does with the rows of all ranks: files for distant ranks, the overhead budget, and the live display."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from distprof.error_boundary import ErrorBoundary
from distprof.errors import DistprofError
from distprof.facts.arrays import FloatArray
from distprof.facts.gpu import GpuReading
from distprof.facts.run import RunMeta
from distprof.profiler.job.live_view import LiveFeed, LiveView
from distprof.profiler.job.rank_context import OpenRankContext
from distprof.profiler.rank.overhead_budget import keep_budget
from distprof.profiler.windows.window_coordinator import WindowCoordinator
from distprof.record.gather.background_consumer import BackgroundConsumer
from distprof.record.gather.live import LiveSteps, RemoteStreams
from distprof.record.gather.step_writer import StepWriter
from distprof.storage.run_folder import add_note

if TYPE_CHECKING:
    from distprof.profiler.loggers.logger_thread import LoggerThread
    from distprof.profiler.metrics.metrics import Metrics
    from distprof.profiler.metrics.metrics_server import MetricsServer, Page


class RankZero:
    """Receives the rows of every rank. `deliver` runs on the gather thread, `finish` at the end of the job."""

    def __init__(
        self,
        context: OpenRankContext,
        step_writer: StepWriter,
        *,
        meta: RunMeta,
        on_start: Callable[[], Callable[[FloatArray], None] | None] | None,
        stop_recording: Callable[[], None],
        coordinator: WindowCoordinator,
        lose: Callable[[str], None],
        read_gpus: Callable[[], Sequence[GpuReading]],
        live: bool = False,
    ) -> None:
        """Starts the live display and the metrics, if they are wanted.

        Args:
            context: Of rank 0.
            step_writer: Keeps notes of what could not be written.
            meta: Of the job.
            on_start: Called on a thread of its own; returns what gets the whole steps. None: there is no display.
            stop_recording: Asks every rank to stop recording phases.
            coordinator: Orders kernel windows.
            lose: Says what is lost, to the user and in the report.
            read_gpus: What the ranks have said of their GPUs, by rank.
            live: Whether a child process shows the job on standard error.
        """
        self._folder, self._warn, self._coordinator = context.folder, context.warn, coordinator
        self._remote = RemoteStreams(context.streams.apart, step_writer.refuse)
        self._consumer: BackgroundConsumer | None = None
        if on_start is not None:
            self._consumer = BackgroundConsumer(on_start, what="the display of steps", failed=context.warn)
            self._consumer.start()
        self._metrics = _serve_metrics(context, meta, lose, read_gpus)
        receivers = [] if self._consumer is None else [self._consumer.enqueue]
        if self._metrics is not None:
            receivers.append(self._metrics[0].add)
        self._loggers = _open_loggers(context, meta, lose)
        receivers += [logger.enqueue for logger in self._loggers]
        on_steps = keep_budget(
            context.limit_ratio, every=context.profile.shadow_every, clock=context.clock, stop=stop_recording,
            print_line=context.print_line, on_steps=partial(_pass_to_all, receivers) if receivers else None,
        )  # fmt: skip
        boundary = ErrorBoundary("no live view", lose)
        self._view = boundary.run(LiveView, context.folder) if live else None
        self._live = None if on_steps is None else LiveSteps(context.world.size, on_steps)

    def deliver(self, tables: list[FloatArray]) -> None:
        """Takes the new rows of every rank, ``[num_new_rows, ROW_WIDTH]`` each."""
        self._remote.write(tables)
        if self._live is not None:
            self._live.add(tables)

    def leave(self) -> None:
        """However training has ended: ends the live view, and closes the port, the coordinator and the loggers."""
        if self._view is not None:
            self._view.close()
        self._coordinator.close()
        for logger in self._loggers:
            logger.end_soon()
        if self._metrics is not None:
            self._metrics[1].close()
            self._metrics[2].close()

    def finish(self) -> None:
        """After every rank's last row: ends the files written for other ranks, and waits briefly for the display."""
        self._remote.end()
        for logger in self._loggers:
            logger.end()
        if self._consumer is None:
            return
        self._consumer.finish()
        if missed := self._consumer.missed_steps:
            note = f"{missed} step(s) were not shown while the job ran: what on_start gave was too slow, or failed"
            self._warn(note)
            with contextlib.suppress(OSError, DistprofError):  # the user has been told; the folder may be full or gone
                add_note(self._folder, note)


def _pass_to_all(receivers: Sequence[Callable[[FloatArray], None]], rows: FloatArray) -> None:
    for receiver in receivers:
        receiver(rows)


def _open_loggers(context: OpenRankContext, meta: RunMeta, lose: Callable[[str], None]) -> list[LoggerThread]:
    if not context.profile.loggers:
        return []
    # Here, as most jobs have none: it takes a quarter of a second, for which the first step of all ranks would wait.
    from distprof.profiler.loggers.logger_thread import LoggedJob, open_logger

    job = LoggedJob(meta=meta, ranks=context.streams.ranks, folder=context.folder, print_line=context.print_line)
    return [open_logger(name, job, lose) for name in dict.fromkeys(context.profile.loggers)]


def _serve_metrics(
    context: OpenRankContext,
    meta: RunMeta,
    lose: Callable[[str], None],
    read_gpus: Callable[[], Sequence[GpuReading]],
) -> tuple[Metrics, MetricsServer, LiveFeed] | None:
    """The metrics, what serves them, and what feeds the page. None: they are not wanted, or the port cannot be had."""
    profile = context.profile
    if profile.metrics_port is None:
        return None
    from distprof.profiler.metrics.metrics import Metrics  # as above
    from distprof.profiler.metrics.metrics_server import PATH, MetricsServer
    from distprof.render.html.live_page import make_live_page

    metrics = Metrics(meta, context.streams.ranks, read_gpus=read_gpus)
    feed = LiveFeed(context.folder)
    pages: dict[str, Page] = {
        "/": ("text/html; charset=utf-8", lambda: make_live_page().encode()),
        "/live.json": ("application/json", feed.read),
    }
    address, port = profile.metrics_address, profile.metrics_port
    try:
        server = MetricsServer(metrics.render, address=address, port=port, pages=pages)
    except OSError as error:
        lose(f"no live metrics: profile.metrics_port={port} on {address}: {error.strerror or error}")
        return None
    context.print_line(f"distprof: live metrics: {server.url} ; in a browser: {server.url.removesuffix(PATH)}/")
    return metrics, server, feed
