"""What a run depends on besides its configuration: software versions, and the commit it was started from."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata

import torch

from distprof import __version__
from distprof.facts.run import RunMeta, Work
from distprof.world import World

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


def describe_run(
    world: World,
    *,
    run_id: str,
    name: str,
    strategy: str | None,
    precision: str | None,
    work: Work | None,
    notes: Sequence[str],
    config: object,
) -> RunMeta:
    """What is known of a job when it starts; see `distprof.profiler.rank.start.start_profiler`."""
    assert isinstance(config, dict)
    return RunMeta(
        run_id=run_id, name=name, started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        world_size=world.size, backend=world.backend or None, device_type=world.device.type, strategy=strategy,
        precision=precision, work=work, versions=read_versions(torch.version.cuda), git=read_commit(),
        config=config, notes=(*world.notes, *notes),
    )  # fmt: skip
