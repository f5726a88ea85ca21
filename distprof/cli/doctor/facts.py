"""What the checks judge. Everything here is found out by `distprof.cli.doctor.gather`, and made up by tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distprof.traces.nsys.nsys_tool import Nsys

UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as torch sees it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """torch, as a process of its own has found it."""

    version: str
    cuda: str | None
    """CUDA version it is built for; None: built without."""
    hip: str | None
    """HIP version it is built for; None: built without."""
    cuda_available: bool
    cuda_problem: str | None
    """Why CUDA cannot be used, in torch's words. None: it can, or torch does not say."""
    driver_cuda: str | None
    """The newest CUDA version that the driver runs, "12.4"."""
    gpus: tuple[Gpu, ...]
    nccl: str | None
    """NCCL's version; None: built without."""
    distributed: bool
    gloo: bool
    seconds_to_import: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A resource limit; `UNLIMITED` where there is none."""

    soft: int
    hard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """The host's clocks."""

    resolution_ns: int
    """Of the monotonic clock, as the system states it."""
    read_cost_ns: int
    """What one reading costs; the median of many."""
    source: str | None
    """What the kernel keeps time with: "tsc", "hpet", ... None: it does not say."""
    synchronised: bool | None
    """Whether the kernel takes the wall clock for disciplined by NTP. None: it does not say."""
    max_error_us: int | None
    """The kernel's bound of the wall clock's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One machine, as one process sees it. None: could not be found out."""

    python: tuple[int, int, int]
    packages: Mapping[str, str]
    """Versions of the installed packages among those that matter, by name."""
    torch: TorchFacts | None
    torch_problem: str | None = None
    """Why torch could not be asked."""
    driver: str | None = None
    """Version of the NVIDIA driver that is loaded. None: none is."""
    nsys: Nsys | None = None
    wandb_login: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that checks look at, and no others: no secret passes through here."""
    cores: int = 1
    """CPU cores this process may use."""
    clock: ClockFacts
    governors: Mapping[str, int] = field(default_factory=dict)
    """How many cores run under each CPU frequency governor; empty: the machine does not say."""
    scaling_driver: str | None = None
    shm_bytes: int | None = None
    """Size of /dev/shm."""
    open_files: Limit
    locked_memory: Limit
    core_files: Limit
    """bytes"""
    core_pattern: str | None = None
    """Where the kernel puts core files; beginning with ``|``: into a program."""
    perf_event_paranoid: int | None = None
    infiniband: bool = False
    runs_dir: str = "runs"
    runs_dir_problem: str | None = None
    """Why nothing can be written there."""
    free_bytes: int | None = None
    """Disk space for this user where the runs go."""
    hostname: str = ""
    addresses: tuple[str, ...] = ()
    """What the own hostname resolves to; empty: nothing."""
