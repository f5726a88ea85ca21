"""The jobs of a sweep before they run: what is particular to each, its ranks, and whether it can work."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distprof import __version__
from distprof.config.check import check
from distprof.config.compose import Composed
from distprof.config.redact import mask
from distprof.config.schema import Config, decode
from distprof.errors import UsageError
from distprof.facts.sweep import Sweep, SweepJob
from distprof.render.units import clean_text
from distprof.storage.sweep_folder import read_sweep
from distprof.world import count_devices, resolve_device_type

REASON_LIMIT = 300
Check = Callable[[Config], None]


def plan_sweep(jobs: Sequence[Composed], folder: Path, secrets: Sequence[str]) -> tuple[Sweep, list[Config]]:
    """A new sweep, and the configuration of each job. A job that cannot work is refused, and the others run.

    Raises:
        UsageError: A job's values do not decode, or it names a run folder of its own.
    """
    settings = find_settings([job.overrides for job in jobs])
    configs, planned = [], []
    for number, (job, own) in enumerate(zip(jobs, settings, strict=True), start=1):
        config = decode(Config, job.values)
        if config.run_dir is not None:
            raise UsageError("run_dir: a sweep makes a folder for each job; hydra.sweep.dir=FOLDER names the sweep's")
        ranks = config.sweep.ranks or count_devices(config.device) or 1
        refusal = _find_refusal(config, ranks)
        planned.append(
            SweepJob(
                number=number, overrides=tuple(mask(text, secrets) for text in job.overrides), ranks=ranks,
                settings={key: mask(value, secrets) for key, value in own.items()},
                status="waiting" if refusal is None else "refused",
                reason=None if refusal is None else clean_text(mask(refusal, secrets), REASON_LIMIT),
            )
        )  # fmt: skip
        configs.append(config)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    name = folder.absolute().name
    return Sweep(name=name, started_utc=started, distprof_version=__version__, jobs=tuple(planned)), configs


def find_settings(overrides: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The swept keys with each job's values: those that differ between jobs, without quotes."""
    pairs = [dict(_part(text) for text in each if "=" in text) for each in overrides]
    swept = [key for key in pairs[0] if len({own.get(key) for own in pairs}) > 1] if pairs else []
    return [{key: own.get(key, "") for key in swept} for own in pairs]


def _part(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return key.lstrip("+"), value[1:-1] if quoted else value


def _find_refusal(config: Config, ranks: int) -> str | None:
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
        job if job.status == "completed" else dataclasses.replace(new, folder=job.folder)
        for job, new in zip(before.jobs, planned.jobs, strict=True)
    )
    return dataclasses.replace(before, jobs=jobs)


def list_flags(flags: Any) -> list[str]:
    """Hydra's flags that say where configuration files are, for the command line of a job."""
    pairs = (
        ("--config-path", flags.config_path),
        ("--config-name", flags.config_name),
        ("--config-dir", flags.config_dir),
    )
    return [word for name, value in pairs if value is not None for word in (name, str(value))]
