"""Where the configuration files lie."""

from __future__ import annotations

from pathlib import Path

from distprof.errors import UsageError


def find_conf() -> Path:
    """The configuration files: inside an installed package, else beside it in a checkout.

    Raises:
        UsageError: Neither is there.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise UsageError(f"{package}: conf/ is not in the package nor beside it: install distprof again")
