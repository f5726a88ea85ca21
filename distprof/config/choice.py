"""Reads one choice of a configuration group without composing a whole configuration, and without Hydra: a script that
is watched waits for what is imported before its own first line."""

from __future__ import annotations

import yaml  # type: ignore[import-untyped]

from distprof.config.conf_folder import find_conf


def read_choice(group: str, choice: str) -> dict[str, object]:
    """The keys of ``conf/GROUP/CHOICE.yaml``, on top of those of the choices in its defaults list.

    Raises:
        UsageError: There is no ``conf/``.
    """
    values = yaml.safe_load((find_conf() / group / f"{choice}.yaml").read_text(encoding="utf-8"))
    assert isinstance(values, dict)
    keys: dict[str, object] = {}
    for base in values.pop("defaults", ()):
        keys |= {} if base == "_self_" else read_choice(group, base)
    return keys | {str(key): value for key, value in values.items()}
