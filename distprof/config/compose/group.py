"""Reads one choice of a configuration group without composing a whole configuration."""

from __future__ import annotations

from omegaconf import OmegaConf

from distprof.config.compose.files import find_conf


def read_choice(group: str, choice: str) -> dict[str, object]:
    """The keys of ``conf/GROUP/CHOICE.yaml``, on top of those of the choices in its defaults list.

    Raises:
        UsageError: There is no ``conf/``.
    """
    values = OmegaConf.to_container(OmegaConf.load(find_conf() / group / f"{choice}.yaml"))
    assert isinstance(values, dict)
    keys: dict[str, object] = {}
    for base in values.pop("defaults", ()):
        keys |= {} if base == "_self_" else read_choice(group, base)
    return keys | {str(key): value for key, value in values.items()}
