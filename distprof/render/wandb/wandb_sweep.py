"""The comparison of a sweep's jobs in Weights & Biases: one run at the sweep's end, in the group of its jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from distprof.config.redact import mask, secret_values
from distprof.config.schema import WandbConfig
from distprof.record.gather.background_consumer import CALL_LIMIT_S, BackgroundConsumer
from distprof.render.html.page import make_page
from distprof.render.html.svg import draw_jobs
from distprof.render.units import clean_text
from distprof.render.wandb.wandb_log import choose_mode, close_run, end_service, open_run, wants_online
from distprof.render.wandb.wandb_summary import LoggedTable, Row, to_ms
from distprof.render.wandb.wandb_thread import FINISH_TIMEOUT_S, INIT_GRACE_S
from distprof.render.wandb.wandb_workspace import SWEEP_CHART, SWEEP_TABLE
from distprof.report.sweep_report import SweepReport

MAX_JOBS = 1_000
COLUMNS = (
    "ranks", "status", "clock", "steps", "mean_ms", "mean_low_ms", "mean_high_ms", "median_ms", "std_ms", "min_ms",
    "max_ms", "spread_ratio", "tokens_per_s",
)  # fmt: skip


def log_sweep(report: SweepReport, config: WandbConfig, *, folder: Path, print_line: Callable[[str], None]) -> None:
    """Logs the table and the drawing of the jobs, in limited time; an error is a line, and no more.

    Args:
        report: Of the whole sweep.
        config: As of its jobs.
        folder: The sweep's; wandb makes its own inside it.
        print_line: Says a line to the user.
    """
    if choose_mode(config) == "disabled":
        return
    name = mask(report.name, secret_values())
    group = config.group or os.environ.get("WANDB_RUN_GROUP") or name
    opened: list[Any] = []
    logged: list[bool] = []

    def begin() -> None:
        run = open_run(
            f"{name} compared", structs.replace(config, group=group), folder=folder, print_line=print_line,
            values={"jobs": len(report.rows), "keys": list(report.keys)},
        )  # fmt: skip
        opened.extend([] if run is None else [run])

    def log() -> None:
        for run in opened:
            run.log(_make_media(report))
            run.status()
            logged.append(True)

    def close() -> None:
        for run in opened:
            close_run(run)

    online = wants_online(config)
    begin_limit_s = INIT_GRACE_S + (config.init_timeout_s if online else 0.0)
    consumer = BackgroundConsumer(begin, what="wandb", failed=print_line, begin_limit_s=begin_limit_s)
    consumer.start()
    last_limit_s = FINISH_TIMEOUT_S if online else CALL_LIMIT_S
    ended = consumer.finish(log, close, limit_s=FINISH_TIMEOUT_S, last_limit_s=last_limit_s)
    if not ended:
        end_service(only_stopped=False)
    if opened and not (ended and logged):
        print_line("wandb: W&B may not have got the comparison; the sweep's folder holds everything")


def list_jobs(report: SweepReport) -> LoggedTable:
    """One row per job, with the swept keys under their whole names; times in ms."""
    keys = [clean_text(key) for key in report.keys]
    rows: list[Row] = [
        [
            row.number, *(clean_text(value) for value in row.settings.values()), row.ranks, row.status, row.clock,
            row.steps, to_ms(row.mean_ns), to_ms(row.mean_low_ns), to_ms(row.mean_high_ns), to_ms(row.median_ns),
            to_ms(row.std_ns), to_ms(row.min_ns), to_ms(row.max_ns), row.spread_ratio, row.tokens_per_s,
        ]
        for row in report.rows[:MAX_JOBS]
    ]  # fmt: skip
    return LoggedTable(columns=("job", *keys, *COLUMNS), rows=rows)


def _make_media(report: SweepReport) -> dict[str, Any]:
    import wandb

    table = list_jobs(report)
    media: dict[str, Any] = {SWEEP_TABLE: wandb.Table(columns=[*table.columns], data=table.rows)}
    if drawing := draw_jobs(report):
        media[SWEEP_CHART] = wandb.Html(make_page("Step time by job", drawing, scripts=()), inject=False)
    return media
