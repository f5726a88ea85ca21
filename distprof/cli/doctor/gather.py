"""Gathers the facts: the only part of the doctor that inspects the machine. It changes nothing and sends nothing."""

from __future__ import annotations

import collections
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from distprof.cli.doctor.facts import UNLIMITED, Facts, Limit, TorchFacts
from distprof.cli.doctor.host_time import read_clock_facts
from distprof.config.decode import decode
from distprof.errors import DataError
from distprof.render.wandb.wandb_log import is_logged_in
from distprof.traces.nsys.nsys_tool import find_nsys

TORCH_TIMEOUT_S = 60.0
PACKAGES = ("torch", "nvtx", "wandb", "accelerate", "nvidia-ml-py")
VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG",
    "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "OMP_NUM_THREADS", "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ENABLE_TIMING", "TORCH_SHOW_CPP_STACKTRACES",
)  # fmt: skip


def gather_facts(runs_dir: str, environment: Mapping[str, str] = os.environ) -> Facts:
    """Inspects this machine. Takes as long as importing torch, which happens in a separate process.

    Args:
        runs_dir: Where runs would be written; need not exist.
        environment: The environment variables.
    """
    asked = _start_asking_torch()
    folder, problem = _find_folder(Path(runs_dir))
    files, locked, core = (
        _read_limit(which) for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_CORE)
    )
    governors, scaling_driver = _read_governors()
    hostname = socket.gethostname()
    facts = Facts(
        python=sys.version_info[:3], packages=_read_packages(), torch=None, driver=read_driver(),
        nsys=find_nsys(environment), wandb_login=is_logged_in(),
        environment={name: environment[name] for name in VARIABLES if name in environment},
        cores=len(os.sched_getaffinity(0)), clock=read_clock_facts(), governors=governors,
        scaling_driver=scaling_driver, shm_bytes=_read_size("/dev/shm"), open_files=files, locked_memory=locked,
        core_files=core, core_pattern=_read_text("/proc/sys/kernel/core_pattern"),
        perf_event_paranoid=_read_number("/proc/sys/kernel/perf_event_paranoid"),
        infiniband=Path("/sys/class/infiniband").is_dir(), runs_dir=runs_dir, runs_dir_problem=problem,
        free_bytes=None if folder is None else shutil.disk_usage(folder).free, hostname=hostname,
        addresses=_resolve(hostname),
    )  # fmt: skip
    torch, torch_problem = _hear_from_torch(asked)  # last, because it is slow
    return replace(facts, torch=torch, torch_problem=torch_problem)


def _start_asking_torch() -> subprocess.Popen[str] | str:
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "distprof.cli.doctor.torch_facts"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", env=_with_own_path(),
        )  # fmt: skip
    except OSError as error:
        return f"Python cannot be started ({error.strerror})"


def _with_own_path() -> dict[str, str]:
    """An environment in which the child finds this same distprof, wherever it is started."""
    own = str(Path(__file__).resolve().parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))}


def _hear_from_torch(asked: subprocess.Popen[str] | str) -> tuple[TorchFacts | None, str | None]:
    if isinstance(asked, str):
        return None, asked
    try:
        said, complaint = asked.communicate(timeout=TORCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        asked.kill()
        asked.communicate()
        return None, f"no answer within {TORCH_TIMEOUT_S:.0f} s"
    return read_answer(said, complaint, asked.returncode)


def read_answer(said: str, complaint: str, ended: int) -> tuple[TorchFacts | None, str | None]:
    """The answer of the process that queried torch, or why there is none.

    Args:
        said: Its standard output.
        complaint: Its standard error.
        ended: Its exit code.
    """
    lines = said.strip().splitlines()
    if ended == 0 and lines:
        try:
            return decode(TorchFacts, json.loads(lines[-1]), "torch", DataError), None
        except (ValueError, DataError) as error:
            return None, f"invalid answer: {error}"
    reasons = complaint.strip().splitlines()
    return None, reasons[-1][:300] if reasons else f"ended with exit code {ended}"


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


def _find_folder(runs_dir: Path) -> tuple[Path | None, str | None]:
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
