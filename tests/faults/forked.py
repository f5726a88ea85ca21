"""Runs commands from outside without importing everything each time: forks them from a prepared process.

Each command is called as `distprof` would call it, in its own process with its own streams, folder and environment. The
commands of one call run concurrently, like ranks. This does not include the start of Python and torch: tests of those
need the real commands of `tests.ranks`, from whose fork server the process that forks comes.
"""

from __future__ import annotations

import atexit
import functools
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from tests.frozen import freeze_imported
from tests.ranks import find_ports, make_environment, prepare_server, tell_rank

LIMIT_S = 240.0


class Command(Struct, frozen=True, kw_only=True):
    """One command line and its environment."""

    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    stdout: str = "file"
    """Or "full", a full disk; "broken", a pipe without a reader; "closed"."""
    stderr: str = "file"
    before: str = ""
    """Python code that runs first, in the same process."""
    module: str = "distprof"
    """What ``python -m`` would run."""


class Done(Struct, frozen=True, kw_only=True):
    """How it ended."""

    code: int
    out: str
    err: str
    seconds: float


class Started:
    """A running command, with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int, place: str) -> None:
        """Takes a process and the folder of its output."""
        self.pid, self._place, self._began_s = pid, place, time.monotonic()
        self.returncode: int | None = None
        self.seconds = 0.0

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it. None: it is still running."""
        if self.returncode is None:
            (self.returncode,) = _ask("poll", [self.pid])
            self.seconds = time.monotonic() - self._began_s
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends it a signal if it is still running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = LIMIT_S) -> tuple[str, str]:
        """Waits for its end and returns its output.

        Raises:
            TimeoutError: It is still running.
        """
        deadline_s = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline_s:
                raise TimeoutError(self.read())
            time.sleep(0.01)
        return self.read()

    def wait(self, timeout: float = LIMIT_S) -> int:
        """Waits for its end and returns its exit code.

        Raises:
            TimeoutError: It is still running.
        """
        self.communicate(timeout)
        assert self.returncode is not None
        return self.returncode

    def read(self) -> tuple[str, str]:
        """Its output so far."""
        return _read(f"{self._place}.1"), _read(f"{self._place}.2")


def start(*commands: Command, cwd: Path) -> list[Started]:
    """Starts commands concurrently in one folder."""
    places = [tempfile.mkdtemp(dir=_make_folder().name) for _ in commands]
    asked = [
        {
            "arguments": list(command.arguments), "environment": make_environment(**command.environment),
            "streams": [command.stdout, command.stderr], "cwd": str(cwd), "place": f"{place}/",
            "before": command.before, "module": command.module,
        }
        for command, place in zip(commands, places, strict=True)
    ]  # fmt: skip
    return [Started(pid, f"{place}/") for pid, place in zip(_ask("start", asked), places, strict=True)]


def fork_ranks(
    number: int, arguments: Sequence[str], cwd: Path, *, before: str = "", **environment: str
) -> list[Started]:
    """Starts a job as several ranks without a launcher that would watch or end them."""
    (port,) = find_ports(1)
    ranks = (make_rank(rank, number, port, arguments, before=before, **environment) for rank in range(number))
    return start(*ranks, cwd=cwd)


def make_rank(
    rank: int, number: int, port: int, arguments: Sequence[str], *, before: str = "", **environment: str
) -> Command:
    """One rank's command, with what a launcher would say to it."""
    return Command(arguments=arguments, environment={**tell_rank(rank, number, port), **environment}, before=before)


def run(*commands: Command, cwd: Path) -> list[Done]:
    """Runs commands concurrently in one folder, and waits for all."""
    started = start(*commands, cwd=cwd)
    deadline_s = time.monotonic() + LIMIT_S
    while None in [each.poll() for each in started] and time.monotonic() < deadline_s:
        time.sleep(0.01)
    ended = []
    for each in started:
        each.kill()
        out, err = each.communicate()
        assert each.returncode is not None
        ended.append(Done(code=each.returncode, out=out, err=err, seconds=each.seconds))
    return ended


def run_python(command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What ``subprocess.run`` returns for ``PYTHON -m MODULE ARGUMENTS``, in the environment of this process."""
    assert list(command[:2]) == [sys.executable, "-m"]
    own = Command(module=command[2], arguments=command[3:], environment=dict(os.environ))
    (done,) = run(own, cwd=cwd or Path.cwd())
    return subprocess.CompletedProcess(list(command), done.code, done.out, done.err)


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace") if Path(path).exists() else ""


@functools.cache
def _make_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for outputs, deleted with this process."""
    return tempfile.TemporaryDirectory()


def _ask(what: str, about: list[Any]) -> list[Any]:
    server = _start()
    server.send((what, about))
    answer: list[Any] = server.recv()
    return answer


@functools.cache
def _start() -> Connection:
    """Of the process that forks; it ends when this one does."""
    server = prepare_server()
    ours, theirs = server.Pipe()
    server.Process(target=_serve, args=(theirs,)).start()
    theirs.close()
    atexit.register(ours.close)
    return ours


def _serve(connection: Connection) -> None:
    """The process that forks. Training imports the rest of what is listed only when it is under way."""
    import numpy.random  # noqa: F401

    import distprof.cli.doctor.command
    import distprof.cli.parser
    import distprof.cli.report
    import distprof.cli.tables
    import distprof.cli.train  # noqa: F401
    from distprof.config.compose import compose, read_request

    warming = [
        "train=gpt2_tiny",
        "logger=none",
        "hydra.run.dir=.",
    ]  # the first parse fills Hydra's tables: a forked one has them
    compose(read_request(warming), launched=False, arguments=warming)
    freeze_imported()
    while True:
        try:
            what, about = connection.recv()
        except EOFError:
            return
        connection.send([{"start": _fork, "poll": _poll}[what](item) for item in about])


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _fork(asked: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(_call(asked))
    return pid


def _call(asked: dict[str, Any]) -> int:
    import traceback

    code: Any = 1
    try:
        os.environ.clear()
        os.environ.update(asked["environment"])
        tempfile.tempdir = None  # it was looked up by an import, before there was this environment
        os.chdir(asked["cwd"])
        sys.path.insert(0, asked["cwd"])  # as `python -m` does
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, kind in enumerate(asked["streams"], start=1):
            _replace(number, kind, f"{asked['place']}.{number}")
        encoding = asked["environment"].get("PYTHONIOENCODING", "utf-8")
        for number, name in ((1, "stdout"), (2, "stderr")):
            if getattr(sys, name) is not None:  # as Python makes them, but that strange letters are errors there, too
                buffering = 1 if name == "stderr" else -1
                stream = open(number, "w", buffering, encoding=encoding, errors="strict", closefd=False)  # noqa: SIM115
                setattr(sys, name, stream)
        sys.argv = ["distprof", *asked["arguments"]]
        exec(asked["before"], {})
        if asked["module"] == "distprof":  # which was imported before
            from distprof.__main__ import main

            main()
        else:
            runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:
        traceback.print_exc()
    code = code if isinstance(code, int) else 0 if code is None else 1
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:  # as Python does on its way out
            stream.flush()
        except BaseException:
            code = 120
    return code


def _replace(number: int, kind: str, path: str) -> None:
    """Replaces standard output or error, as a shell would."""
    if kind == "closed":
        os.close(number)
        setattr(sys, {1: "stdout", 2: "stderr"}[number], None)
        return
    if kind == "broken":
        reader, new = os.pipe()
        os.close(reader)
    else:
        new = os.open("/dev/full" if kind == "full" else path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(new, number)
    os.close(new)
