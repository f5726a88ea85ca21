"""Finds the configuration files, and reads one choice of a group without composing a whole configuration and without
Hydra: a script that is watched waits for what is imported before its own first line."""

from __future__ import annotations

from pathlib import Path

import yaml  # type: ignore[import-untyped]

from distprof.errors import UsageError

_SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same in C where PyYAML has it, in a tenth of the time, for which each rank's script waits."""


def locate_conf() -> Path:
    """The configuration files: in an installed package, else beside it in a checkout.

    Raises:
        UsageError: They are in neither.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise UsageError(f"{package}: conf/ is neither in the package nor beside it: install distprof again")


def read_choice(group: str, choice: str) -> dict[str, object]:
    """The keys of ``conf/GROUP/CHOICE.yaml``, on top of those of the choices in its defaults list.

    Raises:
        UsageError: There is no ``conf/``.
    """
    text = (locate_conf() / group / f"{choice}.yaml").read_text(encoding="utf-8")
    values = yaml.load(text, Loader=_SAFE_LOADER)
    assert isinstance(values, dict)
    keys: dict[str, object] = {}
    for base in values.pop("defaults", ()):
        keys |= {} if base == "_self_" else read_choice(group, base)
    return keys | {str(key): value for key, value in values.items()}
