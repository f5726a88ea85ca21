"""What every test may rely on: marks for the machine that a test needs, and reproducible property examples."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.frozen import freeze_imported

if TYPE_CHECKING:
    from fsspec.implementations.memory import MemoryFileSystem

# Before NumPy and torch are imported, and for every process that tests start: threads of several processes that wait
# for one another on few cores make the tests take twice as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# In a background shell and under nohup, signals are ignored, and processes that tests start inherit that. Signal
# handlers are not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

settings.register_profile("distprof", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("distprof")

_KEPT: list[object] = []
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(autouse=True)
def _torch_is_left_as_it_was() -> Iterator[None]:
    """No test leaves torch's collectives wrapped for those that follow."""
    yield
    torch_distributed = sys.modules.get("torch.distributed")
    if torch_distributed is not None and torch_distributed.is_available():
        assert "distprof" not in torch_distributed.all_reduce.__code__.co_filename


@pytest.fixture(autouse=True)
def _groups_outlive_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch 2.6: the end of a group can wait for its thread, which waits for the GIL to let go of a tensor."""
    torch = sys.modules.get("torch")
    if torch is None or find_missing_sharding() is None:
        return
    end = torch.distributed.destroy_process_group

    @functools.wraps(end)
    def keep_and_end(group: Any = None) -> None:
        _KEPT.extend(torch.distributed.distributed_c10d._world.pg_map)
        end(group)

    monkeypatch.setattr(torch.distributed, "destroy_process_group", keep_and_end)


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    """What is behind ``memory://`` URLs; empty again after the test."""
    import fsspec  # where it is loaded, readers of traces are spawned, not forked

    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what starts processes, which takes seconds, and skips what this machine cannot run, with the reason."""
    for item in items:
        in_faults = item.path.is_relative_to(Path(__file__).parent / "faults")
        if in_faults or item.get_closest_marker("live"):
            item.add_marker(pytest.mark.slow)
        for mark, find_missing in NEEDS.items():
            if item.get_closest_marker(mark) and (reason := find_missing()):
                item.add_marker(pytest.mark.skip(reason=f"{mark}: {reason}"))
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_collection_finish() -> None:
    """What the tests import stays."""
    freeze_imported()


@functools.cache
def _find_missing_cuda() -> str | None:
    import torch  # takes a second: only for runs that have such a test

    return None if torch.cuda.is_available() else "torch sees no CUDA device"


@functools.cache
def _find_missing_nsys() -> str | None:
    return None if shutil.which(os.environ.get("NSYS", "nsys")) else "no nsys on PATH and none named by NSYS"


@functools.cache
def _find_missing_root() -> str | None:
    if os.geteuid() != 0:
        return "not root"
    if missing := [tool for tool in ("ip", "tc", "unshare") if not shutil.which(tool)]:
        return f"no {' and no '.join(missing)}; install iproute2 and util-linux"
    limit = "tc qdisc add dev lo root tbf rate 1gbit burst 32kbit latency 1ms"
    command = ["unshare", "--net", "--uts", "--time", "--fork", *limit.split()]
    allowed = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return None if allowed else "no network and time namespaces here, or no token bucket filter in this kernel"


@functools.cache
def _find_missing_browser() -> str | None:
    return None if any(map(shutil.which, BROWSERS)) else f"none of {', '.join(BROWSERS)} on PATH"


@functools.cache
def find_missing_sharding() -> str | None:
    """Why this torch cannot shard by FSDP2 on a CPU. None: it can."""
    import torch

    return None if hasattr(torch.cpu.Stream, "record_event") else f"torch {torch.__version__} cannot"


def _find_missing_packages(packages: str, *modules: str) -> str | None:
    return None if all(map(find_spec, modules)) else f"{packages} not installed"


NEEDS: dict[str, Callable[[], str | None]] = {
    "dask": functools.partial(_find_missing_packages, "the package distributed is", "distributed"),
    "ray": functools.partial(_find_missing_packages, "the package ray is", "ray"),
    "s3": functools.partial(_find_missing_packages, "the packages moto[server] and s3fs are", "moto", "s3fs"),
    "kubernetes": functools.partial(
        _find_missing_packages, "the package kubeflow-trainer-api is", "kubeflow_trainer_api"
    ),
    "cuda": _find_missing_cuda,
    "nsys": _find_missing_nsys,
    "root": _find_missing_root,
    "browser": _find_missing_browser,
    "sharding": find_missing_sharding,
}
