"""Turns a command line into the jobs that it asks for."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from msgspec import Struct, structs
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from distprof.config.compose.loader import LAUNCHER, bounded, make_hydra
from distprof.config.compose.request import HELP, JobRequest
from distprof.config.decode import list_keys
from distprof.config.redact import is_secret_name, redact, secret_values
from distprof.config.schema import Config, LoggerName
from distprof.config.suggest import suggest
from distprof.errors import UsageError

_BY_DEVICE = re.compile(r"\$\{by_device:([^,}]+),([^,}]+)\}")
_ABOUT_SWEEP = re.compile(
    r"[+~]*(sweep\.(resume|timeout_s)=|hydra\.(mode|run|sweep|sweeper|launcher)\b|hydra/(sweeper|launcher)=)"
)
OTHERS = (ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What Hydra raises, besides its own errors, for files that are not configurations."""


class Composed(Struct, frozen=True, kw_only=True):
    """One job's configuration."""

    values: dict[str, Any]
    """Plain containers with interpolations resolved."""
    notes: tuple[str, ...]
    """What was shortened for a CPU run."""
    overrides: tuple[str, ...] = ()
    """A sweep's job: the overrides that compose it alone."""
    sweep_dir: str | None = None
    """The folder of the sweep that the job belongs to. None: it is alone."""


def compose(request: JobRequest, *, launched: bool, arguments: Sequence[str]) -> list[Composed]:
    """Composes the command line: one job, several with --multirun, or none if it is only shown.

    Args:
        request: The parsed command line.
        launched: Whether other ranks compose the same jobs.
        arguments: The command line, searched for secrets to mask.

    Raises:
        UsageError: There is an unknown choice or key, a syntax error, an unresolvable value or a reference to code,
            or it takes too much work.
    """
    OmegaConf.register_new_resolver("by_device", _by_device, replace=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints errors itself and exits with code 1
    if not request.shows_only or request.flags.resolve or request.flags.info:
        _resolve_device_type()  # may start a driver, which must not count as composition time
    secrets = secret_values(arguments)
    try:
        hydra = make_hydra(request, secrets)
        if request.shows_only:
            _show(hydra, request)
            return []
        return _compose_jobs(hydra, request, launched=launched, secrets=secrets)
    except YAMLError as error:
        raise UsageError(_locate(error)) from None
    except RecursionError:
        raise UsageError("the configuration is nested too deeply; see --config-dir and --config-path") from None
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(_shorten(error)) from None
    except OTHERS as error:
        raise UsageError(f"the configuration cannot be composed ({type(error).__name__}: {error})") from None


def to_yaml(values: Mapping[str, object]) -> str:
    """A configuration as YAML, readable for people and for Hydra."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(values)))


@bounded()
def _show(hydra: Hydra, request: JobRequest) -> None:
    flags = request.flags
    name, overrides = flags.config_name or "config", flags.overrides
    if flags.help:
        hydra.app_help(config_name=name, args_parser=request.parser, args=flags)
    elif flags.hydra_help:
        hydra.hydra_help(config_name=name, args_parser=request.parser, args=flags)
    elif flags.cfg:
        hydra.show_cfg(name, overrides, cfg_type=flags.cfg, package=flags.package, resolve=flags.resolve)
    elif flags.info:
        hydra.show_info(flags.info, config_name=name, overrides=overrides)
    else:
        hydra.shell_completion(config_name=name, overrides=overrides)


def _compose_jobs(hydra: Hydra, request: JobRequest, *, launched: bool, secrets: Sequence[str]) -> list[Composed]:
    name, overrides, loader = request.flags.config_name or "config", request.flags.overrides, hydra.config_loader
    if not request.flags.multirun:
        config = loader.load_configuration(name, list(overrides), RunMode.RUN)
        if config.hydra.mode != RunMode.MULTIRUN:
            return [_to_plain(config, "hydra.run.dir")]
    if launched:
        raise UsageError("--multirun inside torchrun: if one rank failed, the others would wait forever; run it alone")
    master = loader.load_configuration(name, list(overrides), RunMode.MULTIRUN)
    if master.hydra.launcher._target_ != LAUNCHER:
        raise UsageError("hydra/launcher: jobs of a sweep run in a process group each: leave it at torchrun")
    jobs = []
    for number, chosen in enumerate(_split_sweep(master)):
        config = loader.load_sweep_config(master, list(chosen))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        jobs.append((_to_plain(config, "hydra.sweep.dir"), (*master.hydra.overrides.hydra, *chosen)))
    HydraConfig.instance().set_config(master)
    folder = _choose_sweep_dir(master, secrets)
    return [structs.replace(job, overrides=_list_own(each), sweep_dir=folder) for job, each in jobs]


def _list_own(overrides: Iterable[str]) -> tuple[str, ...]:
    """A job's own overrides, without those for how a sweep runs."""
    return (*(text for text in overrides if not _ABOUT_SWEEP.match(text)), "hydra.mode=RUN")


@bounded()
def _split_sweep(master: DictConfig) -> Iterable[Sequence[str]]:
    """The overrides of each job: every combination of the swept values."""
    lines = [f"{key}={value}" for key, value in (OmegaConf.select(master, "hydra.sweeper.params") or {}).items()]
    overrides = OverridesParser.create().parse_overrides([*lines, *master.hydra.overrides.task])
    return BasicSweeper.split_arguments(overrides, None)[0]


def _choose_sweep_dir(master: DictConfig, secrets: Sequence[str]) -> str:
    """The folder of the sweep; a new one holds what was asked for."""
    if (before := OmegaConf.select(master, "sweep.resume")) is not None:
        return str(before)
    folder = Path(str(OmegaConf.select(master, "hydra.sweep.dir")))
    values = redact(OmegaConf.to_container(master, resolve=False), secrets)
    assert isinstance(values, dict)
    _make_folder(folder, "hydra.sweep.dir")
    if (folder / "multirun.yaml").exists():
        raise UsageError(f"{folder}: holds a sweep: choose another hydra.sweep.dir, or continue it with sweep.resume")
    (folder / "multirun.yaml").write_text(to_yaml(values), encoding="utf-8")
    return str(folder)


def _by_device(accelerator: object, cpu: object, *, _root_: DictConfig) -> object:
    return cpu if _device_type(_root_) == "cpu" else accelerator


def _device_type(config: DictConfig) -> str:
    wanted = str(config.get("device"))
    return wanted if wanted in ("cpu", "cuda") else _resolve_device_type()  # availability is checked later


def _resolve_device_type() -> str:
    from distprof.world import resolve_device_type  # imports torch: not needed for --help

    return resolve_device_type("auto")


@bounded()
def _to_plain(config: DictConfig, folder_key: str) -> Composed:
    """One job's part of a configuration; some of it is interpolated from Hydra's part."""
    HydraConfig.instance().set_config(config)
    folder = str(OmegaConf.select(config, folder_key))
    with read_write(config.hydra.runtime), open_dict(config.hydra.runtime):
        config.hydra.runtime.output_dir = os.path.abspath(folder)
    HydraConfig.instance().set_config(config)
    own = copy.deepcopy(config)
    with read_write(own), open_dict(own):
        del own["hydra"]
    notes = tuple(_describe_shortened(own)) if _device_type(own) == "cpu" else ()
    values = OmegaConf.to_container(own, resolve=True, throw_on_missing=False)
    assert isinstance(values, dict)
    chosen = str(config.hydra.run.dir)
    if chosen != "." and values.get("run_dir") is None:  # the option that Hydra users know
        _make_folder(Path(chosen), "hydra.run.dir")
        values["run_dir"] = chosen
    return Composed(values={str(key): value for key, value in values.items()}, notes=notes)


def _make_folder(folder: Path, key: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{key}={folder}: cannot be created ({error.strerror})") from None


def _describe_shortened(config: DictConfig) -> Iterator[str]:
    written = OmegaConf.to_container(config, resolve=False)
    found = [
        f"{key} {match[2]} instead of {match[1]}"
        for key, value in _flatten(written)
        if isinstance(value, str) and (match := _BY_DEVICE.fullmatch(value)) and match[1] != match[2]
    ]
    if found:
        yield f"shortened for a CPU, as set in conf/: {', '.join(found)}; values that you give take precedence"


def _flatten(value: object, where: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(item, f"{where}.{key}" if where else str(key))
    else:
        yield where, value


def _locate(error: YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"{mark.name}, line {mark.line + 1}" if mark else "a configuration file"
    return f"{where}: not valid YAML ({getattr(error, 'problem', None) or error})"


def _shorten(error: Exception) -> str:
    """Hydra's message on one line: what is wrong, and what is available instead."""
    text = str(error) or str(error.__cause__ or type(error).__name__)
    if unknown := re.match(r"Could not override '([^']+)'", text):
        return f"{unknown[1]}: unknown key{suggest(unknown[1], list_keys(Config))}; {HELP} lists every key"
    if (logger := re.search(r"'logger/(\w+)'", text)) and logger[1] in get_args(LoggerName):
        return f"logger={logger[1]}: logger= takes none or wandb; the others are given by profile.loggers=[{logger[1]}]"
    override = getattr(error, "override", None)  # Hydra's parser gives the position only here
    key = str(override or "").partition("=")[0]
    if override and is_secret_name(key):
        return f"the value of {key} cannot be read; put texts in quotes: KEY='\"TEXT\"'"
    lines = [line.strip() for line in text.partition("Config search path")[0].splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "reference_type", "Set the env"))]
    hint = "; put texts in quotes: KEY='\"TEXT\"'" if override else ""
    return (f"{override}: " if override else "") + " ".join(kept)[:600] + hint
