"""What a run depends on besides its configuration: software versions, and the commit it was started from."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata

from distprof import __version__

PACKAGES = ("torch", "accelerate", "nvtx", "hydra-core", "wandb", "numpy")


def read_versions(cuda: str | None) -> dict[str, str]:
    """Versions by name; "none" for what is not installed.

    Args:
        cuda: The CUDA version torch was built for.
    """
    found = {"distprof": __version__, "python": platform.python_version(), "os": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "none"
    return {**found, "cuda": cuda or "none"}


def read_commit() -> str | None:
    """The commit of the working tree, followed by "+" if there are uncommitted changes; None: not a checkout."""
    try:
        run = [["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "--untracked-files=no"]]
        commit, changes = (
            subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout for command in run
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.strip() + ("+" if changes.strip() else "")
