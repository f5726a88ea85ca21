"""Finds the configuration files."""

from __future__ import annotations

from pathlib import Path

from distprof.errors import UsageError


def find_conf() -> Path:
    """The configuration files: in an installed package, else beside it in a checkout.

    Raises:
        UsageError: They are in neither.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise UsageError(f"{package}: conf/ is neither in the package nor beside it: install distprof again")
