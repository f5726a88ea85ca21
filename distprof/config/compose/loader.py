"""Makes Hydra's loader safe: otherwise a configuration may name code and modules, and take unlimited time and memory,
because a few lines of YAML can ask for more than any machine has.

Every configuration passes through `Loader.load_configuration`. distprof then takes only values from it: it starts no
callback, launcher, sweeper or logging handler, although Hydra would instantiate those that a configuration names.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, Node, OmegaConf, flag_override

from distprof.config.choice import locate_conf
from distprof.config.compose.request import JobRequest
from distprof.config.redact import MASK, is_secret_name, mask
from distprof.errors import UsageError

OWN_PATHS = ("pkg://hydra.conf", "structured://")
"""The sources besides folders: Hydra's own files, and what it keeps in memory."""
LAUNCHER = "distprof.cli.sweep.launcher.TorchrunLauncher"
"""Hydra itself would start only launchers of a package hydra_plugins, see `_load_own_plugins`."""
ALLOWED = {
    "hydra.launcher": (LAUNCHER, "hydra._internal.core_plugins.basic_launcher.BasicLauncher"),
    "hydra.sweeper": ("hydra._internal.core_plugins.basic_sweeper.BasicSweeper",),
}
"""What may be named, and where. Others would run the job elsewhere, or optimise its result, which cannot work."""
NOT_KEYS = "expected a group of keys, such as `steps: 10`"
HANDLERS = ("logging.StreamHandler", "logging.FileHandler")
"""The classes in Hydra's own logging choices; distprof instantiates none of them."""

CPU_S = 4.0
"""Composing takes a third of a second. This is processor time, so that a busy machine does not cause refusals."""
MEMORY_BYTES = 500_000_000
CHECK_EVERY_S = 0.05
_STATUS = Path("/proc/self/statm")


def make_hydra(request: JobRequest, secrets: Sequence[str]) -> Hydra:
    """Hydra for a command line: with its search path, our loader, and only its own plugins.

    Raises:
        UsageError: A folder in the search path does not exist.
    """
    _load_own_plugins()
    flags, path = request.flags, _SearchPath()
    path.append("hydra", "pkg://hydra.conf")
    path.append("main", str(locate_conf()) if flags.config_path is None else _require_folder(flags.config_path))
    if flags.config_dir is not None:
        path.append("command-line", _require_folder(flags.config_dir))
    path.append("schema", "structured://")
    return _Hydra(task_name="distprof", config_loader=Loader(path, secrets if request.shows_only else None))


class _TooMuch(BaseException):
    """Not an `Exception`, so that libraries do not handle it as one of their own."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Ends the enclosed code if it takes too long or too much memory. Checks periodically, in the main thread only,
    and may be nested.

    Raises:
        UsageError: It took too much.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    begin_s, begin_bytes = time.process_time(), _read_memory()
    spent = False

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal spent
        if time.process_time() - begin_s > CPU_S or _read_memory() - begin_bytes > MEMORY_BYTES:
            spent = True
            raise _TooMuch

    handler = signal.signal(signal.SIGVTALRM, look)
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, CHECK_EVERY_S, CHECK_EVERY_S)
    try:
        yield
    except BaseException:  # `_TooMuch`, or what a library's cleanup turned it into
        if not spent:
            raise
        raise UsageError(
            "the configuration is too large: files whose aliases or interpolations multiply, or a file that is not a "
            "configuration; see --config-dir, --config-path and hydra.searchpath"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.signal(signal.SIGVTALRM, handler)


def _read_memory() -> int:
    """The memory used by the process; 0 if the system does not say."""
    try:
        return int(_STATUS.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


class Loader(ConfigLoaderImpl):
    """Loads configurations without running any code."""

    def __init__(self, search_path: ConfigSearchPathImpl, secrets: Sequence[str] | None) -> None:
        """Uses ``search_path``; with ``secrets``, for display: masks those values and other secrets."""
        super().__init__(search_path)
        self.repository = _Repository(search_path)
        self._secrets = secrets

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Hydra's own method, with the result checked before it is used.

        Raises:
            UsageError: It names code, or is too large.
        """
        with bounded():
            config = super().load_configuration(
                config_name, overrides, run_mode, from_shell, validate_sweep_overrides
            )  # fmt: skip
            refuse_code(OmegaConf.to_container(config, resolve=False))
            if self._secrets is not None:
                with flag_override(config, ["readonly", "struct"], False):
                    _hide_secrets(config, self._secrets)
        return config


class _Repository(ConfigRepository):
    """Names the file that is no configuration. Hydra names none, and takes a list for an empty file."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        try:
            found = super().load_config(config_path)
        except OSError as error:  # also OmegaConf's, for a file that holds a number
            raise UsageError(f"{self._name(config_path)}: {error.strerror or NOT_KEYS}") from None
        if found is not None and isinstance(found.config, ListConfig):
            raise UsageError(f"{self._name(config_path)}: {NOT_KEYS}")
        return found

    def _name(self, config_path: str) -> str:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        name = config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
        return name if source is None else os.path.join(source.path, name)


class _Hydra(Hydra):
    """Hydra without its logging, because a handler is a class with arguments."""

    def compose_config(self, *arguments: Any, **named: Any) -> DictConfig:
        return super().compose_config(*arguments, **{**named, "with_log_configuration": False})


class _SearchPath(ConfigSearchPathImpl):
    """Folders to search. Hydra would import the modules that ``pkg://`` and ``structured://`` name."""

    def append(self, provider: str, path: str, anchor: SearchPathQuery | None = None) -> None:
        super().append(provider, path if path in OWN_PATHS else _require_folder(path), anchor)


def _require_folder(path: str) -> str:
    folder = path.removeprefix("file://")
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: not a folder with configuration files; see --config-dir and hydra.searchpath")
    return os.path.abspath(folder)


def _load_own_plugins() -> None:
    """Blocks hydra_plugins: Hydra imports every module of a package with that name, even a folder beside the user."""
    if "hydra_plugins" not in sys.modules:
        sys.modules["hydra_plugins"] = None  # type: ignore[assignment]
        try:
            Plugins.instance()
        finally:
            del sys.modules["hydra_plugins"]


def refuse_code(values: object, where: str = "") -> None:
    """Refuses a configuration that names code to run, anywhere in it.

    Args:
        values: Plain containers; interpolations are still texts, so they cannot hide a name.
        where: The path of ``values``.

    Raises:
        UsageError: With the path and the name.
    """
    if isinstance(values, Mapping):
        for key, item in values.items():
            path = f"{where}.{key}" if where else str(key)
            if _names_code(where, key, item):
                raise UsageError(f"{path}={item}: distprof does not run code that a configuration names; leave it out")
            refuse_code(item, path)
    elif isinstance(values, list):
        for item in values:
            refuse_code(item, where)


def _names_code(where: str, key: object, item: object) -> bool:
    if key in ("_target_", "()"):
        return item not in ALLOWED.get(where, ())
    if key == "class" and where.startswith(("hydra.job_logging", "hydra.hydra_logging")):
        return item not in HANDLERS
    return where == "hydra.callbacks"


def _hide_secrets(config: DictConfig | ListConfig, secrets: Sequence[str]) -> None:
    """Masks secrets in place, so that Hydra can show the rest as usual."""
    for key in range(len(config)) if isinstance(config, ListConfig) else list(config):
        node = config._get_node(key)
        if not isinstance(node, Node) or node._is_none() or node._is_missing():
            continue
        if isinstance(config, DictConfig) and is_secret_name(key):
            config[key] = MASK
        elif isinstance(node, DictConfig | ListConfig) and not node._is_interpolation():
            _hide_secrets(node, secrets)
        elif isinstance(text := node._value(), str) and (masked := mask(text, secrets)) != text:
            config[key] = masked
