"""What is compared: the same training with different profilers, each in a fresh process."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WRAPPED = "distprof.cli.bench.wrapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One way of running the training."""

    name: str
    overrides: tuple[str, ...]
    """Changes to the configuration."""
    wrapper: str | None = None
    """The profiler that `distprof.cli.bench.wrapped` runs around the training. None: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The training that every condition runs."""

    train: str
    """A file of conf/train."""
    ranks: int
    steps: int
    """Measured steps of each run."""
    strategy: str
    overrides: tuple[str, ...] = ()
    """More configuration, as on the command line of a training job."""


BARE = Condition(name="bare", overrides=("profile=off",))
AGAIN = Condition(name="bare again (A/A)", overrides=BARE.overrides)
"""The same again: how far apart two measurements of the same thing are here."""
PHASES = Condition(
    name="distprof phases",
    overrides=("profile=phases", "profile.shadow_every=0", "profile.max_overhead_ratio=null"),
)
TORCH_PROFILER = Condition(name="torch.profiler", overrides=BARE.overrides, wrapper="torch.profiler")
RIVALS = ("pyinstrument", "viztracer")
"""Other profilers, run around a training if installed; the extra ``bench`` installs them."""


def list_conditions() -> list[Condition]:
    """Bare first, then everything that can run here."""
    installed = [name for name in RIVALS if importlib.util.find_spec(name) is not None]
    return [
        BARE, AGAIN, PHASES, TORCH_PROFILER,
        *(Condition(name=name, overrides=BARE.overrides, wrapper=name) for name in installed),
    ]  # fmt: skip


def write_command(condition: Condition, workload: Workload, folder: Path) -> list[str]:
    """The command line of one run whose run folder will be ``folder``."""
    module = ["distprof"] if condition.wrapper is None else [WRAPPED, condition.wrapper]
    overrides: Sequence[str] = (
        f"train={workload.train}", f"strategy={workload.strategy}", f"train.steps={workload.steps}", "logger=none",
        "hardware.peak=none", f"run_dir={folder}", *workload.overrides, *condition.overrides,
    )  # fmt: skip
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(workload.ranks), "-m"]
    return [sys.executable, "-m", *(launcher if workload.ranks > 1 else []), *module, *overrides]
