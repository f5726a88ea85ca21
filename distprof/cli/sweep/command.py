"""Runs a sweep from its command line to its report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from distprof.cli.capture.job import find_nvtx_version, require_nsys
from distprof.cli.sweep.launcher import TORCHRUN, TorchrunLauncher
from distprof.cli.sweep.plan import continue_sweep, list_flags, plan_sweep
from distprof.cli.sweep_report import report_sweep
from distprof.config.compose import Composed, JobRequest
from distprof.config.redact import secret_values
from distprof.config.schema import WandbConfig
from distprof.errors import EXIT_FAILED, UsageError
from distprof.record.stalls.signals import SignalWatch
from distprof.render.wandb.wandb_log import require_wandb
from distprof.render.wandb.wandb_sweep import log_sweep
from distprof.storage.sweep_folder import write_sweep
from distprof.traces.nsys.nsys_tool import find_nsys


def run_sweep(
    jobs: Sequence[Composed],
    request: JobRequest,
    *,
    arguments: Sequence[str],
    console: Console,
    signals: SignalWatch | None = None,
    torchrun: Sequence[str] = TORCHRUN,
) -> int:
    """Runs the jobs one after the other, reports them, and returns the exit code: 3 if some did not complete.

    Args:
        jobs: As composed; at least one.
        request: The command line they come from.
        arguments: The same as typed, searched for secrets to mask.
        console: Where progress and the report go.
        signals: What watches for signals: a job must not outlive its sweep.
        torchrun: The command that starts ranks.

    Raises:
        UsageError: Values that do not decode, another sweep than the one to be resumed, or there is no nsys for it.
        DataError: The sweep to be resumed cannot be read.
    """
    secrets = secret_values(arguments)
    assert jobs[0].sweep_dir is not None
    folder = Path(jobs[0].sweep_dir)
    sweep, configs = plan_sweep(jobs, folder, secrets)
    loggers = [config.logger for config in configs if isinstance(config.logger, WandbConfig)]
    if loggers:
        require_wandb()
    if any(config.sweep.nsys for config in configs):
        require_nsys(find_nsys(), find_nvtx_version())
    if configs[0].sweep.resume is not None:
        sweep = continue_sweep(sweep, folder)
    elif all(job.status == "refused" for job in sweep.jobs):
        raise UsageError(sweep.jobs[0].reason or "no job can work")
    write_sweep(folder, sweep)

    def say(text: str) -> None:
        console.print(f"distprof: {text}", highlight=False, markup=False, soft_wrap=True)

    done = sum(job.status == "completed" for job in sweep.jobs)
    say(f"{len(sweep.jobs)} jobs" + (f", {done} of them completed before" if done else "") + f": {folder}")
    for job in sweep.jobs:
        if job.status == "refused":
            say(f"job {job.number} of {len(sweep.jobs)}: refused: {job.reason}")
    launcher = TorchrunLauncher(
        sweep=sweep, folder=folder, timeouts_s=[config.sweep.timeout_s for config in configs],
        under_nsys=[config.sweep.nsys for config in configs],
        flags=list_flags(request.flags), secrets=secrets, say=say, torchrun=torchrun,
    )  # fmt: skip
    remove = signals.add(launcher.interrupt) if signals is not None else None
    try:
        launcher.launch([job.overrides for job in jobs], initial_job_idx=0)
    finally:
        if signals is not None and remove is not None:
            signals.wait_if_ending()
            remove()
    log = None
    if loggers and not launcher.interrupted:
        log = partial(log_sweep, config=loggers[0], folder=folder, say=say)
    shown = report_sweep(folder, out=folder, console=console, log=log)
    return shown if any(job.status == "completed" for job in launcher.sweep.jobs) else EXIT_FAILED
