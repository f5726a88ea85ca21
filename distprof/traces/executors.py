"""Where trace files are reduced: in processes of this machine, or on a cluster that exists, by dask or Ray.

Each is a `concurrent.futures.Executor`, and runs the same top-level function. If a worker is lost, it is first for the
engine to run its task again; what is lost even so is submitted again, a few times.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from distprof.error_boundary import ErrorBoundary
from distprof.errors import DataError, DistprofError, UsageError

MAX_TRIES = 3
"""How often a task is submitted before it is given up, as one that may itself be what kills workers."""
RETRIES = 3
"""How often Ray runs a task again whose worker is lost; dask's scheduler has a setting of its own for that."""
CONNECT_S = 10
"""How long a scheduler, or a head node of Ray, may take to answer."""
T = TypeVar("T")
_Engine = tuple[Executor, tuple[type[BaseException], ...]]
"""An executor, and what its futures raise if a worker is lost."""


def run_tasks(
    spec: str | None, work: Callable[..., T], tasks: Sequence[tuple[object, ...]], num_workers: int
) -> Iterator[tuple[int, T]]:
    """Calls ``work`` for each task, somewhere; yields its place and the result as each is done.

    Args:
        spec: The value of ``--executor``. None: processes of this machine.
        work: A function of a module, which workers can import.
        tasks: Its arguments, those that take longest first.
        num_workers: Processes of this machine; after a loss fewer, as it was probably for lack of memory.

    Raises:
        DataError: Workers are lost again and again, or cannot do the work.
        UsageError: There is no such engine.
    """
    waiting = list(range(len(tasks)))
    for attempt in range(MAX_TRIES):
        lost: list[int] = []
        with _open_engine(spec, max(1, num_workers >> attempt)) as (executor, losses):
            futures: dict[Future[T], int] = {}
            try:
                for place in waiting:
                    try:
                        futures[executor.submit(work, *tasks[place])] = place
                    except losses:
                        lost.append(place)
                for future in as_completed(futures):
                    place = futures.pop(future)
                    try:
                        result = future.result()
                    except losses:
                        lost.append(place)
                    else:
                        yield place, result
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
        if not lost:
            return
        waiting = sorted(lost)
    raise DataError("a worker process that read traces was killed, again and again, probably for lack of memory")


def require_engine(spec: str) -> None:
    """Checks a value of ``--executor``, as far as that is possible without opening it.

    Raises:
        UsageError: There is no such engine.
    """
    name, _, address = spec.partition(":")
    if spec != "local" and (name not in _ENGINES or not address):
        raise UsageError(f"--executor {spec}: expected local, dask:ADDRESS or ray:ADDRESS")


@contextlib.contextmanager
def _open_engine(spec: str | None, num_workers: int) -> Iterator[_Engine]:
    if spec is None or spec == "local":
        # Threads, of torch or of fsspec, do not survive a fork.
        start = "spawn" if {"torch", "fsspec"} & sys.modules.keys() else "fork"
        with ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context(start)) as pool:
            yield pool, (BrokenExecutor,)
        return
    require_engine(spec)
    name, _, address = spec.partition(":")
    # Engines raise errors of all kinds, their workers' too: each is one line.
    said: list[str] = []
    refused: DistprofError | None = None
    with ErrorBoundary(f"--executor {spec}", said.append):
        try:
            with _ENGINES[name](address) as engine:
                yield engine
        except DistprofError as error:
            refused = error
        except CancelledError:
            refused = DataError(f"--executor {spec}: its scheduler is gone, and the work with it: start it again")
        except ImportError as error:
            refused = UsageError(f"--executor {spec}: here or on its workers, a package is missing: {error}")
    if refused is not None:
        raise refused
    if said:
        raise DataError(said[0])


@contextlib.contextmanager
def _open_dask(address: str) -> Iterator[_Engine]:
    from distributed import Client, KilledWorker

    for name in ("distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong is said in one line
    with Client(address, timeout=CONNECT_S, set_as_default=False) as client:
        yield client.get_executor(pure=False), (KilledWorker,)


@contextlib.contextmanager
def _open_ray(address: str) -> Iterator[_Engine]:
    import ray
    from ray import exceptions as errors

    _require_answer(address)
    ray.init(address=address, log_to_driver=False, logging_level="error")
    try:
        yield _RayExecutor(ray), (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError)
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Tries HOST:PORT, where Ray itself would go on for minutes.

    Raises:
        DataError: Nothing answers.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), port), timeout=CONNECT_S).close()
        except OSError as error:
            why = f"cannot be reached ({error}): is this the address of the head node, with its port?"
            raise DataError(f"--executor ray:{address}: {why}") from None


_ENGINES = {"dask": _open_dask, "ray": _open_ray}


class _RayExecutor(Executor):
    """Ray's tasks as an executor, which Ray itself does not have."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._known: dict[Callable[..., Any], Any] = {}

    def submit(self, work: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        if work not in self._known:
            self._known[work] = self._ray.remote(max_retries=RETRIES)(work)
        future: Future[T] = self._known[work].remote(*args, **options).future()
        return future
