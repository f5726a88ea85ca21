"""The facts that the checks judge. `distprof.cli.doctor.gather` finds them; tests invent them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distprof.traces.nsys.nsys_tool import Nsys

UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as torch reports it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """Facts about torch, found by a separate process."""

    version: str
    cuda: str | None
    """The CUDA version it is built for; None: built without."""
    hip: str | None
    """The HIP version it is built for; None: built without."""
    cuda_available: bool
    cuda_problem: str | None
    """Why CUDA cannot be used, in torch's words. None: it can be used, or torch does not say."""
    driver_cuda: str | None
    """The newest CUDA version that the driver supports, such as "12.4"."""
    gpus: tuple[Gpu, ...]
    nccl: str | None
    """NCCL's version; None: built without."""
    distributed: bool
    gloo: bool
    seconds_to_import: float
    seconds_computing: float = 0.0
    """Of these, on a core."""
    seconds_without_core: float | None = None
    """Of these, ready to run while others had the cores. None: the kernel does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A resource limit; `UNLIMITED` if there is none."""

    soft: int
    hard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """The host's clocks."""

    resolution_ns: int
    """Resolution of the monotonic clock, as the system states it."""
    read_cost_ns: int
    """Median cost of one reading."""
    source: str | None
    """The kernel's clock source: "tsc", "hpet", ... None: unknown."""
    synchronised: bool | None
    """Whether the kernel considers the wall clock synchronised by NTP. None: unknown."""
    max_error_us: int | None
    """The kernel's bound on the wall clock's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One machine as seen by one process. None: unknown."""

    python: tuple[int, int, int]
    packages: Mapping[str, str]
    """Versions of the relevant installed packages, by name."""
    torch: TorchFacts | None
    torch_problem: str | None = None
    """Why torch could not be queried."""
    driver: str | None = None
    """Version of the loaded NVIDIA driver. None: none is loaded."""
    nsys: Nsys | None = None
    wandb_login: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    """Only the variables that checks use, so that no secret passes through here."""
    cores: int = 1
    """CPU cores that this process may use."""
    clock: ClockFacts
    governors: Mapping[str, int] = field(default_factory=dict)
    """The number of cores under each CPU frequency governor; empty: unknown."""
    scaling_driver: str | None = None
    shm_bytes: int | None = None
    """Size of /dev/shm."""
    open_files: Limit
    locked_memory: Limit
    core_files: Limit
    """bytes"""
    core_pattern: str | None = None
    """Where the kernel writes core files; if it begins with ``|``, it pipes them into a program."""
    perf_event_paranoid: int | None = None
    infiniband: bool = False
    runs_dir: str = "runs"
    runs_dir_problem: str | None = None
    """Why nothing can be written there."""
    free_bytes: int | None = None
    """Disk space available to this user for runs."""
    hostname: str = ""
    addresses: tuple[str, ...] = ()
    """Addresses of the machine's own hostname; empty: it does not resolve."""
