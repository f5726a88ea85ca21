"""Runs a command as several ranks, the way a user does, and a function as several gloo ranks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Protocol

import torch.multiprocessing as mp

from distprof.world import Identity, World, leave

REPOSITORY = Path(__file__).resolve().parent.parent
FREE_PORTS = range(10_000, 32_000)
"""Below those that Linux gives to connections."""
PORT_SHARES = 8
"""For as many workers of pytest."""
_found_ports: set[int] = set()
PRELOADED = (
    "torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel", "distprof.train.job", "pytest", "hypothesis",
)  # fmt: skip


def make_environment(**more: str) -> dict[str, str]:
    """The environment of a command under test: no login, none of the developer's proxies, no terminal."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "TORCHELASTIC_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(name, None)
    paths = [str(REPOSITORY), kept.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "120", **more}


def run_alone(
    arguments: Sequence[str], cwd: Path, *, module: str = "distprof", **environment: str
) -> subprocess.CompletedProcess[str]:
    """``python -m MODULE ARGUMENTS``."""
    return _run([sys.executable, "-m", module, *arguments], cwd, environment)


def run_ranks(number: int, arguments: Sequence[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``torchrun --nproc-per-node NUMBER -m distprof ARGUMENTS``."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
    return _run([*launcher, "-m", "distprof", *arguments], cwd, environment)


def find_ports(number: int) -> list[int]:
    """Different ports that nobody uses.

    They are not among those that the system gives to connections: one of these might take such a port before the job
    that it is found for listens on it, and then that job would wait in vain. For the same reason no port is found
    twice, and each worker of pytest looks among its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own, draw, found = FREE_PORTS[worker % PORT_SHARES :: PORT_SHARES], random.SystemRandom(), list[int]()
    while len(found) < number:
        port = draw.choice(own)
        with contextlib.suppress(OSError), socket.socket() as held:
            held.bind(("127.0.0.1", port))
            if port not in _found_ports:
                found.append(port)
                _found_ports.add(port)
    return found


def tell_rank(rank: int, number: int, port: int) -> dict[str, str]:
    """What a launcher puts into the environment of one rank."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def start_ranks(number: int, command: Sequence[str], cwd: Path, **environment: str) -> list[subprocess.Popen[str]]:
    """``PYTHON COMMAND`` as several ranks, which nobody watches over or ends."""
    (port,) = find_ports(1)
    return [
        subprocess.Popen(
            [sys.executable, *command], cwd=cwd, env=make_environment(**tell_rank(rank, number, port), **environment),
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(number)
    ]  # fmt: skip


class Process(Protocol):
    """What tests need of a process: a `subprocess.Popen`, or something similar."""

    def poll(self) -> int | None:
        """Its exit code. None: it is still running."""

    def communicate(self) -> tuple[str, str]:
        """Waits for its end and returns its output."""


def wait_until(holds: Callable[[], bool], processes: Sequence[Process], limit_s: float = 120) -> None:
    """Waits for a condition while every process lives."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def _run(command: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=make_environment(**environment), capture_output=True, text=True, timeout=240, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def prepare_server() -> ForkServerContext:
    """What makes processes from a server that has imported what ranks need; the first of them starts it."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(PRELOADED))
    return server


def call_on_ranks(number: int, function: Callable[..., Any], *arguments: Any, tmp_path: Path) -> None:
    """Calls ``function(world, *arguments)`` on gloo ranks; raises what the first failing rank raised.

    The ranks are forked from a server that has imported what they all need.
    """
    prepare_server()
    given = (dict(os.environ), number, str(tmp_path / "store"), function, arguments)
    mp.start_processes(_call, args=given, nprocs=number, start_method="forkserver")


def run_cases(number: int, cases: Sequence[Callable[[World], None]], tmp_path: Path) -> list[str]:
    """Calls one after the other on ranks that are started once, for processes take longer to start than to run.

    Returns:
        The names of those that came to their end on all ranks.
    """
    done = tmp_path / "done"
    call_on_ranks(number, _run_cases, str(done), cases, tmp_path=tmp_path)
    return done.read_text().split()


def _run_cases(world: World, path: str, cases: Sequence[Callable[[World], None]]) -> None:
    from torch.distributed import barrier

    for case in cases:
        case(world)
        barrier()
        if world.rank == 0:
            with Path(path).open("a") as file:
                file.write(f"{case.__name__}\n")


def _call(
    rank: int, environment: dict[str, str], number: int, store: str, function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    os.environ.clear()
    os.environ.update(environment)  # the server has that of the first test
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "0"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=number)
    identity = Identity(
        rank=rank, local_rank=rank, world_size=number, local_world_size=number, launched=True, restarts=0
    )
    world = World(identity=identity, host="test-host", device=torch.device("cpu"), backend="gloo", notes=())
    try:
        function(world, *arguments)
    finally:
        leave()
    # What torch's threads still release while the interpreter shuts down can abort it, once in hundreds of runs, which
    # is not tested here: exit immediately, as the job itself does.
    os._exit(0)
