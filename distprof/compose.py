"""The command line, composed by Hydra from ``conf/``, into plain containers. Nothing is run here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from distprof.errors import UsageError
from distprof.redact import mask, secret_values
from distprof.world import resolve_device_type

_BY_DEVICE = re.compile(r"\$\{by_device:([^,}]+),([^,}]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """One job's configuration."""

    values: dict[str, Any]
    """Plain containers, interpolations resolved."""
    notes: tuple[str, ...]
    """What a CPU run shortened."""


def find_conf() -> Path:
    """The configuration files: inside an installed package, else beside it in a checkout.

    Raises:
        UsageError: Neither is there.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise UsageError(f"{package}: conf/ is not in the package nor beside it: install distprof again")


def compose(arguments: list[str]) -> list[Composed]:
    """What Hydra makes of the command line: one job, several with --multirun, none with --help or --cfg.

    Args:
        arguments: For masking secrets; Hydra reads ``sys.argv`` itself.

    Raises:
        UsageError: An unknown choice or key, a syntax error, a value that cannot be resolved.
    """
    jobs: list[Composed] = []

    def keep(config: DictConfig) -> None:
        jobs.append(_to_plain(config))

    OmegaConf.register_new_resolver("by_device", _by_device, replace=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra prints by itself and leaves with exit code 1
    try:
        hydra.main(version_base="1.3", config_path=str(find_conf()), config_name="config")(keep)()
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(mask(_shorten(error), secret_values(arguments))) from None
    except OSError as error:
        raise UsageError(f"hydra.run.dir={error.filename}: cannot be made ({error.strerror})") from None
    return jobs


def to_yaml(values: Mapping[str, object]) -> str:
    """A configuration as text, for people and for Hydra to read."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(values)))


def _by_device(accelerator: object, cpu: object, *, _root_: DictConfig) -> object:
    return cpu if _device_type(_root_) == "cpu" else accelerator


def _device_type(config: DictConfig) -> str:
    wanted = str(config.get("device"))
    return wanted if wanted in ("cpu", "cuda") else resolve_device_type("auto")  # whether it is there is asked later


def _to_plain(config: DictConfig) -> Composed:
    notes = tuple(_describe_shortened(config)) if _device_type(config) == "cpu" else ()
    values = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    assert isinstance(values, dict)
    chosen = HydraConfig.get().run.dir
    if chosen != "." and values.get("run_dir") is None:  # what people who know Hydra type
        values["run_dir"] = chosen
    return Composed(values={str(key): value for key, value in values.items()}, notes=notes)


def _describe_shortened(config: DictConfig) -> Iterator[str]:
    written = OmegaConf.to_container(config, resolve=False)
    found = [
        f"{key} {match[2]} instead of {match[1]}"
        for key, value in _flatten(written)
        if isinstance(value, str) and (match := _BY_DEVICE.fullmatch(value)) and match[1] != match[2]
    ]
    if found:
        yield f"shortened for a CPU, as conf/ says: {', '.join(found)}; any value you give wins"


def _flatten(value: object, where: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(item, f"{where}.{key}" if where else str(key))
    else:
        yield where, value


def _shorten(error: Exception) -> str:
    """Hydra's message on one line: what is wrong and what there is instead."""
    text = str(error)
    if unknown := re.match(r"Could not override '([^']+)'", text):
        return f"{unknown[1]}: unknown key; python -m distprof --help lists every key"
    lines = [line.strip() for line in text.partition("Config search path")[0].splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "reference_type", "Set the env"))]
    override = getattr(error, "override", None)  # Hydra's parser names the place only here
    return (f"{override}: " if override else "") + " ".join(kept)[:600]
