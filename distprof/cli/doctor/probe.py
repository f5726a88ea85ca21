"""Gathers the facts that the checks judge: the only part of the doctor that looks at the machine.

It changes nothing and sends nothing. Tests make up the facts instead.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from distprof.child_process import make_child_environment
from distprof.config.decode import decode
from distprof.errors import DataError
from distprof.traces.nsys.nsys_tool import Nsys, find_nsys

UNLIMITED = -1
TORCH_TIMEOUT_S = 60.0
PACKAGES = ("torch", "nvtx", "wandb", "accelerate", "nvidia-ml-py")
VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG",
    "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "OMP_NUM_THREADS", "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ENABLE_TIMING", "TORCH_SHOW_CPP_STACKTRACES",
)  # fmt: skip
STA_UNSYNC, TIME_ERROR = 0x0040, 5
"""Of <sys/timex.h>: the state and the result of `adjtimex` when nothing synchronises the wall clock."""
CLOCK_BATCHES, READINGS_PER_BATCH = 50, 50


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU as torch reports it."""

    name: str
    memory_bytes: int


class TorchFacts(Struct, frozen=True, kw_only=True):
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


class Limit(Struct, frozen=True, kw_only=True):
    """A resource limit; `UNLIMITED` if there is none."""

    soft: int
    hard: int


class ClockFacts(Struct, frozen=True, kw_only=True):
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


class Facts(Struct, frozen=True, kw_only=True):
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


def gather_facts(runs_dir: str, environment: Mapping[str, str] = os.environ) -> Facts:
    """Inspects this machine. Takes as long as importing torch, which happens in a separate process.

    Args:
        runs_dir: Where runs would be written; need not exist.
        environment: The environment variables.
    """
    from distprof.render.wandb.wandb_log import is_logged_in  # brings the analysis with it: not needed for --help

    torch_process = _start_torch_probe()
    folder, problem = _locate_folder(Path(runs_dir))
    files, locked, core = (
        _read_limit(which) for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_CORE)
    )
    governors, scaling_driver = _read_governors()
    hostname = socket.gethostname()
    facts = Facts(
        python=sys.version_info[:3], packages=_read_packages(), torch=None, driver=read_driver(),
        nsys=find_nsys(environment), wandb_login=is_logged_in(),
        environment={name: environment[name] for name in VARIABLES if name in environment},
        cores=len(os.sched_getaffinity(0)), clock=_read_clocks(), governors=governors,
        scaling_driver=scaling_driver, shm_bytes=_read_size("/dev/shm"), open_files=files, locked_memory=locked,
        core_files=core, core_pattern=_read_text("/proc/sys/kernel/core_pattern"),
        perf_event_paranoid=_read_number("/proc/sys/kernel/perf_event_paranoid"),
        infiniband=Path("/sys/class/infiniband").is_dir(), runs_dir=runs_dir, runs_dir_problem=problem,
        free_bytes=None if folder is None else shutil.disk_usage(folder).free, hostname=hostname,
        addresses=_resolve(hostname),
    )  # fmt: skip
    torch, torch_problem = _finish_torch_probe(torch_process)  # last, because it is slow
    return replace(facts, torch=torch, torch_problem=torch_problem)


def _start_torch_probe() -> subprocess.Popen[str] | str:
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "distprof.cli.doctor.probe_torch"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", env=make_child_environment(),
        )  # fmt: skip
    except OSError as error:
        return f"Python cannot be started ({error.strerror})"


def _finish_torch_probe(process: subprocess.Popen[str] | str) -> tuple[TorchFacts | None, str | None]:
    if isinstance(process, str):
        return None, process
    try:
        output, errors = process.communicate(timeout=TORCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, f"no answer within {TORCH_TIMEOUT_S:.0f} s"
    return read_answer(output, errors, process.returncode)


def read_answer(output: str, errors: str, exit_code: int) -> tuple[TorchFacts | None, str | None]:
    """What the process that queried torch has found, or why it has found nothing."""
    lines = output.strip().splitlines()
    if exit_code == 0 and lines:
        try:
            return decode(TorchFacts, json.loads(lines[-1]), "torch", DataError), None
        except (ValueError, DataError) as error:
            return None, f"invalid answer: {error}"
    reasons = errors.strip().splitlines()
    return None, reasons[-1][:300] if reasons else f"ended with exit code {exit_code}"


def _read_packages() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def read_driver() -> str | None:
    """Version of the loaded NVIDIA driver. None: none is loaded."""
    text = _read_text("/proc/driver/nvidia/version") or ""
    numbers = [word for word in text.split() if word[:1].isdigit() and "." in word]
    return numbers[0] if numbers else None


def _locate_folder(runs_dir: Path) -> tuple[Path | None, str | None]:
    """The deepest existing folder of a path that may not exist, and why it cannot be written."""
    folder = runs_dir.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return None, f"{folder} is not a folder"
    return folder, None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not writable"


def _read_governors() -> tuple[dict[str, int], str | None]:
    policies = sorted(Path("/sys/devices/system/cpu/cpufreq").glob("policy*"))
    counted: collections.Counter[str] = collections.Counter()
    for policy in policies:
        cores = len((_read_text(str(policy / "related_cpus")) or "").split())
        if governor := _read_text(str(policy / "scaling_governor")):
            counted[governor] += cores or 1
    return dict(counted), _read_text(str(policies[0] / "scaling_driver")) if policies else None


def _read_limit(which: int) -> Limit:
    soft, hard = (UNLIMITED if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
    return Limit(soft=soft, hard=hard)


def _read_size(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


def _resolve(hostname: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip() or None
    except OSError:
        return None


def _read_number(path: str) -> int | None:
    text = _read_text(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


class _Timex(ctypes.Structure):
    """The beginning of the kernel's ``struct timex``, and space for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


def _read_clocks() -> ClockFacts:
    """Reads the clocks; takes a few milliseconds."""
    synchronised, max_error_us = _read_synchronisation()
    return ClockFacts(
        resolution_ns=round(time.get_clock_info("monotonic").resolution * 1e9), read_cost_ns=_time_readings(),
        source=_read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        synchronised=synchronised, max_error_us=max_error_us,
    )  # fmt: skip


def _time_readings() -> int:
    costs_ns = []
    for _ in range(CLOCK_BATCHES):
        begin_ns = time.perf_counter_ns()
        for _ in range(READINGS_PER_BATCH):
            time.monotonic_ns()
        costs_ns.append((time.perf_counter_ns() - begin_ns) / READINGS_PER_BATCH)
    return round(statistics.median(costs_ns))


def _read_synchronisation() -> tuple[bool | None, int | None]:
    """Whether NTP, chrony or PTP synchronises the wall clock, and the kernel's bound on its error, in us."""
    try:
        state = _Timex()  # modes 0: only reads
        code = ctypes.CDLL(None).adjtimex(ctypes.byref(state))
    except (OSError, AttributeError):
        return None, None
    if code < 0:
        return None, None
    return code != TIME_ERROR and not state.status & STA_UNSYNC, int(state.maxerror)
