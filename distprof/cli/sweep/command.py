"""Runs a sweep from its command line to its report."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs
from rich.console import Console

from distprof import __version__
from distprof.cli.capture.job import read_nvtx_version, require_nsys
from distprof.cli.sweep.launcher import TORCHRUN, TorchrunLauncher
from distprof.cli.sweep.report import report_sweep
from distprof.config.check import check
from distprof.config.compose import Composed, JobRequest
from distprof.config.redact import mask, secret_values
from distprof.config.schema import Config, WandbConfig, decode
from distprof.errors import EXIT_FAILED, UsageError
from distprof.facts.sweep import Sweep, SweepJob
from distprof.record.stalls.signals import SignalWatch
from distprof.render.units import clean_text
from distprof.render.wandb.wandb_log import require_wandb
from distprof.render.wandb.wandb_sweep import log_sweep
from distprof.storage.sweep_folder import read_sweep, write_sweep
from distprof.traces.nsys.nsys_tool import find_nsys
from distprof.world import count_devices, resolve_device_type

LONGEST_REASON = 300


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
        require_nsys(find_nsys(), read_nvtx_version())
    if configs[0].sweep.resume is not None:
        sweep = continue_sweep(sweep, folder)
    elif all(job.status == "refused" for job in sweep.jobs):
        raise UsageError(sweep.jobs[0].reason or "no job can work")
    write_sweep(folder, sweep)

    def print_line(text: str) -> None:
        console.print(f"distprof: {text}", highlight=False, markup=False, soft_wrap=True)

    done = sum(job.status == "completed" for job in sweep.jobs)
    print_line(f"{len(sweep.jobs)} jobs" + (f", {done} of them completed before" if done else "") + f": {folder}")
    for job in sweep.jobs:
        if job.status == "refused":
            print_line(f"job {job.number} of {len(sweep.jobs)}: refused: {job.reason}")
    launcher = TorchrunLauncher(
        sweep=sweep, folder=folder, timeouts_s=[config.sweep.timeout_s for config in configs],
        under_nsys=[config.sweep.nsys for config in configs],
        flags=list_flags(request.flags), secrets=secrets, print_line=print_line, torchrun=torchrun,
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
        log = partial(log_sweep, config=loggers[0], folder=folder, print_line=print_line)
    shown = report_sweep(folder, out=folder, console=console, log=log)
    return shown if any(job.status == "completed" for job in launcher.sweep.jobs) else EXIT_FAILED


def plan_sweep(jobs: Sequence[Composed], folder: Path, secrets: Sequence[str]) -> tuple[Sweep, list[Config]]:
    """A new sweep, and the configuration of each job. A job that cannot work is refused, and the others run.

    Raises:
        UsageError: A job's values do not decode, or it names a run folder of its own.
    """
    settings = list_settings([job.overrides for job in jobs])
    configs, planned = [], []
    for number, (job, own) in enumerate(zip(jobs, settings, strict=True), start=1):
        config = decode(Config, job.values)
        if config.run_dir is not None:
            raise UsageError("run_dir: a sweep makes a folder for each job; hydra.sweep.dir=FOLDER names the sweep's")
        ranks = config.sweep.ranks or count_devices(config.device) or 1
        refusal = _explain_refusal(config, ranks)
        planned.append(
            SweepJob(
                number=number, overrides=tuple(mask(text, secrets) for text in job.overrides), ranks=ranks,
                settings={key: mask(value, secrets) for key, value in own.items()},
                status="waiting" if refusal is None else "refused",
                reason=None if refusal is None else clean_text(mask(refusal, secrets), LONGEST_REASON),
            )
        )  # fmt: skip
        configs.append(config)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    name = folder.absolute().name
    return Sweep(name=name, started_utc=started, distprof_version=__version__, jobs=tuple(planned)), configs


def list_settings(overrides: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The swept keys with each job's values: those that differ between jobs, without quotes."""
    pairs = [dict(_split_override(text) for text in each if "=" in text) for each in overrides]
    swept = [key for key in pairs[0] if len({own.get(key) for own in pairs}) > 1] if pairs else []
    return [{key: own.get(key, "") for key in swept} for own in pairs]


def _split_override(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return key.lstrip("+"), value[1:-1] if quoted else value


def _explain_refusal(config: Config, ranks: int) -> str | None:
    try:
        if ranks < 1:
            return f"sweep.ranks={ranks}: must be 1 or more"
        check(config, world_size=ranks, device_type=resolve_device_type(config.device))
    except UsageError as error:
        return str(error)
    return None


def continue_sweep(planned: Sweep, folder: Path) -> Sweep:
    """The sweep of a folder, with the jobs waiting that have not completed.

    Raises:
        DataError: The folder is not one of a sweep.
        UsageError: Its jobs are others than those planned.
    """
    before = read_sweep(folder)
    ours, theirs = ([(job.overrides, job.ranks) for job in sweep.jobs] for sweep in (planned, before))
    if ours != theirs:
        number = next((index for index, pair in enumerate(zip(ours, theirs, strict=False), 1) if pair[0] != pair[1]), 0)
        what = f"job {number} differs" if number else f"{len(theirs)} jobs, not {len(ours)}"
        raise UsageError(f"sweep.resume={folder}: holds another sweep ({what}): repeat that sweep's command line")
    jobs = tuple(
        job if job.status == "completed" else structs.replace(new, folder=job.folder)
        for job, new in zip(before.jobs, planned.jobs, strict=True)
    )
    return structs.replace(before, jobs=jobs)


def list_flags(flags: Any) -> list[str]:
    """Hydra's flags that say where configuration files are, for the command line of a job."""
    pairs = (
        ("--config-path", flags.config_path),
        ("--config-name", flags.config_name),
        ("--config-dir", flags.config_dir),
    )
    return [word for name, value in pairs if value is not None for word in (name, str(value))]
